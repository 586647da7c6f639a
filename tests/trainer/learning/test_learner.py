"""What a config makes of a language model: which parameters, held in which dtype."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.cache import FeatureCache, open_cache
from schemas.errors import ConfigError, FingerprintMismatch
from tests.trainer.small_runs import config_of, write_annotations, write_cache
from trainer.learning.distributed import ALONE
from trainer.learning.learner import Learner
from trainer.learning.sharding import is_sharded, layers_of
from trainer.learning.training import TrainingRun
from trainer.model.video_lm import VideoLM

BFLOAT16 = "model.dtype=bfloat16"
CONNECTOR_ONLY = ("stages.tune.train=['connector']", "stages.tune.lr={connector=1e-3}")
LORA = ("model.lora.r=2",)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureCache]:
    with open_cache(write_cache(tmp_path_factory.mktemp("cache"))) as opened:
        yield opened


def model_of(cache: FeatureCache, *overrides: str) -> VideoLM:
    config = config_of(Path("out"), Path("said.jsonl"), BFLOAT16, *overrides)
    return Learner.of(config, cache=cache).make_model(config, ranks=ALONE)


def dtypes(model: VideoLM, word: str) -> set[torch.dtype]:
    return {p.dtype for name, p in model.named_parameters() if word in name}


def test_what_is_trained_is_held_in_float32(cache):
    assert dtypes(model_of(cache), "") == {torch.float32}
    frozen = model_of(cache, *CONNECTOR_ONLY)
    assert dtypes(frozen, "lm.") == {torch.bfloat16}
    assert dtypes(frozen, "connector.") == {torch.float32}
    adapted = model_of(cache, *LORA)
    assert dtypes(adapted, "lora_") == {torch.float32}
    assert dtypes(adapted, "base_layer") == {torch.bfloat16}
    assert adapted.training and len(layers_of(adapted.lm)) == 2


@pytest.mark.parametrize("overrides", [(), CONNECTOR_ONLY, LORA])
def test_bfloat16_learns_as_float32_does(overrides, cache, tmp_path):
    said = write_annotations(tmp_path / "said.jsonl")
    losses: dict[str, list[float]] = {}
    for dtype in ("float32", "bfloat16"):
        changes: list[Any] = [f"model.dtype={dtype}", *overrides, "stages.tune.steps=3"]
        config = config_of(tmp_path / dtype, said, *changes, "run.save_every=0")
        losses[dtype] = []
        run = TrainingRun(config, cache=cache)
        run.train(show=lambda report, kept=losses[dtype]: kept.append(report.loss))
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    assert losses["bfloat16"] != losses["float32"]


def test_another_fingerprint_than_the_one_that_is_pinned(cache, tmp_path):
    config = config_of(tmp_path, tmp_path, f"cache.fingerprint={cache.fingerprint[:12]}")
    Learner.of(config, cache=cache)
    with pytest.raises(FingerprintMismatch, match="= 0000, but"):
        Learner.of(config_of(tmp_path, tmp_path, "cache.fingerprint='0000'"), cache=cache)


def test_sharding_is_where_there_are_ranks():
    spec = config_of(Path("out"), Path("said.jsonl")).parallel
    assert [is_sharded(spec, world=world) for world in (1, 2)] == [False, True]
    off = config_of(Path("out"), Path("said.jsonl"), "parallel.fsdp=off").parallel
    assert not is_sharded(off, world=2)
    on = config_of(Path("out"), Path("said.jsonl"), "parallel.fsdp=on").parallel
    with pytest.raises(ConfigError, match="more ranks than one") as caught:
        is_sharded(on, world=1)
    assert "torchrun" in caught.value.hint
