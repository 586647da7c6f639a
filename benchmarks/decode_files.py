"""The ways of sampling one file, each a process of its own: run, compared and timed in turn."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import imageio_ffmpeg

from benchmarks.decode_ways import ALL, APOLLO, DECORD, OURS, SIZE
from benchmarks.timing import Spent, Timing, measure_in_turn

ROOT = Path(__file__).resolve().parents[1]
BARE, FLOOR = "ffmpeg, not scaled", "ffmpeg"
EMPTY_ROUNDS = 8
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class FileBench:
    """Measures files one after the other."""

    def __init__(self, *, rounds: int, decord_python: str) -> None:
        self._rounds = rounds
        self._pythons = {
            OURS: sys.executable,
            APOLLO: sys.executable,
            ALL: sys.executable,
            DECORD: decord_python,
        }
        self._has_decord = _succeeds(self._python(DECORD, "none", 0))
        version = _ffmpeg_command("-version")
        starts = [run_measured(version)[0] for _ in range(EMPTY_ROUNDS)]
        self._ffmpeg_start_seconds = statistics.median(starts)

    def measure(self, path: Path, fps: float, *, all_ways: bool) -> list[dict[str, Any]]:
        """Rows of a report. AssertionError: ours gives other times or pixels than all frames."""
        num_samples, order = self._check_same(path, fps)
        names = [BARE, FLOOR, OURS, APOLLO, ALL] if all_ways else [FLOOR, OURS]
        if all_ways and self._has_decord and _succeeds(self._python(DECORD, path, fps)):
            names.append(DECORD)
        runs: dict[str, Callable[[], Spent]] = {
            name: functools.partial(self._run, name, path, fps) for name in names
        }
        timings = measure_in_turn(runs, rounds=self._rounds)
        floors = {
            name: statistics.median(timings[name].cpu) for name in (BARE, FLOOR) if name in timings
        }
        rows = []
        for name, timing in timings.items():
            row = _row(path, fps, name, num_samples) | _ratios(timing, floors)
            row["order"] = order if name in (OURS, APOLLO) else None
            rows.append(row)
        if all_ways and DECORD not in timings:
            note = "cannot read the file" if self._has_decord else "is not installed"
            rows.append(_row(path, fps, DECORD, num_samples) | {"note": note})
        return rows

    def _check_same(self, path: Path, fps: float) -> tuple[int, str]:
        answers = [
            json.loads(subprocess.check_output(command, cwd=ROOT, env=_environment()))
            for command in ([*self._python(way, path, fps), "--digest"] for way in (OURS, ALL))
        ]
        ours, every = answers
        assert ours["num_samples"] == every["num_samples"] > 0, (path, answers)
        assert ours["digest"] == every["digest"], (path, answers)
        return ours["num_samples"], ours["order"]

    def _run(self, way: str, path: Path, fps: float) -> Spent:
        if way in (BARE, FLOOR):
            command = (_bare_command if way == BARE else floor_command)(path, fps)
            cpu, wall, _ = run_measured(command)
            return cpu - self._ffmpeg_start_seconds, wall
        cpu, wall, output = run_measured(self._python(way, path, fps))
        return cpu - json.loads(output)["start_cpu_seconds"], wall

    def _python(self, way: str, path: Path | str, fps: float) -> list[str]:
        return [self._pythons[way], "-m", "benchmarks.decode_ways", way, str(path), str(fps)]


def run_measured(
    command: list[str], *, environment: dict[str, str] | None = None
) -> tuple[float, float, bytes]:
    """(CPU seconds of the process and its children, wall seconds, output). RuntimeError.

    Without an `environment` it has one thread.
    """
    began = time.perf_counter()
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment or _environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    with child.stdout as pipe:
        output = pipe.read()
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{command} ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, wall, output


def floor_command(
    path: Path, fps: float, *, start: float = 0.0, seconds: float | None = None
) -> list[str]:
    """Ffmpeg's own sampling, to pictures of RGB."""
    part = () if seconds is None else ("-ss", f"{start:g}", "-t", f"{seconds:g}")
    filters = f"fps={fps:g},scale={SIZE}:{SIZE}"
    raw = ("-pix_fmt", "rgb24", "-f", "rawvideo", os.devnull)
    return _ffmpeg_command(*part, "-i", path, "-an", "-vf", filters, *raw)


def _bare_command(path: Path, fps: float) -> list[str]:
    return _ffmpeg_command("-i", path, "-an", "-vf", f"fps={fps:g}", "-f", "null", "-")


def _ffmpeg_command(*arguments: str | Path) -> list[str]:
    threads = ("-threads", "1", "-filter_threads", "1")
    quiet = ("-v", "error", "-nostdin", "-y")
    return [imageio_ffmpeg.get_ffmpeg_exe(), *quiet, *threads, *map(str, arguments)]


def _succeeds(command: list[str]) -> bool:
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(), capture_output=True, check=False, timeout=120
    )
    return done.returncode == 0


def _environment() -> dict[str, str]:
    return os.environ | dict.fromkeys(_ONE_THREAD, "1")


def _row(path: Path, fps: float, way: str, num_samples: int) -> dict[str, Any]:
    facts = {"file": path.name, "fps": fps, "num_samples": num_samples}
    return {**facts, "way": way, "order": None, "note": ""}


def _ratios(timing: Timing, floors: dict[str, float]) -> dict[str, Any]:
    median = statistics.median(timing.cpu)
    bare = floors.get(BARE)
    return {
        "cpu_seconds": timing.summary("cpu"),
        "wall_seconds": timing.summary("wall"),
        "cpu_ratio": median / floors[FLOOR],
        "cpu_ratio_to_bare": median / bare if bare else None,
        "rounds": asdict(timing),
    }
