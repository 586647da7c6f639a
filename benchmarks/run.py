"""`pipeline run` as a whole: beside bare ffmpeg, what it needs to start, a video more, a restart.

    python -m benchmarks.run [--quick] [--folder FOLDER]

The recipe is `tiny`, whose encoders cost next to nothing. CPU seconds are user and system of the
whole tree of processes; memory is the largest sum of what its processes hold at once, shared pages
counted once (PSS). Prints a table and writes bench-results/run.json.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clips import LONG, TINY, first_frames, lengthen, make_recording
from benchmarks.decode_files import ROOT, floor_command, run_measured
from benchmarks.timing import LoadWatch, Spent, clip_folder, measure_in_turn, write_report

RESULTS = Path("bench-results") / "run.json"
FPS = 2.0
RUN, FLOOR, START, PLAIN, RESUME = "run", "ffmpeg", "one second", "plain loop", "run again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much is measured."""

    seconds: int
    """Of each of the six videos beside ffmpeg."""
    num_short: int
    """Videos of a second, for what one video more costs."""
    num_finished: int
    """Videos of the cache that is run again."""
    memory_minutes: int
    rounds: int


SCOPES = {
    "full": Scope(seconds=60, num_short=300, num_finished=10_000, memory_minutes=60, rounds=4),
    "quick": Scope(seconds=20, num_short=40, num_finished=40, memory_minutes=3, rounds=2),
    "tiny": Scope(seconds=2, num_short=3, num_finished=3, memory_minutes=1, rounds=2),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--quick", action="store_true", help="a minute or two")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where the clips stay")
    options = parser.parse_args(arguments)
    scope = SCOPES["tiny" if options.tiny else "quick" if options.quick else "full"]
    load = LoadWatch()
    with clip_folder(options.folder) as folder:
        report: dict[str, Any] = {
            "beside_ffmpeg": beside_ffmpeg(folder, scope),
            "a_video_more": a_video_more(folder, scope),
            "run_again": run_again(folder, scope),
            "memory": memory(folder, scope),
        }
    report["load"] = load.load
    quiet = load.look()
    _print(report, quiet=quiet)
    write_report(report, RESULTS)


def beside_ffmpeg(folder: Path, scope: Scope) -> dict[str, Any]:
    """Six videos of 360 lines: the run, with and without its start, over ffmpeg's own sampling."""
    source = make_recording(TINY if scope.seconds < 10 else LONG, folder)
    videos = folder / f"six-{scope.seconds}"
    videos.mkdir(exist_ok=True)
    for number in range(6):  # no two may be the same
        shutil.copy(lengthen(source, scope.seconds + number), videos)
    cache = folder / "cache-six"
    one_each = ("--decoders", "1")
    ways: dict[str, Callable[[], Spent]] = {
        RUN: lambda: _run(videos, cache, fresh=True),
        "1 worker": lambda: _run(videos, cache, *one_each, fresh=True),
        "2 workers": lambda: _run(videos, cache, "--workers", "2", *one_each, fresh=True),
        "2 workers, start": lambda: _run(
            _short_videos(folder, 2),
            folder / "cache-two",
            *("--workers", "2", *one_each, "--set", "shards.max_seconds=1"),
            fresh=True,
        ),
        START: lambda: _run(_short_videos(folder, 1), folder / "cache-one", fresh=True),
        FLOOR: functools.partial(_ffmpeg, videos),
    }
    timings = measure_in_turn(ways, rounds=scope.rounds)
    cpu = {name: statistics.median(timing.cpu) for name, timing in timings.items()}
    wall = {name: statistics.median(timing.wall) for name, timing in timings.items()}
    return {
        "seconds_of_video": 6 * scope.seconds + 15,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "cpu_ratio": cpu[RUN] / cpu[FLOOR],
        "cpu_ratio_without_start": (cpu[RUN] - cpu[START]) / cpu[FLOOR],
        "wall_ratio_2_workers": (wall["1 worker"] - wall[START])
        / (wall["2 workers"] - wall["2 workers, start"]),
    }


def a_video_more(folder: Path, scope: Scope) -> dict[str, Any]:
    """Videos of a second: what the run spends on each beyond a plain loop of probe and build."""
    videos, one = _short_videos(folder, scope.num_short), _short_videos(folder, 1)
    cache = folder / "cache-short"
    ways: dict[str, Callable[[], Spent]] = {
        RUN: lambda: _run(videos, cache, fresh=True),
        START: lambda: _run(one, folder / "cache-one", fresh=True),
        PLAIN: lambda: run_measured(_self("--plain", videos))[:2],
        "plain start": lambda: run_measured(_self("--plain", one))[:2],
    }
    timings = measure_in_turn(ways, rounds=scope.rounds)
    cpu = {name: statistics.median(timing.cpu) for name, timing in timings.items()}
    more = (cpu[RUN] - cpu[START]) - (cpu[PLAIN] - cpu["plain start"])
    return {
        "num_videos": scope.num_short,
        "cpu_seconds": cpu,
        "overhead_ms_a_video": 1000 * more / (scope.num_short - 1),
    }


def run_again(folder: Path, scope: Scope) -> dict[str, Any]:
    """A finished cache of many videos is run again: nothing is to do."""
    videos = _short_videos(folder, scope.num_finished)
    cache = folder / f"cache-finished-{scope.num_finished}"
    _run(videos, cache, fresh=False)
    ways: dict[str, Callable[[], Spent]] = {RESUME: lambda: _run(videos, cache, fresh=False)}
    timing = measure_in_turn(ways, rounds=max(2, scope.rounds))[RESUME]
    return {
        "num_videos": scope.num_finished,
        "cpu_seconds": statistics.median(timing.cpu),
        "wall_seconds": statistics.median(timing.wall),
    }


def memory(folder: Path, scope: Scope) -> dict[str, Any]:
    """The most that a run holds, for one video of a minute and for one of many."""
    source = make_recording(LONG if scope.memory_minutes > 1 else TINY, folder)
    peaks = {}
    for minutes in (1, scope.memory_minutes):
        videos = folder / f"long-{minutes}"
        videos.mkdir(exist_ok=True)
        shutil.copy(lengthen(source, 60 * minutes if scope.memory_minutes > 1 else 2), videos)
        command = _pipeline(videos, folder / "cache-long", fresh=True)
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            with _peak_of_tree(process.pid) as peak:
                process.wait()
            assert process.returncode == 0, command
        peaks[minutes] = peak[0]
    return {"peak_mb": peaks}


def plain_loop(folder: Path) -> None:
    """What a run does, as a loop of plain functions in one process."""
    import tempfile

    from pipeline.encoding import StreamEncoders, stamp_streams
    from pipeline.layout import CacheLayout
    from pipeline.planning import estimate_clip_bytes, extend_plan
    from pipeline.pool import DecoderPool, num_cores
    from pipeline.probing import probe_source
    from pipeline.sharding import BuildTools, build_shard
    from pipeline.sources import read_sources
    from schemas.recipe import Recipe

    recipe = Recipe.load("tiny")
    sources = read_sources([str(folder)]).sources
    with (
        DecoderPool(recipe.limits, num_processes=num_cores()) as pool,
        tempfile.TemporaryDirectory() as cache,
    ):
        pool.spawn()
        probes = [
            probe_source(source, limits=recipe.limits, process=pool.processes[0])
            for source in sources
        ]
        specs = extend_plan(
            probes,
            recipe=recipe,
            recipe_fingerprint=recipe.fingerprint(stamp_streams(recipe)),
            clip_bytes=estimate_clip_bytes(recipe, stamp_streams(recipe)),
            existing=[],
        )
        tools = BuildTools(
            recipe=recipe,
            layout=CacheLayout(Path(cache)),
            encoders=StreamEncoders(recipe),
            pool=pool,
        )
        for spec in specs:
            build_shard(spec, tools=tools)


def _short_videos(folder: Path, count: int) -> Path:
    videos = folder / f"short-{count}"
    videos.mkdir(exist_ok=True)
    second = first_frames(make_recording(TINY, folder), 25, folder / "second.mp4").read_bytes()
    for number in range(count):
        # A box of a kind that players skip makes each file another one.
        box = (16).to_bytes(4, "big") + b"free" + number.to_bytes(8, "big")
        path = videos / f"{number:06d}.mp4"
        if not path.exists():
            path.write_bytes(second + box)
    return videos


def _run(videos: Path, cache: Path, *more: str, fresh: bool) -> Spent:
    cpu, wall, output = run_measured(_pipeline(videos, cache, *more, fresh=fresh))
    assert not json.loads(output)["rejected"], output
    return cpu, wall


def _pipeline(videos: Path, cache: Path, *more: str, fresh: bool) -> list[str]:
    if fresh and cache.exists():
        shutil.rmtree(cache)
    command = ["-m", "pipeline", "run", str(videos), str(cache), "--recipe", "tiny", *more]
    return [sys.executable, *command, "--json", "-q"]


def _ffmpeg(videos: Path) -> Spent:
    spent = [run_measured(floor_command(path, FPS))[:2] for path in sorted(videos.iterdir())]
    return sum(cpu for cpu, _ in spent), sum(wall for _, wall in spent)


def _self(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.run", *map(str, arguments)]


@contextlib.contextmanager
def _peak_of_tree(pid: int) -> Iterator[list[float]]:
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            peak[0] = max(peak[0], sum(map(_pss_mb, _tree(pid))))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def _tree(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            stat = Path(f"/proc/{int(entry.name)}/stat").read_text()
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def _pss_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _print(report: dict[str, Any], *, quiet: bool) -> None:
    six, short, again = report["beside_ffmpeg"], report["a_video_more"], report["run_again"]
    cpu, wall = six["cpu_seconds"], six["wall_seconds"]
    rows = [
        ("six videos over ffmpeg, CPU", f"{six['cpu_ratio']:.2f} x", "1.3"),
        ("  without what a run needs to start", f"{six['cpu_ratio_without_start']:.2f} x", ""),
        ("start: a run of one second of video", f"{cpu[START]:.1f} CPU s, {wall[START]:.1f} s", ""),
        ("one worker over two, start apart, wall", f"{six['wall_ratio_2_workers']:.2f} x", "1.8"),
        ("a video more, over a plain loop", f"{short['overhead_ms_a_video']:.1f} CPU ms", "5"),
        (f"{again['num_videos']:,} videos, run again", f"{again['wall_seconds']:.1f} s", "3"),
        *(
            (f"peak memory, {minutes} minutes", f"{peak:.0f} MB", "400")
            for minutes, peak in report["memory"]["peak_mb"].items()
        ),
    ]
    for what, found, target in rows:
        if not quiet and "wall" in what:
            found = "not told: the machine was busy"
        print(f"{what:40}{found:>32}  {'target ' + target if target else ''}".rstrip())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plain"]:
        plain_loop(Path(sys.argv[2]))
    else:
        main()
