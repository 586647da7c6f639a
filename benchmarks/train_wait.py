"""What share of a step a run waits for data: beside batches held in memory, and webdataset.

Each way is a TrainingRun of the same config whose losses are the same to the last bit; only where
its clips come from differs. The share is of the run's own log, without the first step, before which
nothing can have been read. CPU seconds are of the whole run, with its threads and worker processes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing import Spent, Timing, measure_in_turn, temporary_folder
from benchmarks.train_cache import Kind, write_cache
from benchmarks.train_feeding import HeldReader, WebdatasetReader, write_in_order
from benchmarks.train_runs import LmSize, config_of, run_of, train_until, write_lm, write_questions
from pipeline.cache import FeatureCache, open_cache
from pipeline.layout import CacheLayout
from trainer.config import TrainConfig

HELD, OURS = "batches held in memory", "2 reader threads"
WEBDATASET = "webdataset, DataLoader of 2 processes"
MOST_WAIT = 0.02
CLIPS_PER_VIDEO = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitScope:
    """How much is measured."""

    kinds: tuple[Kind, ...]
    lm: LmSize
    steps: int
    """Of a run; the first is not counted."""
    tokens_per_pack: int = 1024
    tokens_per_frame: float = 16.0


def _kind(name: str, streams: dict[str, tuple[int, ...]], *, num_samples: int) -> Kind:
    return Kind(
        name=name,
        streams=streams,
        dtype="float16",
        num_samples=num_samples,
        clips_per_batch=0,
        clips_per_video=CLIPS_PER_VIDEO,
    )


FULL = WaitScope(
    kinds=(
        _kind("0.6 MB a clip", {"internvideo2": (4, 14, 14, 384)}, num_samples=96),
        _kind(
            "5 MB a clip",
            {"internvideo2": (4, 16, 16, 1024), "siglip": (4, 27, 27, 512)},
            num_samples=96,
        ),
    ),
    lm=LmSize(width=256, num_layers=8, mlp_width=768, num_heads=4),
    steps=5,
)
TINY = WaitScope(
    kinds=(_kind("16 kB a clip", {"internvideo2": (4, 4, 4, 64)}, num_samples=96),),
    lm=LmSize(width=32, num_layers=1, mlp_width=64, num_heads=2, vocabulary=300),
    steps=3,
    tokens_per_frame=4.0,
)


def measure_wait(
    scope: WaitScope, *, rounds: int, folder: Path | None, is_reliable: Callable[[], bool]
) -> dict[str, Any]:
    """Rows of all kinds and ways, and whether ours waits as little as it should."""
    rows: list[dict[str, Any]] = []
    for kind in scope.kinds:
        with temporary_folder(folder) as place:
            num_parameters = write_lm(place / "lm", scope.lm)
            layout = write_cache(kind, CacheLayout(place / "cache"))
            with open_cache(layout.root) as cache:
                rows += _rows(scope, kind, cache, place, rounds=rounds)
    targets = [
        {
            "kind": row["kind"],
            "most": MOST_WAIT,
            "wait_share": row["wait_share"],
            "verdict": ("met" if row["wait_share"] <= MOST_WAIT else "missed")
            if is_reliable()
            else "unknown",
        }
        for row in rows
        if row["way"] == OURS
    ]
    return {"lm_parameters": num_parameters, "rows": rows, "targets": targets}


def show_wait(report: dict[str, Any]) -> None:
    millions = report["lm_parameters"] / 1e6
    print(
        f"{f'waiting for data, LM of {millions:.0f} M':52}{'s a step':>16}{'wait':>8}{'CPU of':>8}"
    )
    print(f"{'':52}{'wall':>8}{'CPU':>8}{'share':>8}{'held':>8}")
    for row in report["rows"]:
        wall, cpu = (row[f"{by}_seconds"]["median"] / row["steps"] for by in ("wall", "cpu"))
        print(
            f"{row['kind'] + ': ' + row['way']:52}"
            f"{wall:8.2f}{cpu:8.2f}"
            f"{row['wait_share']:8.2%}{row['cpu_ratio']:8.3f}"
        )
    for target in report["targets"]:
        print(
            f"{target['verdict']}: {target['kind']}: waits <= {target['most']:.0%} of a step:"
            f" {target['wait_share']:.2%}"
        )


def _rows(
    scope: WaitScope, kind: Kind, cache: FeatureCache, place: Path, *, rounds: int
) -> list[dict[str, Any]]:
    num_videos = kind.num_samples // CLIPS_PER_VIDEO
    questions = write_questions(place / "q.jsonl", num_videos=num_videos, num_rows=num_videos)

    def config(way: str, readers: int) -> TrainConfig:
        return config_of(
            place / way,
            lm=str(place / "lm"),
            questions=questions,
            steps=scope.steps,
            batch={"tokens_per_pack": scope.tokens_per_pack, "packs": 1, "readers": readers},
            connector={"tokens_per_frame": scope.tokens_per_frame, "depth": 1, "heads": 2},
        )

    logs: dict[str, list[list[dict[str, Any]]]] = {HELD: [], OURS: [], WEBDATASET: []}
    held = HeldReader(cache)

    def train_held() -> Spent:
        spent, log = train_until(run_of(config("held", 0), cache, reader=held), scope.steps)
        logs[HELD].append(log)
        return spent

    def train_ours() -> Spent:
        spent, log = train_until(run_of(config("ours", 2), cache), scope.steps)
        logs[OURS].append(log)
        return spent

    train_held()  # what it holds, and the order of the samples
    tars = write_in_order(cache, held.rows, place / "in-order")

    def train_webdataset() -> Spent:
        with WebdatasetReader(cache, tars) as reader:
            # One thread, or batches would take samples from each other.
            run = run_of(config("webdataset", 1), cache, reader=reader)
            spent, log = train_until(run, scope.steps, cpu_elsewhere=reader.cpu_seconds)
        logs[WEBDATASET].append(log)
        return spent

    timings = measure_in_turn(
        {HELD: train_held, OURS: train_ours, WEBDATASET: train_webdataset}, rounds=rounds
    )
    losses = {tuple(line["loss"] for line in log) for runs in logs.values() for log in runs}
    assert len(losses) == 1, f"{kind.name}: other batches: {losses}"
    floor = statistics.median(timings[HELD].cpu)
    return [
        _row(scope, kind, way, timing, logs=logs[way][-(rounds - 1) :], floor=floor)
        for way, timing in timings.items()
    ]


def _row(
    scope: WaitScope,
    kind: Kind,
    way: str,
    timing: Timing,
    *,
    logs: list[list[dict[str, Any]]],
    floor: float,
) -> dict[str, Any]:
    steady = [line for log in logs for line in log[1:]]
    seconds = sum(line["seconds"] for line in steady)
    return {
        "kind": kind.name,
        "way": way,
        "steps": scope.steps,
        "wait_share": sum(line["wait_seconds"] for line in steady) / seconds,
        "first_wait_seconds": statistics.median(log[0]["wait_seconds"] for log in logs),
        "wall_seconds": timing.summary("wall"),
        "cpu_seconds": timing.summary("cpu"),
        "cpu_ratio": statistics.median(timing.cpu) / floor,
        "rounds": asdict(timing),
    }
