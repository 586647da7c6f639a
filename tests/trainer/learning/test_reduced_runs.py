"""Runs that leave clips out: they learn, say which they kept, and are resumed like any other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cache import FeatureCache, open_cache
from tests.trainer.small_runs import config_of, lines_of, write_annotations, write_cache
from trainer.data.buffers import Buffers
from trainer.learning.training import TrainingRun
from trainer.model.reducing import num_kept

STEPS = ("stages.align.steps=2", "stages.tune.steps=2")
PRUNE = ("model.reduce.kind=prune", "model.reduce.keep=0.5")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureCache]:
    with open_cache(write_cache(tmp_path_factory.mktemp("cache"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_annotations(tmp_path_factory.mktemp("said") / "said.jsonl")


def figures_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_what_is_kept_is_counted_by_its_time(cache, said, tmp_path):
    run = TrainingRun(config_of(tmp_path, said, *STEPS, *PRUNE), cache=cache)
    before = [parameter.detach().clone() for parameter in run.model.reducer.parameters()]
    run.train()
    figures = figures_of(tmp_path)
    for stage in run.stages:
        jobs = list(stage.data.jobs(first=0, rank=0, world=1))
        for step in range(stage.data.num_steps):
            packs = [job.pack for job in jobs if job.step == step]
            views = [stage.data.prepared.items[item].view for p in packs for item in p.items]
            wanted = sum(num_kept(len(view), share=0.5) for view in views if view is not None)
            counts = figures[stage.first + step]["kept_by_time"]
            assert len(counts) == 10 and sum(counts) == wanted
    assert any(
        not np.array_equal(old.numpy(), new.detach().numpy())
        for old, new in zip(before, run.model.reducer.parameters(), strict=True)
    )


def test_lines_of_several_steps_are_sums(cache, said, tmp_path):
    """Each step alone, and all in one line."""
    for name, every in (("each", 1), ("all", 2)):
        options = (*STEPS, *PRUNE, f"run.log_every={every}")
        TrainingRun(config_of(tmp_path / name, said, *options), cache=cache).train()
    each, two = figures_of(tmp_path / "each"), figures_of(tmp_path / "all")
    counts = np.array([line["kept_by_time"] for line in each])
    assert [line["kept_by_time"] for line in two] == counts.reshape(2, 2, -1).sum(1).tolist()


def test_a_run_with_a_scorer_is_resumed_to_the_last_bit(cache, said, tmp_path):
    whole, half = tmp_path / "whole", tmp_path / "half"
    TrainingRun(config_of(whole, said, *STEPS, *PRUNE), cache=cache).train()
    shutil.copytree(whole, half)
    shutil.rmtree(half / "step-00000004")
    run = TrainingRun(config_of(half, said, *STEPS, *PRUNE), cache=cache)
    run.resume()
    assert run.done == 2
    run.train()
    assert lines_of(half) == lines_of(whole)


def test_clips_that_repeat_are_left_out_and_all_are_kept_where_none_may_repeat(
    cache, said, tmp_path
):
    """A threshold below every cosine keeps the first clip of each window."""
    similar = (*STEPS, "model.reduce.kind=similar", "model.reduce.threshold=-1.0")
    run = TrainingRun(config_of(tmp_path / "few", said, *similar), cache=cache)
    data = run.stages[0].data
    pack = data.packs.epoch(0)[0]
    batch = data.batch(pack, Buffers())
    losses = run.model(batch)
    items = set(batch.clip_item_C.tolist())
    assert losses.kept_C.sum() == len(items) < len(batch.clip_item_C)
    every = (*STEPS, "model.reduce.kind=similar", "model.reduce.threshold=1.0")
    run = TrainingRun(config_of(tmp_path / "all", said, *every), cache=cache)
    assert run.model(batch).kept_C.all()
    plain = TrainingRun(config_of(tmp_path / "plain", said, *STEPS), cache=cache)
    assert run.model(batch).tokens.item() == plain.model(batch).tokens.item()
    assert plain.model(batch).kept_C is None


def test_without_a_reducer_nothing_is_said_of_it(cache, said, tmp_path):
    TrainingRun(config_of(tmp_path, said, *STEPS), cache=cache).train()
    assert all("kept_by_time" not in line for line in figures_of(tmp_path))
