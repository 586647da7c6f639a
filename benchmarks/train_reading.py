"""How fast a batch is read from a cache: beside raw `preadv`, webdataset and worker processes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing import Timing, measure_in_turn, temporary_folder
from benchmarks.train_cache import Kind, write_cache
from benchmarks.train_reading_ways import (
    AHEAD,
    OURS,
    RAW,
    WDS_BYTES,
    WDS_TUPLE,
    ways_of_reading,
)
from pipeline.cache import open_cache
from pipeline.layout import CacheLayout

LARGE = {"internvideo2": (4, 16, 16, 1024), "siglip": (4, 27, 27, 512)}
SMALL = {"internvideo2": (4, 4, 4, 64), "siglip": (4, 4, 4, 64)}
KINDS = (
    Kind(name="5 MB", streams=LARGE, dtype="float16", num_samples=120, clips_per_batch=30),
    Kind(name="5 MB as int8", streams=LARGE, dtype="int8", num_samples=120, clips_per_batch=30),
    Kind(
        name="16 kB",
        streams=SMALL,
        dtype="float16",
        num_samples=4096,
        clips_per_batch=128,
        preview_bytes=0,
    ),
)
TINY_KINDS = (
    Kind(name="16 kB", streams=SMALL, dtype="float16", num_samples=48, clips_per_batch=16),
    Kind(name="16 kB as int8", streams=SMALL, dtype="int8", num_samples=48, clips_per_batch=16),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The best of `ways` reaches `least` of the speed of `floor`."""

    kind: str
    ways: tuple[str, ...]
    floor: str
    least: float
    by: str
    """`wall` or `cpu`."""


TARGETS = tuple(
    Target(kind=kind, ways=(OURS, AHEAD), floor=floor, least=least, by=by)
    for kind in ("5 MB", "5 MB as int8")
    for floor, least in ((RAW, 0.9), (WDS_BYTES, 6.0), (WDS_TUPLE, 6.0))
    for by in ("wall", "cpu")
)


def measure_reading(
    kinds: tuple[Kind, ...], *, rounds: int, folder: Path | None, is_reliable: Callable[[], bool]
) -> dict[str, Any]:
    """Rows of all ways and kinds, and the targets; every way is checked before it is timed."""
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        with temporary_folder(folder) as place:
            layout = write_cache(kind, CacheLayout(place / "cache"))
            with (
                open_cache(layout.root) as cache,
                ways_of_reading(kind, cache) as (ways, num_bytes),
            ):
                timings = measure_in_turn(ways, rounds=rounds)
        rows += [
            _row(kind, way, timing, floor=timings[RAW], num_bytes=num_bytes)
            for way, timing in timings.items()
        ]
    return {"rows": rows, "targets": _verdicts(rows, is_reliable=is_reliable())}


def show_reading(report: dict[str, Any], *, is_reliable: bool) -> None:
    print(f"{'reading, warm':48}{'GB/s':>12}{'us a sample':>14}{'of raw':>14}")
    print(f"{'':48}{'wall':>6}{'CPU':>6}{'wall':>7}{'CPU':>7}{'wall':>7}{'CPU':>7}")
    for row in report["rows"]:
        ratio = f"{row['wall_ratio']:.2f}" if is_reliable else "-"
        print(
            f"{row['kind'] + ': ' + row['way']:48}"
            f"{row['gigabytes_per_wall_second']:6.2f}{row['gigabytes_per_cpu_second']:6.2f}"
            f"{row['wall_seconds']['median'] / row['num_samples'] * 1e6:7.0f}"
            f"{row['cpu_seconds']['median'] / row['num_samples'] * 1e6:7.0f}"
            f"{ratio:>7}{row['cpu_ratio']:7.2f}"
        )
    for target in report["targets"]:
        ways = " or ".join(target["ways"])
        print(
            f"{target['verdict']}: {target['kind']}: {ways} >= {target['least']:g} x"
            f" {target['floor']} by {target['by']}: {target['ratio']:.2f}"
        )


def _row(kind: Kind, way: str, timing: Timing, *, floor: Timing, num_bytes: int) -> dict[str, Any]:
    wall, cpu = statistics.median(timing.wall), statistics.median(timing.cpu)
    return {
        "kind": kind.name,
        "way": way,
        "num_samples": kind.num_samples,
        "num_bytes": num_bytes,
        "wall_seconds": timing.summary("wall"),
        "cpu_seconds": timing.summary("cpu"),
        "gigabytes_per_wall_second": num_bytes / wall / 1e9,
        "gigabytes_per_cpu_second": num_bytes / max(cpu, 1e-9) / 1e9,
        "wall_ratio": statistics.median(floor.wall) / wall,
        "cpu_ratio": statistics.median(floor.cpu) / max(cpu, 1e-9),
        "rounds": asdict(timing),
    }


def _verdicts(rows: list[dict[str, Any]], *, is_reliable: bool) -> list[dict[str, Any]]:
    seconds = {
        (row["kind"], row["way"], by): row[f"{by}_seconds"]["median"]
        for row in rows
        for by in ("wall", "cpu")
    }
    verdicts = []
    for target in TARGETS:
        kind, by = target.kind, target.by
        if (kind, target.floor, by) in seconds:
            best = min(seconds[kind, way, by] for way in target.ways)
            ratio = seconds[kind, target.floor, by] / best
            verdict = "met" if ratio >= target.least else "missed"
            if by == "wall" and not is_reliable:
                verdict = "unknown"
            verdicts.append(asdict(target) | {"ratio": ratio, "verdict": verdict})
    return verdicts
