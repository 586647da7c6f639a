"""How long a run takes to begin, fresh and deep inside its third epoch, and what it reads before.

Whole commands first, `trainer resume` of runs that have one step to do: one that has no checkpoint
yet, which is the same as a fresh start, and one saved deep inside the third epoch. Then where the
seconds go within one process: the join, the checkpoint, the plan up to that step, the first batch.
Beside it, what it would take to go there by iteration, as loaders do whose order nobody can ask
for: seconds of each sample, times the samples until there.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import webdataset

from benchmarks.decode_files import run_measured
from benchmarks.encode_steps import spend
from benchmarks.timing import Spent, measure_in_turn, temporary_folder
from benchmarks.train_cache import Kind, write_cache
from benchmarks.train_runs import config_of, write_questions
from pipeline.cache import FeatureCache, open_cache
from pipeline.layout import CacheLayout
from trainer.config import TrainConfig
from trainer.data.buffers import Buffers
from trainer.learning.metrics_log import METRICS
from trainer.learning.run_folder import begin_run
from trainer.learning.training import TrainingRun

FRESH, RESUMED = "from the start, one step", "deep in epoch 3, one step"
MOST_OVER_FRESH = 1.25
"""Times the CPU seconds of a fresh start."""
DEPTH = 2.6
"""Epochs that are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeScope:
    """How much is measured."""

    kind: Kind
    num_rows: int
    """Of annotations: the items of an epoch."""
    is_test: bool = False
    """Each command once."""


FULL = ResumeScope(
    kind=Kind(
        name="0.6 MB a clip",
        streams={"internvideo2": (4, 14, 14, 384)},
        dtype="float16",
        num_samples=1200,
        clips_per_batch=0,
        clips_per_video=4,
        num_shards=12,
    ),
    num_rows=20_000,
)
TINY = ResumeScope(
    kind=Kind(
        name="16 kB a clip",
        streams={"internvideo2": (4, 4, 4, 64)},
        dtype="float16",
        num_samples=48,
        clips_per_batch=0,
        clips_per_video=4,
    ),
    num_rows=60,
    is_test=True,
)


def measure_resume(scope: ResumeScope, *, rounds: int, folder: Path | None) -> dict[str, Any]:
    """Rows of the commands and the steps inside them, what is read first, and the peers."""
    kind = scope.kind
    with temporary_folder(folder) as place:
        layout = write_cache(kind, CacheLayout(place / "cache"))
        num_videos = kind.num_samples // kind.clips_per_video
        questions = write_questions(
            place / "q.jsonl", num_videos=num_videos, num_rows=scope.num_rows
        )

        def config(name: str, steps: int) -> TrainConfig:
            return config_of(
                place / name,
                lm="tiny",
                questions=questions,
                steps=steps,
                batch={"tokens_per_pack": 1024, "packs": 4, "readers": 0},
                connector={"tokens_per_frame": 2.0, "depth": 1, "heads": 4},
            )

        fresh = config("fresh", 1)
        with open_cache(layout.root) as cache:
            packs_per_epoch = len(TrainingRun(fresh, cache=cache).stages[0].data.packs.epoch(0))
            step = int(packs_per_epoch * DEPTH) // 4
            resumed = config("resumed", step + 1)
            num_before = _save_at(resumed, cache, step)
            peers = _iterating(resumed, cache, step, num_before)
        starts = {
            FRESH: _start(fresh, layout, expected=0),
            RESUMED: _start(resumed, layout, expected=step),
        }
        timings = measure_in_turn(
            {
                FRESH: lambda: _command(fresh, layout, place / "out", is_saved=False),
                RESUMED: lambda: _command(resumed, layout, place / "out", is_saved=True),
            },
            rounds=1 if scope.is_test else rounds,
            num_dropped=0 if scope.is_test else 1,
        )
    cpu = {way: statistics.median(timing.cpu) for way, timing in timings.items()}
    ratio = cpu[RESUMED] / cpu[FRESH]
    return {
        "num_items": scope.num_rows,
        "step": step,
        "packs_per_epoch": packs_per_epoch,
        "samples_before": num_before,
        "commands": [
            {
                "way": way,
                "cpu_seconds": timing.summary("cpu"),
                "wall_seconds": timing.summary("wall"),
                "rounds": asdict(timing),
            }
            for way, timing in timings.items()
        ],
        "starts": starts,
        "peers": peers,
        "cpu_ratio": ratio,
        "verdict": "met" if ratio <= MOST_OVER_FRESH else "missed",
    }


def show_resume(report: dict[str, Any], *, is_reliable: bool) -> None:
    print(
        f"starting at step {report['step']:,} ({report['num_items']:,} items,"
        f" {report['packs_per_epoch']:,} packs an epoch)"
    )
    print(f"{'':46}{'CPU s':>10}{'wall s':>10}")
    for row in report["commands"]:
        wall = f"{row['wall_seconds']['median']:.2f}" if is_reliable else "-"
        print(f"{row['way']:46}{row['cpu_seconds']['median']:10.2f}{wall:>10}")
    for way, start in report["starts"].items():
        parts = ", ".join(f"{name} {spent[0]:.2f}" for name, spent in start["spent"].items())
        print(
            f"  {way}: {start['first_batch_cpu_seconds']:.2f} CPU s to the first batch ({parts});"
            f" its samples: {start['num_samples']}, tars opened before it:"
            f" {start['tars_opened_before']}"
        )
    for name, seconds in report["peers"].items():
        print(
            f"  by iteration, {name}: {seconds:.1f} CPU s for {report['samples_before']:,} samples"
        )
    print(
        f"{report['verdict']}: resume <= {MOST_OVER_FRESH:g} x a fresh start by CPU:"
        f" {report['cpu_ratio']:.2f}"
    )


class _ShortRun(TrainingRun):
    """A run that can be saved at a step without having come there."""

    def save_at(self, step: int) -> None:
        """As after that step, with the weights and moments of a first one that changed nothing."""
        (stage,) = self.stages
        optimizer = self.begin(stage)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        self.done = step
        self._save(stage, optimizer)


def _save_at(config: TrainConfig, cache: FeatureCache, step: int) -> int:
    """Begin a run and save it at a step: how many samples it would have read until there."""
    begin_run(config, cache=str(cache.layout.root))
    run = _ShortRun(config, cache=cache)
    run.save_at(step)
    (stage,) = run.stages
    items = stage.data.prepared.items
    packs = [pack for number in range(step) for pack in stage.data.packs.step(number)]
    return sum(len(items[i].view or ()) for pack in packs for i in pack.items)


def _start(config: TrainConfig, layout: CacheLayout, *, expected: int) -> dict[str, Any]:
    """Where the seconds go until the first batch is there, and what is read before it."""
    spent: dict[str, Spent] = {}
    made: dict[str, Any] = {}
    with open_cache(layout.root) as cache:
        spent["join and model"] = spend(lambda: made.update(run=TrainingRun(config, cache=cache)))
        run: TrainingRun = made["run"]
        spent["checkpoint"] = spend(run.resume)
        assert run.done == expected, (run.done, expected)
        (stage,) = run.stages
        jobs = stage.data.jobs(first=run.done, rank=0, world=1)
        spent["plan"] = spend(lambda: made.update(job=next(jobs)))
        before = _num_open(layout)
        pack = made["job"].pack
        spent["first batch"] = spend(lambda: made.update(batch=stage.data.batch(pack, Buffers())))
        assert _num_open(layout) > 0
        # The very items that an uninterrupted run would have here, by a plan made anew.
        planned = stage.data.packs.epoch(pack.epoch)
        first = expected * len(stage.data.packs.step(expected))
        first -= sum(len(stage.data.packs.epoch(epoch)) for epoch in range(pack.epoch))
        assert pack == planned[first], (pack, planned[first])
    return {
        "spent": spent,
        "first_batch_cpu_seconds": sum(one[0] for one in spent.values()),
        "epoch": pack.epoch,
        "num_samples": len(made["batch"].clip_item_C),
        "tars_opened_before": before,
    }


def _num_open(layout: CacheLayout) -> int:
    """Tars of the cache that this process has open; it closes none before the cache is closed."""
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # what has listed them is closed by now
            targets.append(link.readlink())
    return sum(Path(layout.shards) in target.parents for target in targets)


def _iterating(
    config: TrainConfig, cache: FeatureCache, step: int, num_before: int
) -> dict[str, float]:
    """CPU seconds to get to a step by reading all that comes before, from some of it."""
    tars = [str(cache.layout.tar(name)) for name in cache.extents.shard_names]
    names = [f"{name}.npy" for name in cache.streams]

    def read_webdataset() -> None:
        dataset = webdataset.WebDataset(tars, shardshuffle=False).decode().to_tuple(*names)
        assert sum(1 for _ in dataset) == len(cache)

    run = TrainingRun(config, cache=cache)
    (stage,) = run.stages
    buffers, num_steps, num_read = Buffers(), min(step, 20), 0

    def read_ours() -> None:
        nonlocal num_read
        for job in stage.data.jobs(first=0, rank=0, world=1):
            if job.step == num_steps:
                return
            buffers.clear()
            num_read += len(stage.data.batch(job.pack, buffers).clip_item_C)

    by_webdataset = spend(read_webdataset)[0] / len(cache)
    by_ours = spend(read_ours)[0] / max(1, num_read)
    return {
        "webdataset, decoded": by_webdataset * num_before,
        "our own batches": by_ours * num_before,
    }


def _command(config: TrainConfig, layout: CacheLayout, out: Path, *, is_saved: bool) -> Spent:
    """`trainer resume` of a copy of the run, or of one that has no checkpoint yet."""
    shutil.rmtree(out, ignore_errors=True)
    if is_saved:
        shutil.copytree(config.run.out, out)
    else:
        begin_run(replace(config, run=replace(config.run, out=str(out))), cache=str(layout.root))
    command = [sys.executable, "-m", "trainer", "resume", str(out), "--device", "cpu", "--quiet"]
    cpu, wall, _ = run_measured(command)
    lines = (out / METRICS).read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == [config.stages[0].steps], steps
    return cpu, wall
