"""Sampling the frames of a file, beside bare ffmpeg, PyAV and decord; start-up, scaling, memory.

    python -m benchmarks.decode [--quick] [--only PATTERN] [--folder FOLDER] [--corpus FOLDER]

Every way is a process of its own with one thread; its CPU seconds are user and system of that
process and its children, less what its start costs: the interpreter with the same imports, as it
says itself, and for ffmpeg the median of runs of `-version`. Wall seconds hold the start. Each way
once a round, in shuffled order; the first round is dropped. Before a file is timed, times and
pixels of ours are compared with those of decoding every frame. Prints tables and writes
bench-results/decode.json. The clips stay in FOLDER; without one they are made each time.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import imageio_ffmpeg

from benchmarks import decode_pool
from benchmarks.clips import FULL, LONG, QUICK, TINY, Recording, make_recording
from benchmarks.decode_files import BARE, FLOOR, FileBench
from benchmarks.decode_pool import PoolScope
from benchmarks.decode_ways import OURS
from benchmarks.timing import LoadWatch, clip_folder, write_report

RESULTS = Path("bench-results") / "decode.json"
CORPUS = ("chaplin.mp4", "llamafactory_1.mp4", "bigbuckbunny.mp4", "rails_video.webm")
"""Real videos that are measured where there are such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much is measured."""

    recordings: tuple[Recording, ...]
    corpus: tuple[str, ...]
    rates: tuple[float, ...]
    """Samples a second; at the first one all ways are measured, at others ours and the floor."""
    rounds: int
    pool: PoolScope


SCOPES = {
    "full": Scope(
        recordings=FULL,
        corpus=CORPUS,
        rates=(2.0, 1.0, 0.5),
        rounds=4,
        pool=PoolScope(
            num_files=300, recording=LONG, scaling_seconds=240, rounds=4, memory_minutes=60
        ),
    ),
    "quick": Scope(
        recordings=QUICK,
        corpus=CORPUS[:1],
        rates=(2.0,),
        rounds=3,
        pool=PoolScope(
            num_files=100, recording=QUICK[-1], scaling_seconds=48, rounds=2, memory_minutes=10
        ),
    ),
    "tiny": Scope(
        recordings=(TINY,),
        corpus=(),
        rates=(2.0,),
        rounds=2,
        pool=PoolScope(num_files=5, recording=TINY, scaling_seconds=4, rounds=2, memory_minutes=2),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Ours takes at most `most` of the CPU seconds of FLOOR."""

    pattern: str
    """Of the names of files."""
    fps: float
    most: float


TARGETS = (
    Target(pattern="h264_1080p_b3_gop250*", fps=2.0, most=0.65),
    Target(pattern="h264_360p_b3_gop250*", fps=2.0, most=0.75),
    # Nothing can be skipped in these.
    Target(pattern="h264_*_b0_gop250*", fps=2.0, most=1.0),
    Target(pattern="vp9_*", fps=2.0, most=1.0),
    Target(pattern="av1_*", fps=2.0, most=1.0),
    Target(pattern="h264_*_gop30*", fps=0.5, most=0.45),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const="quick", dest="scope", default="full")
    size.add_argument("--tiny", action="store_const", const="tiny", dest="scope", help="a test")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="of files: h264_360p*")
    parser.add_argument("--part", choices=("files", "pool"), help="only this; default: both")
    parser.add_argument("--folder", type=Path, help="where the clips stay")
    corpus = os.environ.get("CORPUS_DIR")
    parser.add_argument("--corpus", type=Path, default=corpus, help="folder of real videos")
    parser.add_argument("--rounds", type=int, help="the first is dropped")
    parser.add_argument("--decord-python", default=sys.executable, help="one that imports decord")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    options = parser.parse_args()
    scope = SCOPES[options.scope]
    rounds = options.rounds or scope.rounds
    if rounds < 2:
        parser.error("--rounds: at least 2")
    watch = LoadWatch()
    rows: list[dict[str, Any]] = []
    pool: dict[str, Any] = {}
    with clip_folder(options.folder) as folder:
        if options.part != "pool":
            bench = FileBench(rounds=rounds, decord_python=options.decord_python)
            for path in _files(scope, folder, only=options.only, corpus=options.corpus):
                for fps in scope.rates:
                    # Ways that decode everything take the same at every rate.
                    measured = bench.measure(path, fps, all_ways=fps == scope.rates[0])
                    show_rows(measured)
                    rows += measured
        if options.part != "files":
            pool = decode_pool.measure(folder, scope.pool, watch=watch)
            decode_pool.show(pool)
    reliable = watch.look()
    report = {
        "name": "decode",
        "num_rounds": rounds - 1,
        "num_cores": watch.num_cores,
        "load_average": watch.load,
        "wall_ratios_reliable": reliable,
        "python": platform.python_version(),
        "ffmpeg": imageio_ffmpeg.get_ffmpeg_version(),
        "rows": rows,
        "targets": judge(rows),
        **pool,
    }
    write_report(report, options.json)
    show_verdicts(report)


def _files(scope: Scope, folder: Path, *, only: str, corpus: Path | None) -> Iterator[Path]:
    for recording in scope.recordings:
        if fnmatch.fnmatch(recording.name, only):
            yield make_recording(recording, folder)
    for name in scope.corpus if corpus else ():
        path = (corpus or folder) / name
        if fnmatch.fnmatch(name, only) and path.exists():
            yield path


def judge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The verdict of each target for each file that it is of."""
    return [
        asdict(target)
        | {"file": row["file"], "ratio": row["cpu_ratio"]}
        | {"verdict": "met" if row["cpu_ratio"] <= target.most else "missed"}
        for target in TARGETS
        for row in rows
        if row["way"] == OURS
        and row["fps"] == target.fps
        and fnmatch.fnmatch(row["file"], target.pattern)
    ]


def show_rows(rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    print(f"\n{first['file']} at {first['fps']:g} fps, {first['num_samples']} samples")
    print(f"{'':22}{'CPU s':>8}{'min':>8}{'wall s':>8}   CPU x {FLOOR} (x {BARE})")
    for row in rows:
        if row["note"]:
            print(f"{row['way']:22}{row['note']}")
            continue
        cpu, wall = row["cpu_seconds"], row["wall_seconds"]
        bare = f" ({row['cpu_ratio_to_bare']:.2f})" if row["cpu_ratio_to_bare"] else ""
        order = "" if row["order"] in (None, "selected") else f"  order: {row['order']}"
        print(
            f"{row['way']:22}{cpu['median']:8.3f}{cpu['minimum']:8.3f}{wall['median']:8.2f}"
            f"   {row['cpu_ratio']:.2f}{bare}{order}",
            flush=True,
        )


def show_verdicts(report: dict[str, Any]) -> None:
    print()
    for target in report["targets"]:
        print(
            f"{target['verdict']}: {target['file']} at {target['fps']:g} fps:"
            f" {target['ratio']:.2f}, at most {target['most']:.2f} x {FLOOR} by CPU seconds"
        )
    for target in report.get("pool_targets", ()):
        print(f"{target['verdict']}: {target['name']}: {target['value']:.2f}, {target['wanted']}")
    print(f"{report['num_cores']} cores, load up to {report['load_average']:.2f}")
    if not report["wall_ratios_reliable"]:
        print("More load than cores: no wall seconds can be relied on.")


if __name__ == "__main__":
    main()
