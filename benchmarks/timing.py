"""What benchmarks share: rounds of ways in turn, medians, temporary folders, the load."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Spent = tuple[float, float]
"""(CPU seconds, wall seconds)."""


@dataclass(slots=True)
class Timing:
    """Seconds of one way, a round each."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, spent: Spent) -> None:
        self.cpu.append(spent[0])
        self.wall.append(spent[1])

    def summary(self, by: str) -> dict[str, float]:
        """Median and minimum; `by` is `wall` or `cpu`."""
        seconds: list[float] = getattr(self, by)
        return {"median": statistics.median(seconds), "minimum": min(seconds)}


def measure_in_turn(
    ways: Mapping[str, Callable[[], Spent]], *, rounds: int, num_dropped: int = 1
) -> dict[str, Timing]:
    """What each way says that it spent, in each round but those that are dropped."""
    timings = {name: Timing() for name in ways}
    names, order = list(ways), random.Random(0)
    for number in range(rounds):
        # Shuffled: a way is slower after one that left the caches cold.
        for name in order.sample(names, len(names)):
            spent = ways[name]()
            if number >= num_dropped:
                timings[name].add(spent)
    return timings


class LoadWatch:
    """The highest load average since it was made, and whether wall seconds can be relied on."""

    def __init__(self) -> None:
        self.num_cores = len(os.sched_getaffinity(0))
        self.load = os.getloadavg()[0]

    def look(self) -> bool:
        """Whether there was never more load than cores."""
        self.load = max(self.load, os.getloadavg()[0])
        return self.load <= self.num_cores


def cpu_of(pids: Iterable[int]) -> float:
    """CPU seconds that these processes have used, all their threads."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def temporary_folder(parent: Path | None) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="reelcache-bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def clip_folder(chosen: Path | None) -> Iterator[Path]:
    """The folder that was chosen, made where it is not there, or a temporary one."""
    if chosen is None:
        with temporary_folder(None) as folder:
            yield folder
    else:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen


def write_report(report: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
