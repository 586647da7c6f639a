"""FeatureCache, on a small cache that is written by hand: no video, no encoder."""

import json
import shlex
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline import open_tars
from pipeline.cache import open_cache
from pipeline.encoding import stamp_streams
from pipeline.layout import CacheLayout
from schemas.errors import CacheDamaged, CacheError, CacheIncomplete, UsageError
from schemas.quality import QUALITY_COLUMNS
from schemas.sample import Sample
from schemas.video import sample_key
from tests.pipeline.handmade import RECIPE, make_sample, write_cache

SHARDS = [{"b cat": 3}, {"a": 2, "c": 1}]
"""Shard -> video -> clips: the videos' order is not that of the shards."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    layout = CacheLayout(tmp_path_factory.mktemp("written") / "cache")
    write_cache(layout, SHARDS)
    return layout


@pytest.fixture
def layout(written, tmp_path):
    """A copy that a test may damage."""
    shutil.copytree(written.root, tmp_path / "fps=2 c")
    return CacheLayout(tmp_path / "fps=2 c")


@pytest.fixture
def cache(written):
    with open_cache(written.root) as cache:
        yield cache


def assert_same(read: Sample, expected: Sample) -> None:
    assert read.key == expected.key
    assert list(read.features) == ["image", "video"]
    for name, array in expected.features.items():
        assert np.array_equal(read.features[name], array)
    assert np.array_equal(read.times, expected.times)
    assert np.array_equal(read.mask, expected.mask)
    assert (read.info, read.preview) == (expected.info, expected.preview)


def flip(path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_the_length_is_the_number_of_samples(cache):
    assert len(cache) == len(cache.keys()) == len(list(cache)) == 6


def test_samples_come_video_by_video_in_order_of_time(cache):
    order = [(s.info["video_id"], s.info["clip_index"]) for s in cache]
    assert order == [("a", 0), ("a", 1), ("b cat", 0), ("b cat", 1), ("b cat", 2), ("c", 0)]
    assert [sample.key for sample in cache] == cache.keys()


def test_every_sample_is_what_was_written(cache):
    keys = cache.keys()
    for key in keys:
        row = cache.row(key)
        assert_same(cache[key], make_sample(row.video_id, row.clip_index))


def test_a_key_is_in_the_cache_or_not(cache):
    assert "a_000001" in cache
    assert "a_000002" not in cache
    assert 7 not in cache


def test_an_unknown_key_is_told_the_nearest_one(cache):
    with pytest.raises(UsageError, match=r"no sample 'a_00000'.*; did you mean 'a_000\d+'\?"):
        cache["a_00000"]


def test_a_video_is_its_samples(cache):
    keys = [sample.key for sample in cache.video("b cat")]
    assert keys == cache.videos["b cat"] == [sample_key("b cat", n) for n in range(3)]
    assert list(cache.videos) == ["a", "b cat", "c"]


def test_an_unknown_video_is_told_the_nearest_one(cache):
    with pytest.raises(UsageError, match="no video 'b cats' in the cache; did you mean 'b cat'"):
        cache.video("b cats")


def test_a_row_says_where_the_members_lie(cache, written):
    row = cache.row("a_000001")
    assert (row.video_id, row.clip_index, row.start_seconds, row.end_seconds) == ("a", 1, 2.0, 4.0)
    assert (row.num_frames, row.truncated, row.corrupt) == (3, False, False)
    data = written.tar(row.shard).read_bytes()
    offset, size = row.members["json"]
    assert json.loads(data[offset : offset + size])["clip_index"] == 1


def test_the_cache_knows_its_recipe(cache):
    assert cache.recipe == RECIPE
    assert cache.streams == ("image", "video")
    assert cache.fingerprint == RECIPE.fingerprint(stamp_streams(RECIPE))
    assert cache.index.num_rows == 6
    assert repr(cache).endswith("3 videos, 6 samples, 2 shards, recipe 'tiny')")


def test_streams_come_in_the_recipes_order(layout):
    info = json.loads(layout.info.read_text())
    info["recipe"]["streams"] = dict(reversed(info["recipe"]["streams"].items()))
    layout.info.write_text(json.dumps(info))
    with open_cache(layout.root) as cache:
        assert list(cache["a_000000"].features) == ["video", "image"]


class TestBuffers:
    def test_a_sample_has_a_buffer_of_its_own(self, cache):
        one, other = cache["a_000000"], cache["a_000000"]
        assert not np.shares_memory(one.features["image"], other.features["image"])

    def test_arrays_alias_the_buffer_that_is_given(self, cache):
        buffer = bytearray(cache.row("c_000000").num_bytes + 100)
        sample = cache.read("c_000000", buffer=buffer)
        assert_same(sample, make_sample("c", 0))
        assert np.shares_memory(sample.features["image"], np.frombuffer(buffer, np.uint8))

    def test_one_buffer_serves_for_one_sample_after_another(self, cache):
        keys = cache.keys()
        rows = [cache.row(key) for key in keys]
        buffer = bytearray(max(row.num_bytes for row in rows))
        for row in rows:
            expected = make_sample(row.video_id, row.clip_index)
            assert_same(cache.read(row.key, buffer=memoryview(buffer)), expected)

    def test_a_buffer_that_is_too_small_is_the_callers_mistake(self, cache):
        with pytest.raises(ValueError):
            cache.read("a_000000", buffer=bytearray(100))


class TestOpenTars:
    def test_no_more_tars_are_open_than_allowed(self, cache, monkeypatch):
        monkeypatch.setattr(open_tars, "MAX_OPEN_TARS", 1)
        for _ in range(2):
            for key in ("a_000000", sample_key("b cat", 0)):
                assert cache[key].key == key
                assert len(cache.tars) == 1

    def test_reading_after_closing_opens_again(self, cache):
        cache["a_000000"]
        cache.close()
        cache.close()
        assert_same(cache["a_000000"], make_sample("a", 0))


class TestDamage:
    def test_a_missing_tar_costs_only_its_own_samples(self, layout):
        layout.tar("train-000000-00000000").unlink()
        with open_cache(layout.root) as cache:
            assert cache["a_000000"].key == "a_000000"
            with pytest.raises(CacheDamaged, match="No such file") as caught:
                cache[sample_key("b cat", 0)]
        place = shlex.quote(str(layout.root))
        assert caught.value.hint == f"run: pipeline verify {place}"

    def test_a_truncated_tar_is_noticed_where_it_ends(self, layout):
        with open_cache(layout.root) as cache:
            row = cache.row("c_000000")
            with cache.layout.tar(row.shard).open("r+b") as file:
                file.truncate(row.offset + row.num_bytes - 1)
            assert cache["a_000001"].key == "a_000001"
            with pytest.raises(CacheDamaged, match="ends inside c_000000"):
                cache["c_000000"]

    @pytest.mark.parametrize("member", ["image.npy", "time.npy", "mask.npy", "json"])
    def test_overwritten_bytes_are_noticed(self, layout, member):
        with open_cache(layout.root) as cache:
            row = cache.row("a_000000")
            flip(layout.tar(row.shard), row.members[member][0], b"\xff\xfe\x00\x00")
            with pytest.raises(CacheDamaged, match="a_000000: "):
                cache["a_000000"]

    def test_without_cache_json_no_run_has_finished(self, layout):
        layout.info.unlink()
        with pytest.raises(CacheIncomplete, match=r"has no cache\.json") as caught:
            open_cache(layout.root)
        assert caught.value.exit_code == 4
        assert "pipeline run" in caught.value.hint

    @pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe"])
    def test_another_cache_json_is_damage(self, layout, data):
        layout.info.write_bytes(data)
        with pytest.raises(CacheDamaged, match=r"cache\.json"):
            open_cache(layout.root)

    @pytest.mark.parametrize("recipe", [{}, {"name": 3}, None])
    def test_a_recipe_that_cannot_be_read_is_damage_and_not_the_users_mistake(self, layout, recipe):
        info = json.loads(layout.info.read_text())
        layout.info.write_text(json.dumps(info | {"recipe": recipe}))
        with pytest.raises(CacheDamaged):
            open_cache(layout.root)

    def test_a_newer_format_is_not_read(self, layout):
        info = json.loads(layout.info.read_text())
        layout.info.write_text(json.dumps(info | {"format_version": 99}))
        with pytest.raises(CacheError, match="format version 99"):
            open_cache(layout.root)

    def test_a_missing_index_is_damage(self, layout):
        layout.index.unlink()
        with pytest.raises(CacheDamaged, match=r"samples\.parquet"):
            open_cache(layout.root)

    def test_a_truncated_index_is_damage(self, layout):
        layout.index.write_bytes(layout.index.read_bytes()[:-100])
        with pytest.raises(CacheDamaged, match=r"samples\.parquet"):
            open_cache(layout.root)

    def test_an_index_with_other_columns_is_damage(self, layout):
        pq.write_table(pq.read_table(layout.index).drop_columns(["offset"]), layout.index)
        with pytest.raises(CacheDamaged, match="are not an index's"):
            open_cache(layout.root)


class TestNoCache:
    def test_a_folder_that_does_not_exist_is_a_wrong_path(self, tmp_path):
        with pytest.raises(UsageError, match="no such folder"):
            open_cache(tmp_path / "none")

    def test_a_file_is_no_cache(self, written):
        with pytest.raises(UsageError, match="is a file, not a cache"):
            open_cache(written.info)

    def test_any_other_folder_is_no_cache(self, tmp_path):
        with pytest.raises(CacheIncomplete):
            open_cache(tmp_path)


def test_an_index_without_quality_is_read(layout):
    table = pq.read_table(layout.index)
    old = table.drop_columns(list(QUALITY_COLUMNS))
    pq.write_table(old, layout.index)
    with open_cache(layout.root) as cache:
        assert cache.index.schema.names == table.schema.names
        assert cache.row("a_000000").quality is None
        assert len(list(cache)) == 6
