"""DecoderPool: the decoder processes of one worker."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.jail import DecoderProcess
from schemas.recipe import DecodeLimits

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def num_cores() -> int:
    """The cores that this process is given, which may be fewer than the machine has; >= 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = _CGROUP_LIMIT.read_text().split()
        cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        pass
    return max(cores, 1)


class DecoderPool:
    """Decoder processes that are idle or each at work on one request; a context manager."""

    def __init__(
        self, limits: DecodeLimits, *, num_processes: int = 1, allow_programs: bool = False
    ) -> None:
        """`allow_programs`: the processes may start ffmpeg."""
        self.processes = [
            DecoderProcess(limits, allow_programs=allow_programs) for _ in range(num_processes)
        ]

    def __enter__(self) -> DecoderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def spawn(self) -> None:
        """Start all children at once, without waiting for them."""
        for process in self.processes:
            process.spawn()

    def idle(self) -> list[DecoderProcess]:
        return [process for process in self.processes if process.is_idle]

    @property
    def cpu_seconds(self) -> float:
        """Of all children so far."""
        return sum(process.cpu_seconds for process in self.processes)

    def close(self) -> None:
        """End all children; closing twice is fine."""
        for process in self.processes:
            process.close()
