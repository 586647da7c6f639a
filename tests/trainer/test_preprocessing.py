"""Preprocessing: what a model's fingerprint is taken over, and what it does not depend on."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.cache import FeatureCache, open_cache
from schemas.errors import FingerprintMismatch, ModelDamaged
from tests.trainer.data.clip_caches import STAMPS, write_clips
from tests.trainer.small_runs import config_of
from trainer.learning.summary import compression_line
from trainer.model_spec import ReduceSpec
from trainer.preprocessing import Preprocessing

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "preprocessing.fingerprint"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureCache]:
    folder = tmp_path_factory.mktemp("cache")
    write_clips(folder, [{"v0": [4]}])
    with open_cache(folder) as opened:
        yield opened


def preprocessing_of(cache: FeatureCache, *overrides: str) -> Preprocessing:
    config = config_of(Path("out"), Path("said.jsonl"), *overrides)
    return Preprocessing.of(config, cache=cache, template="chatml")


def test_the_fingerprint_is_the_golden_one(cache: FeatureCache) -> None:
    found = preprocessing_of(cache).fingerprint()
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(f"{found}\n")
    assert found == GOLDEN.read_text().strip(), "exported models would be refused"


@pytest.mark.parametrize(
    "override",
    [
        "view.fps=1.0",
        "view.frames_per_clip=2",
        "view.max_clips=3",
        "view.streams=['image']",
        "view.time_base=span",
        "stages.tune.max_clips=3",
        "batch.tokens_per_pack=128",
        "model.time.mode=none",
        "model.time.text={start}",
        "model.time.joint=' '",
        "model.reduce.kind=prune",
        "model.connector.compression=2.0",
        "model.system=Be brief.",
    ],
)
def test_what_changes_the_row_changes_it(override: str, cache: FeatureCache) -> None:
    assert preprocessing_of(cache, override).fingerprint() != preprocessing_of(cache).fingerprint()


@pytest.mark.parametrize(
    "override",
    [
        "run.seed=3",
        "batch.packs=16",
        "batch.readers=7",
        "stages.align.max_clips=3",
        "stages.tune.lr.lm=1e-4",
        "model.dtype=bfloat16",
        "model.connector.depth=3",
        "model.time.regression_weight=0.5",
        "parallel.fsdp=off",
    ],
)
def test_what_does_not_leaves_it(override: str, cache: FeatureCache) -> None:
    assert preprocessing_of(cache, override).fingerprint() == preprocessing_of(cache).fingerprint()


def test_defaults_are_dropped_so_that_new_fields_keep_it(cache: FeatureCache) -> None:
    identity = preprocessing_of(cache).identity()
    assert identity["view"] == identity["reduce"] == {}
    identity = preprocessing_of(cache, "model.reduce.kind=prune", "view.fps=1.0").identity()
    assert (identity["view"], identity["reduce"]) == ({"fps": 1.0}, {"kind": "prune"})


def test_the_limit_of_clips_is_the_smaller_one(cache: FeatureCache) -> None:
    both = preprocessing_of(cache, "view.max_clips=9", "stages.tune.max_clips=5")
    assert both.view.max_clips == 5
    both = preprocessing_of(cache, "view.max_clips=4", "stages.tune.max_clips=5")
    assert both.view.max_clips == 4


def test_cells_that_a_token_stands_for(cache: FeatureCache, tmp_path: Path) -> None:
    """4 frames of 3 x 2 cells; of each frame as many as before where there are fewer."""
    plain = {"encoded": 6.0, "cached": 6.0}
    assert preprocessing_of(cache).cells_per_token() == plain
    assert preprocessing_of(cache, "view.frames_per_clip=2").cells_per_token() == plain
    dense = preprocessing_of(cache, "model.connector.compression=2.0")
    assert dense.cells_per_token() == {"encoded": 3.0, "cached": 3.0}
    video = preprocessing_of(cache, "view.streams=['video']")
    assert video.cells_per_token() == {"encoded": 4.0, "cached": 4.0}
    # Apollo's release: 128 tokens for 4 frames of 27 x 27, here cached on a coarser grid.
    stamps = STAMPS | {"image": {"grid": [27, 27], "dim": 5}}
    write_clips(tmp_path, [{"v0": [4]}], overrides=("streams.image.grid=[9,9]",), stamps=stamps)
    with open_cache(tmp_path) as coarse:
        apollo = preprocessing_of(coarse, "model.connector.tokens_per_frame=32.0")
    assert apollo.cells_per_token() == {"encoded": 22.781, "cached": 2.531}
    line = compression_line(apollo)
    assert line.startswith("128 tokens a clip, each for 22.781 cells of the encoders, 2.531 of the")
    assert "above 16" in line and "above 16" not in compression_line(video)


def test_it_comes_back(cache: FeatureCache) -> None:
    one = preprocessing_of(cache, "view.streams=['video']", "model.reduce.kind=similar")
    plain = json.loads(json.dumps(one.to_mapping()))
    again = Preprocessing.from_mapping(plain, where="x")
    assert again == one and again.fingerprint() == one.fingerprint()
    assert isinstance(again.reduce, ReduceSpec)
    assert list(again.shape.streams) == ["video"]
    for broken in ({}, plain | {"view": {"fsp": 1}}, plain | {"more": 1}):
        with pytest.raises(ModelDamaged, match="x: its preprocessing cannot be read"):
            Preprocessing.from_mapping(broken, where="x")


@pytest.mark.parametrize(
    ("overrides", "stamps", "named"),
    [
        (("sampling.fps=4",), STAMPS, "sampling.fps"),
        ((), STAMPS | {"image": {"grid": [3, 2], "dim": 5, "weights_sha256": "abc"}}, "weights"),
    ],
)
def test_another_cache_is_refused_by_the_fields_that_differ(
    overrides: tuple[str, ...],
    stamps: dict[str, dict[str, Any]],
    named: str,
    cache: FeatureCache,
    tmp_path: Path,
) -> None:
    write_clips(tmp_path, [{"v0": [4]}], overrides=overrides, stamps=stamps)
    one = preprocessing_of(cache)
    one.require_cache(cache)
    assert one.cache_fingerprint() == cache.fingerprint
    with open_cache(tmp_path) as other, pytest.raises(FingerprintMismatch, match=named):
        one.require_cache(other)


def test_every_field_is_part_of_it(cache: FeatureCache) -> None:
    fields = {field.name for field in dataclasses.fields(Preprocessing)}
    told = set(preprocessing_of(cache).identity())
    assert fields - told == {
        "recipe",
        "stamps",
        "events",
    }
