"""`pipeline run` as a whole, beside decoding the same pieces and the bare forward of as many clips.

All are CPU seconds of whole trees of processes. Start-up is what the same command takes for one
video of one clip; it is taken off both the run and the decode floor, with that clip's own work.
What a run does for each further video, such as reading its packets for the plan, stays in it. So

    ratio = (run(N clips) - run(1 clip)) / (decode(N) - decode(1) + forward of N - 1 clips)
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.clips import Recording, first_frames, lengthen, make_recording
from benchmarks.decode_files import run_measured
from benchmarks.timing import Spent, measure_in_turn

RUN, DECODE, ENCODE = "pipeline run", "decode floor", "encode floor"
CLIP_SECONDS = 2
SHORT_FRAMES = 40
"""Of 25 a second: less than two clips, whatever order they lie in."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCase:
    """A recipe and the videos that it is measured on."""

    name: str
    streams: dict[str, dict[str, Any]]
    recording: Recording
    num_videos: int
    seconds: int
    """Of the shortest; each next one is a clip longer, for no two may be the same."""

    @property
    def recipe(self) -> str:
        lines = [f'name = "{self.name}"', "[sampling]", "fps = 2.0", "frames_per_clip = 4"]
        for stream, settings in self.streams.items():
            lines += [f"[streams.{stream}]"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        return "\n".join(lines) + "\n"


def measure_case(case: RunCase, folder: Path, *, rounds: int) -> dict[str, Any]:
    """One row; the first round is dropped."""
    home = folder / case.name
    sets = _make_videos(case, home, folder)
    recipe = home / "recipe.toml"
    recipe.write_text(case.recipe)
    caches = {size: home / f"cache-{size}" for size in sets}
    num_clips = {
        size: _pipeline_run(videos, caches[size], recipe)[2] for size, videos in sets.items()
    }
    assert num_clips["one"] == 1 < num_clips["all"], num_clips
    ways: dict[str, Callable[[], Spent]] = {}
    for size, videos in sets.items():
        ways[f"{RUN}, {size}"] = lambda videos=videos, size=size: _pipeline_run(
            videos, caches[size], recipe
        )[:2]
        ways[f"{DECODE}, {size}"] = lambda size=size: _decode_floor(caches[size], num_clips[size])
    ways[ENCODE] = lambda: _encode_floor(caches["all"], num_clips["all"] - 1)
    timings = measure_in_turn(ways, rounds=rounds)
    cpu = {way: statistics.median(timing.cpu) for way, timing in timings.items()}
    run = cpu[f"{RUN}, all"] - cpu[f"{RUN}, one"]
    decode = cpu[f"{DECODE}, all"] - cpu[f"{DECODE}, one"]
    return {
        "case": case.name,
        "num_clips": num_clips["all"],
        "start_cpu_seconds": cpu[f"{RUN}, one"],
        "run_cpu_seconds": run,
        "decode_cpu_seconds": decode,
        "encode_cpu_seconds": cpu[ENCODE],
        "run_wall_seconds": statistics.median(timings[f"{RUN}, all"].wall),
        "cpu_ratio": run / (decode + cpu[ENCODE]),
        "rounds": {way: asdict(timing) for way, timing in timings.items()},
    }


def _make_videos(case: RunCase, home: Path, folder: Path) -> dict[str, Path]:
    sets = {size: home / f"videos-{size}" for size in ("one", "all")}
    for videos in sets.values():
        videos.mkdir(parents=True, exist_ok=True)
    source = make_recording(case.recording, folder)
    short = first_frames(source, SHORT_FRAMES, folder / f"{source.stem}_one_clip.mp4")
    shutil.copy(short, sets["one"])
    for number in range(case.num_videos):
        shutil.copy(lengthen(source, case.seconds + CLIP_SECONDS * number), sets["all"])
    return sets


def _pipeline_run(videos: Path, cache: Path, recipe: Path) -> tuple[float, float, int]:
    if cache.exists():
        shutil.rmtree(cache)
    command = ["pipeline", "run", str(videos), str(cache), "--recipe", str(recipe)]
    # As a user runs it: with the threads that it chooses by itself.
    environment = {name: value for name, value in os.environ.items() if name not in _THREADS}
    cpu, wall, output = run_measured(
        [sys.executable, "-m", *command, "--device", "cpu", "--json", "-q"],
        environment=environment,
    )
    report = json.loads(output)
    assert not report["rejected"], report
    return cpu, wall, report["clips"]


def _decode_floor(cache: Path, num_clips: int) -> Spent:
    cpu, wall, output = run_measured(_floor("decode", cache))
    found = json.loads(output)["num_clips"]
    assert found == num_clips, (found, num_clips)
    return cpu, wall


def _encode_floor(cache: Path, num_clips: int) -> Spent:
    _, wall, output = run_measured(_floor("encode", cache, str(num_clips)))
    return json.loads(output)["cpu_seconds"], wall


def _floor(what: str, cache: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.encode_floors", what, str(cache), *more]
