"""Show how far a stage is: a bar on a terminal, a plain line now and then elsewhere; on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

import click

from pipeline.cli.pace import Pace, rate_text
from pipeline.cli.show import duration_text
from pipeline.measuring import Measured

LINE_SECONDS = 10.0
COUNTED = {"probe": ("probed", "sources"), "build": ("done", "clips")}
"""Stage -> what is counted, and what it is called."""
_BEGUN = {"probe": "probers", "build": "shards_begun"}


class Display(Protocol):
    """Shows the progress of one stage."""

    def show(self, measured: Measured, *, last: bool = False) -> None:
        """`last`: all is done."""

    def say(self, line: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """Nothing more is shown."""


def open_display(stage: str, total: int) -> Display:
    """For a stage that has `total` sources or clips to do."""
    return _Bar(stage, total) if sys.stderr.isatty() else Lines(stage, total)


@contextlib.contextmanager
def probing_shown(*, quiet: bool) -> Iterator[Callable[[int], Callable[[object], None]]]:
    """Shows how far probing in this process is.

    What it gives is told how many sources there are, and gives what is told of each one.
    """
    counts = Counter(probers=1)
    displays: list[Display] = []

    def begin(total: int) -> Callable[[object], None]:
        if quiet:
            return lambda _: None
        displays.append(display := open_display("probe", total))

        def tell(_: object) -> None:
            counts["probed"] += 1
            display.show(Measured(counts=counts))

        return tell

    try:
        yield begin
        for display in displays:
            display.show(Measured(counts=counts), last=True)
    finally:
        for display in displays:
            display.close()


class _State:
    # What both displays show.
    def __init__(self, stage: str, total: int) -> None:
        self.total = total
        self._stage = stage
        self._counted, self.units = COUNTED[stage]
        self._pace = Pace()
        self._began = time.monotonic()
        self._recent: tuple[float, float] | None = None
        self._encoders = ""

    def update(self, measured: Measured, *, last: bool) -> tuple[int, str, float | None]:
        """(how many are done, what to say, seconds left if they are known)."""
        now = time.monotonic()
        count = self.total if last else min(self.total, measured.counts[self._counted])
        working = measured.counts[_BEGUN[self._stage]] > 0
        self._pace.update(count, now=now, working=working)
        if last:
            seconds = now - self._began
            return count, rate_text(count / max(seconds, 1e-3), units=self.units), 0.0
        if not count:
            return count, self._first_words(working=working), None
        rate = self._pace.rate(now=now)
        told = [] if rate is None else [rate_text(rate, units=self.units)]
        if self._stage == "build":
            told += filter(None, [self._encoder_words(measured, now=now)])
        return count, ", ".join(told), self._pace.left_seconds(self.total - count, now=now)

    def _first_words(self, *, working: bool) -> str:
        if not working:
            return "starting" if self._stage == "probe" else "starting: encoders load"
        return "the first is at work"

    def _encoder_words(self, measured: Measured, *, now: float) -> str:
        # Of the time since the words before, which were not said long ago.
        active = measured.stage("encode").active_seconds
        if self._recent is None:
            self._recent = (now, active)
        elif now - self._recent[0] >= LINE_SECONDS / 2:
            before, was_active = self._recent
            share = (active - was_active) / (now - before) / max(1, measured.num_workers)
            self._recent = (now, active)
            self._encoders = f"encoders {min(1.0, share):.0%} busy"
        return self._encoders


class Lines:
    """A line every ten seconds."""

    def __init__(self, stage: str, total: int) -> None:
        self._stage = stage
        self._state = _State(stage, total)
        self._began = self._said = time.monotonic()

    def show(self, measured: Measured, *, last: bool = False) -> None:
        count, words, left = self._state.update(measured, last=last)
        now = time.monotonic()
        if not last and (count >= self._state.total or now - self._said < LINE_SECONDS):
            return
        self._said = now
        parts = []
        if count:
            parts.append(f"{count:,} of {self._state.total:,} {self._state.units}")
        if words:
            parts.append(words)
        if last:
            parts.append(duration_text(now - self._began))
        elif left is not None:
            parts.append(f"{duration_text(left)} left")
        self.say(f"{self._stage}: {', '.join(parts)}")

    def say(self, line: str) -> None:
        click.echo(line, err=True)

    def close(self) -> None:
        """Nothing to tidy up."""


class _Bar:
    def __init__(self, stage: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._state = _State(stage, total)
        self._progress = Progress(
            TextColumn("{task.description:5}"),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
            console=Console(stderr=True),
        )
        self._began = time.monotonic()
        self._task = self._progress.add_task(stage, total=total, words="starting")
        self._progress.start()

    def show(self, measured: Measured, *, last: bool = False) -> None:
        count, words, left = self._state.update(measured, last=last)
        parts = [f"{count:,}/{self._state.total:,} {self._state.units}"] if count else []
        parts += filter(None, [words])
        if last:
            parts.append(duration_text(time.monotonic() - self._began))
        elif left is not None:
            parts.append(f"{duration_text(left)} left")
        self._progress.update(self._task, completed=count, words=", ".join(parts))

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()
