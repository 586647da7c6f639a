"""Tally: what steps have taken since the last line of the log, and the line that says so."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter

import torch

from trainer.learning.metrics_log import MetricsLog
from trainer.learning.reporting import StepReport
from trainer.learning.stepping import StepClock


class Tally:
    """Counts tokens and seconds of steps, and writes a line every so many.

    Loss, norm and rate are those of the line's step; tokens, seconds and kept clips are sums of all
    steps since the line before. Seconds are this rank's own.
    """

    def __init__(self, log: MetricsLog | None, *, clock: StepClock, every: int) -> None:
        """`log` None: of a rank that does not write."""
        self.clock = clock
        self._log, self._every = log, every
        self._num_tokens, self._kept = 0, Counter[int]()
        self._before: dict[str, float] = {}
        self._began = time.perf_counter()

    def add(self, report: StepReport, *, is_last: bool, norm: float, rate: float) -> None:
        """Count a step; write a line if it is due, or if it is the last of a stage."""
        self._num_tokens += report.num_tokens
        self._kept.update(dict(enumerate(report.kept)))
        if not (is_last or report.signal) and report.step % self._every:
            return
        if self.clock.is_cuda:
            torch.cuda.synchronize()
        now, sections = time.perf_counter(), self.clock.seconds()
        seconds = now - self._began
        spent = {name: value - self._before.get(name, 0.0) for name, value in sections.items()}
        if self._log is not None:
            self._log.log(
                report.step,
                {
                    "stage": report.stage,
                    "loss": report.loss,
                    "norm": norm,
                    "rate": rate,
                    "tokens": self._num_tokens,
                    "tokens_per_second": self._num_tokens / seconds,
                    "seconds": seconds,
                    **{f"{name}_seconds": value for name, value in spent.items()},
                    "wait_share": spent["wait"] / seconds,
                    "peak_memory_bytes": _peak_memory_bytes(is_cuda=self.clock.is_cuda),
                    **({"kept_by_time": list(self._kept.values())} if report.kept else {}),
                },
            )
        self._num_tokens, self._kept = 0, Counter()
        self._began, self._before = now, sections


def _peak_memory_bytes(*, is_cuda: bool) -> int:
    """Of the GPU, or else of the process."""
    if is_cuda:
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
