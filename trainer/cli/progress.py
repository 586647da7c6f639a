"""Show how far a run is: a bar on a terminal, a plain line now and then elsewhere; on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import click

from pipeline.cli.pace import Pace
from pipeline.cli.show import duration_text

if TYPE_CHECKING:
    from trainer.learning.reporting import StepReport

LINE_SECONDS = 10.0


class Display(Protocol):
    """Shows the progress of a run."""

    def show(self, report: StepReport) -> None:
        """After each step."""

    def say(self, line: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """Nothing more is shown."""


@contextlib.contextmanager
def open_display(*, quiet: bool) -> Iterator[Display]:
    """For one run."""
    display: Display = Silence() if quiet else _Bar() if sys.stderr.isatty() else Lines()
    try:
        yield display
    finally:
        display.close()


class _State:
    # What both displays show; paces are of the last minute.
    def __init__(self) -> None:
        self._steps, self._tokens = Pace(), Pace()
        self._num_tokens = 0
        self._before: int | None = None

    def words(self, report: StepReport) -> str:
        now = time.monotonic()
        if self._before is None:
            self._before = report.step
        self._num_tokens += report.num_tokens
        self._steps.update(report.step - self._before, now=now)
        self._tokens.update(self._num_tokens, now=now)
        parts = [f"{report.step:,}/{report.num_steps:,} steps", f"loss {report.loss:.4f}"]
        rate = self._tokens.rate(now=now)
        if rate is not None:
            parts.append(f"{rate:,.0f} tokens/s")
        left = self._steps.left_seconds(report.num_steps - report.step, now=now)
        if left is not None and report.step < report.num_steps:
            parts.append(f"{duration_text(left)} left")
        return f"{report.stage}: {', '.join(parts)}"


class Silence:
    """Nothing."""

    def show(self, report: StepReport) -> None:
        """Not shown."""

    def say(self, line: str) -> None:
        """Not said."""

    def close(self) -> None:
        """Nothing to tidy up."""


class Lines:
    """A line every ten seconds, and one for the first and the last step."""

    def __init__(self) -> None:
        self._state = _State()
        self._said: float | None = None

    def show(self, report: StepReport) -> None:
        words = self._state.words(report)
        now = time.monotonic()
        is_due = self._said is None or now - self._said >= LINE_SECONDS
        if is_due or report.step == report.num_steps:
            self._said = now
            self.say(words)

    def say(self, line: str) -> None:
        click.echo(line, err=True)

    def close(self) -> None:
        """Nothing to tidy up."""


class _Bar:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._state = _State()
        self._progress = Progress(
            BarColumn(), TextColumn("{task.fields[words]}"), console=Console(stderr=True)
        )
        self._task = self._progress.add_task("", total=None, words="starting", visible=False)
        self._progress.start()

    def show(self, report: StepReport) -> None:
        self._progress.update(
            self._task,
            total=report.num_steps,
            completed=report.step,
            words=self._state.words(report),
            visible=True,
        )

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()
