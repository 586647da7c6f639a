"""Decoder processes as the product runs them: start-up, scaling to two, memory, the targets."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.clips import TINY, Recording, first_frames, lengthen, make_recording
from benchmarks.decode_files import floor_command
from benchmarks.decode_memory import PICTURES, measure_memory, recipe_at, whole_file
from benchmarks.timing import LoadWatch, Spent, measure_in_turn
from pipeline.decoding import Decoding
from pipeline.pool import DecoderPool

MOST_STARTUP_MS, LEAST_SCALING, MOST_GROWTH_MB = 5.0, 1.8, 60.0
TINY_FRAMES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolScope:
    """How much is measured."""

    num_files: int
    """Short ones, for the start-up."""
    recording: Recording
    """What long files are made of."""
    scaling_seconds: int
    """Of the file that two children share."""
    rounds: int
    """The first is dropped."""
    memory_minutes: int
    """Of the file whose memory is compared with that of one minute."""


def measure(folder: Path, scope: PoolScope, *, watch: LoadWatch) -> dict[str, Any]:
    """Everything of this module; JSON-ready."""
    startup = measure_startup(folder, num_files=scope.num_files)
    source = make_recording(scope.recording, folder)
    scaling = measure_scaling(source, seconds=scope.scaling_seconds, rounds=scope.rounds)
    memory = measure_memory(source, minutes=scope.memory_minutes)
    return {
        "startup": startup,
        "scaling": scaling,
        "memory": memory,
        "pool_targets": _judge(startup, scaling, memory, reliable=watch.look()),
    }


def measure_startup(folder: Path, *, num_files: int) -> dict[str, Any]:
    """Milliseconds from the request to the last answer of a warm child, for a file of ten frames.

    `decode_ms` of them are the codec's own, for the same frames and pictures and nothing else.
    """
    path = first_frames(make_recording(TINY, folder), TINY_FRAMES, folder / "ten_frames.mp4")
    recipe = recipe_at(fps=2.0)
    piece = whole_file(path, seconds=1.0)
    with DecoderPool(recipe.limits) as pool:
        process = pool.processes[0]

        def sample() -> None:
            for _ in Decoding(
                piece, path=str(path), recipe=recipe, pictures=PICTURES, processes=[process]
            ).clips():
                pass

        for _ in range(20):
            sample()
        assert process.pid is not None
        cpu = _cpu_seconds(process.pid) + time.process_time()
        milliseconds = [_milliseconds(sample) for _ in range(num_files)]
        cpu = _cpu_seconds(process.pid) + time.process_time() - cpu
    decode_ms = float(subprocess.check_output([sys.executable, "-c", _PURE_DECODE, str(path)]))
    median = statistics.median(milliseconds)
    return {
        "num_files": num_files,
        "request_to_last_answer_ms": median,
        "minimum_ms": min(milliseconds),
        "decode_ms": decode_ms,
        "startup_ms": median - decode_ms,
        "cpu_ms": cpu * 1e3 / num_files,
        "startup_cpu_ms": cpu * 1e3 / num_files - decode_ms,
        "files_per_second": num_files * 1e3 / sum(milliseconds),
    }


_PURE_DECODE = """
import statistics, sys, time
import av
def measure():
    with av.open(sys.argv[1]) as container:
        packets = list(container.demux(video=0))
        container.streams.video[0].codec_context.thread_count = 1
        container.streams.video[0].codec_context.open(strict=False)
        began = time.perf_counter()
        frames = [frame for packet in packets for frame in packet.decode()]
        return (time.perf_counter() - began) * 1e3
print(statistics.median(measure() for _ in range(50)))
"""


def measure_scaling(source: Path, *, seconds: int, rounds: int) -> dict[str, Any]:
    """Wall seconds of one long file with one and two children, and of ffmpeg likewise."""
    path = lengthen(source, seconds)
    recipe = recipe_at(fps=2.0)
    piece = whole_file(path, seconds=seconds)
    halves = ((0.0, seconds / 2), (seconds / 2, seconds / 2))
    with DecoderPool(recipe.limits, num_processes=2) as pool:
        pool.spawn()

        def ours(count: int) -> Spent:
            pids = [process.pid for process in pool.processes[:count] if process.pid]
            began, cpu = time.perf_counter(), sum(map(_cpu_seconds, pids))
            for _ in Decoding(
                piece,
                path=str(path),
                recipe=recipe,
                pictures=PICTURES,
                processes=pool.processes[:count],
            ).clips():
                pass
            wall = time.perf_counter() - began
            return sum(map(_cpu_seconds, pids)) - cpu, wall

        def bare(parts: Sequence[tuple[float, float]]) -> Spent:
            began = time.perf_counter()
            children = [
                subprocess.Popen(floor_command(path, 2.0, start=start, seconds=length))
                for start, length in parts
            ]
            codes = [child.wait() for child in children]
            assert not any(codes), codes
            return 0.0, time.perf_counter() - began

        ways: dict[str, Callable[[], Spent]] = {
            "ours, 1 process": lambda: ours(1),
            "ours, 2 processes": lambda: ours(2),
            "ffmpeg, 1 process": lambda: bare([(0.0, float(seconds))]),
            "ffmpeg, 2 processes": lambda: bare(halves),
        }
        timings = measure_in_turn(ways, rounds=rounds)
    wall = {name: timing.summary("wall")["median"] for name, timing in timings.items()}
    cpu = {name: timing.summary("cpu")["median"] for name, timing in timings.items()}
    return {
        "seconds_of_video": seconds,
        "wall_seconds": wall,
        "cpu_of_two_over_one": cpu["ours, 2 processes"] / cpu["ours, 1 process"],
        "ours": wall["ours, 1 process"] / wall["ours, 2 processes"],
        "ffmpeg": wall["ffmpeg, 1 process"] / wall["ffmpeg, 2 processes"],
        "rounds": {name: asdict(timing) for name, timing in timings.items()},
    }


def show(pool: dict[str, Any]) -> None:
    startup, scaling, memory = pool["startup"], pool["scaling"], pool["memory"]
    print(
        f"\nA file of {TINY_FRAMES} frames, warm child: {startup['request_to_last_answer_ms']:.2f}"
        f" ms from request to last answer, {startup['decode_ms']:.2f} of them the codec's;"
        f" {startup['files_per_second']:.0f} files/s; {startup['cpu_ms']:.2f} CPU ms"
    )
    print(f"\n{scaling['seconds_of_video']} s of video:")
    for name, wall in scaling["wall_seconds"].items():
        print(f"{name:22}{wall:8.2f} s wall")
    print(f"two children take {scaling['cpu_of_two_over_one']:.2f} x the CPU seconds of one")
    for name in ("short", "long"):
        minutes = 1 if name == "short" else memory["minutes"]
        peak = memory[name]
        print(
            f"{minutes} minutes: peak of the child {peak['child_mb']:.0f} MB,"
            f" of the owner {peak['owner_mb']:.0f} MB"
        )


def _judge(
    startup: dict[str, Any], scaling: dict[str, Any], memory: dict[str, Any], *, reliable: bool
) -> list[dict[str, Any]]:
    def target(name: str, value: float, wanted: str, *, met: bool) -> dict[str, Any]:
        verdict = "met" if met else "missed"
        return {"name": name, "value": value, "wanted": wanted, "verdict": verdict}

    wall_ms, cpu_ms = startup["startup_ms"], startup["startup_cpu_ms"]
    times, growth = scaling["ours"], max(memory["growth_mb"].values())
    at_once = f"under {MOST_STARTUP_MS:g}"
    targets = [
        target("start-up, CPU ms", cpu_ms, at_once, met=cpu_ms < MOST_STARTUP_MS),
        target("start-up, wall ms", wall_ms, at_once, met=wall_ms < MOST_STARTUP_MS),
        target(
            f"two children ({scaling['ffmpeg']:.2f} with ffmpeg)",
            times,
            f"at least {LEAST_SCALING:g} x one",
            met=times >= LEAST_SCALING,
        ),
        target("memory, MB", growth, f"at most {MOST_GROWTH_MB:g}", met=growth <= MOST_GROWTH_MB),
    ]
    if not reliable:
        targets[1]["verdict"] = targets[2]["verdict"] = "unknown"  # they are wall seconds
    return targets


def _milliseconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def _cpu_seconds(pid: int) -> float:
    """User and system, of the threads of a process that runs; in nanoseconds, unlike its stat."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
