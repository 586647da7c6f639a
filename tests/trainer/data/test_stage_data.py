"""StageData by threads that read: any number of ranks and readers sees the same global batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.cache import FeatureCache, open_cache
from schemas.errors import AnnotationError, ConfigError
from tests.trainer.small_runs import config_of, write_annotations, write_cache
from trainer.config import TrainConfig
from trainer.data.batch import Batch
from trainer.data.buffers import Buffers
from trainer.data.read_ahead import read_ahead
from trainer.data.stage_data import Job, StageData, require_packs
from trainer.learning.learner import Learner
from trainer.learning.preparing import prepare_stages
from trainer.learning.stages import make_stages

SMALL = ("batch.tokens_per_pack=190", "batch.packs=4")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureCache]:
    """Of two shards, fewer than there are ranks."""
    folder = write_cache(tmp_path_factory.mktemp("cache"), num_shards=2)
    with open_cache(folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("said") / "said.jsonl"
    return write_annotations(path, num_rows=40, num_videos=6)


def stage_of(config: TrainConfig, cache: FeatureCache, *, index: int = 0) -> StageData:
    learner = Learner.of(config, cache=cache)
    prepared = prepare_stages(config, cache=cache, renderer=learner.renderer)
    return make_stages(config, prepared, cache=cache, learner=learner)[index].data


def read_steps(
    stage: StageData, *, world: int, readers: int, first: int = 0
) -> list[list[list[tuple[str, ...]]]]:
    """Step -> rank -> pack -> ids of its items."""
    by_rank = []
    for rank in range(world):
        steps: dict[int, list[tuple[str, ...]]] = {}

        def make(job: Job, buffers: Buffers) -> tuple[Job, Batch]:
            return job, stage.batch(job.pack, buffers)

        with read_ahead(
            stage.jobs(first=first, rank=rank, world=world),
            make,
            num_threads=readers,
            depth=readers + 1,
        ) as batches:
            for result in batches:
                with result as (job, batch):
                    steps.setdefault(job.step, []).append(batch.item_ids)
                    assert job.is_last == (len(steps[job.step]) == 4 // world)
        by_rank.append([steps[step] for step in sorted(steps)])
    return [list(step) for step in zip(*by_rank, strict=True)]


def joined(step: list[list[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """The global batch: packs in their order over the ranks."""
    return [pack for packs in zip(*step, strict=True) for pack in packs]


def test_ranks_and_readers_see_the_same_global_batches(cache, said, tmp_path):
    config = config_of(tmp_path, said, *SMALL, "stages.align.steps=20")
    one = [joined(step) for step in read_steps(stage_of(config, cache), world=1, readers=0)]
    two = [joined(step) for step in read_steps(stage_of(config, cache), world=2, readers=2)]
    four = [joined(step) for step in read_steps(stage_of(config, cache), world=4, readers=1)]
    late = [
        joined(step) for step in read_steps(stage_of(config, cache), world=4, readers=1, first=9)
    ]
    assert len(one) == 20 and one == two == four
    assert late == one[9:]
    other = config_of(tmp_path, said, *SMALL, "stages.align.steps=20", "run.seed=1")
    assert [joined(step) for step in read_steps(stage_of(other, cache), world=1, readers=0)] != one


def test_an_epoch_has_everything_once(cache, said, tmp_path):
    config = config_of(tmp_path, said, *SMALL, "stages.align.steps=0", "stages.align.epochs=2")
    steps = read_steps(stage_of(config, cache), world=2, readers=1)
    ids = [item for step in steps for pack in joined(step) for item in pack if item]
    assert Counter(ids) == dict.fromkeys((f"a{number}" for number in range(40)), 2)
    assert all(len(packs) == 2 for step in steps for packs in step)


def test_what_a_step_has_is_known_before_it_is_read(cache, said, tmp_path):
    stage = stage_of(config_of(tmp_path, said, *SMALL), cache)
    jobs = list(stage.jobs(first=0, rank=0, world=1))
    for step in range(3):
        batches = [stage.batch(job.pack, Buffers()) for job in jobs if job.step == step]
        (job, *_) = [job for job in jobs if job.step == step]
        assert sum(batch.num_tokens for batch in batches) == job.num_tokens
        assert sum(batch.num_targets for batch in batches) == job.num_targets
        for batch in batches:
            starts = np.flatnonzero(batch.position_ids_L.numpy() == 0)
            assert len(starts) == len(batch.item_ids)


def test_items_that_are_too_long(cache, said, tmp_path):
    short = ("batch.tokens_per_pack=90",)
    with pytest.raises(AnnotationError, match="longer than") as caught:
        stage_of(config_of(tmp_path, said, *short), cache)
    assert "spread" in caught.value.hint
    dropped = stage_of(config_of(tmp_path, said, *short, "batch.on_long=drop"), cache)
    spread = stage_of(config_of(tmp_path, said, *short, "batch.on_long=spread"), cache)
    assert len(dropped.prepared.items) + dropped.prepared.report["too_long"] == 40
    assert len(dropped.prepared.items) < len(spread.prepared.items)
    assert spread.prepared.planned.lengths.max() <= 90
    whole = {item.id: item for item in stage_of(config_of(tmp_path, said), cache).prepared.items}
    thinned = [item for item in spread.prepared.items if item.id in whole and item.view is not None]
    assert any(len(item.view) < len(whole[item.id].view) for item in thinned)


def test_packs_must_be_dealt_evenly(said, tmp_path):
    with pytest.raises(ConfigError, match="multiple of the 3 ranks"):
        require_packs(config_of(tmp_path, said, *SMALL), world=3)
