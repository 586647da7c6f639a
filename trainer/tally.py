"""Tally: what steps have taken since the last line of the log, and the line that says so."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping

import torch

from trainer.metrics_log import MetricsLog
from trainer.stepping import StepClock


class Tally:
    """Counts tokens and seconds of steps, and writes a line every so many.

    Loss, norm and rate are those of the line's step; tokens and seconds are sums of all steps since
    the line before. Seconds are this rank's own.
    """

    def __init__(self, log: MetricsLog | None, *, clock: StepClock, every: int) -> None:
        """`log` None: of a rank that does not write."""
        self.clock = clock
        self._log, self._every = log, every
        self._num_tokens = 0
        self._before: dict[str, float] = {}
        self._began = time.perf_counter()

    def add_step(
        self, step: int, *, is_last: bool, num_tokens: int, figures: Mapping[str, float | str]
    ) -> None:
        """Count a step; write a line if it is due, or if it is the last."""
        self._num_tokens += num_tokens
        if not is_last and step % self._every:
            return
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now, sections = time.perf_counter(), self.clock.seconds()
        seconds = now - self._began
        spent = {name: value - self._before.get(name, 0.0) for name, value in sections.items()}
        if self._log is not None:
            self._log.log(
                step,
                {
                    **figures,
                    "tokens": self._num_tokens,
                    "tokens_per_second": self._num_tokens / seconds,
                    "seconds": seconds,
                    **{f"{name}_seconds": value for name, value in spent.items()},
                    "wait_share": spent["wait"] / seconds,
                    "peak_memory_bytes": _peak_memory_bytes(),
                },
            )
        self._num_tokens, self._began, self._before = 0, now, dict(sections)


def _peak_memory_bytes() -> int:
    """Of the GPU, or else of the process."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
