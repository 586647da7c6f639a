"""cache.json: a round trip, versions, damage."""

import json

import pytest

from schemas.cache_info import CacheInfo, ShardEntry
from schemas.errors import CacheDamaged, CacheError
from schemas.recipe import FORMAT_VERSION, Recipe

INFO = CacheInfo(
    fingerprint="ab" * 32,
    recipe=Recipe.load("tiny").to_mapping(),
    stamps={"image": {"name": "random-image"}, "video": {"name": "random-video"}},
    counts={"sources": 2, "videos": 1, "samples": 3},
    shards=(ShardEntry(name="train-000000-ab", sha256="cd" * 32, tar_bytes=10240, num_samples=3),),
    index_sha256="ef" * 32,
)


def changed(**fields: object) -> str:
    return json.dumps(json.loads(INFO.to_json()) | fields)


def test_cache_info_survives_its_json():
    assert CacheInfo.from_json(INFO.to_json(), where="x") == INFO


def test_streams_keep_the_recipes_order_and_not_the_alphabets():
    mapping = Recipe.load("tiny").to_mapping()
    mapping["streams"] = dict(reversed(mapping["streams"].items()))
    text = changed(recipe=mapping)
    assert CacheInfo.from_json(text, where="x").streams == ("video", "image")
    assert CacheInfo.from_json(CacheInfo.from_json(text, where="x").to_json(), where="x").streams


def test_cache_json_begins_readable_and_says_its_version():
    fields = json.loads(INFO.to_json())
    assert fields["format_version"] == FORMAT_VERSION == 1
    assert fields["shards"][0]["sha256"] == "cd" * 32


def test_a_newer_format_asks_for_an_upgrade_and_is_not_called_damaged():
    with pytest.raises(CacheError, match="format version 2, this reelcache reads 1") as caught:
        CacheInfo.from_json(changed(format_version=2, news=True), where="c/cache.json")
    assert not isinstance(caught.value, CacheDamaged)
    assert caught.value.hint == "upgrade reelcache"


@pytest.mark.parametrize("version", [0, -1, "2", None, 1.5])
def test_another_format_asks_for_the_version_that_wrote_it(version):
    with pytest.raises(CacheError, match="this reelcache reads 1") as caught:
        CacheInfo.from_json(changed(format_version=version), where="c/cache.json")
    assert "wrote it" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        "{}",
        INFO.to_json()[:-10],
        changed(shards=None),
        changed(shards=[{"name": "a"}]),
        changed(shards=["a"]),
        changed(unknown=1),
        '{"format_version": 1}',
    ],
)
def test_another_text_is_damage_and_names_the_file(text):
    with pytest.raises(CacheDamaged, match=r"c/cache\.json: not a cache\.json"):
        CacheInfo.from_json(text, where="c/cache.json")
