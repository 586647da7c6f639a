"""Count what is done: a bar on a terminal, a plain line now and then elsewhere; on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

import click

from pipeline.cli.pace import Pace, rate_text
from pipeline.cli.show import duration_text

SHOW_SECONDS = 0.2
LINE_SECONDS = 10.0


class Count:
    """How many of a total are done."""

    def __init__(self, stage: str, units: str, *, quiet: bool) -> None:
        self._stage, self._units, self._quiet = stage, units, quiet
        self._total = self._done = 0
        self._pace = Pace()
        self._terminal = sys.stderr.isatty()
        self._width = 0
        self._said = time.monotonic()

    def begin(self, total: int) -> None:
        """There will be so many."""
        self._total, now = total, time.monotonic()
        self._pace.update(0, now=now)
        if self._terminal:
            self._show(now)

    def add(self, count: int = 1) -> None:
        """So many more are done."""
        self._done += count
        now = time.monotonic()
        self._pace.update(self._done, now=now)
        if now - self._said >= (SHOW_SECONDS if self._terminal else LINE_SECONDS):
            self._show(now)

    def close(self) -> None:
        """Take the bar away; lines stay."""
        if self._terminal and self._width and not self._quiet:
            click.echo("\r" + " " * self._width + "\r", err=True, nl=False)

    def _show(self, now: float) -> None:
        if self._quiet:
            return
        self._said = now
        words = [f"{self._done:,} of {self._total:,} {self._units}"]
        rate = self._pace.rate(now=now)
        left = self._pace.left_seconds(self._total - self._done, now=now)
        if rate is not None and left is not None:
            words += [rate_text(rate, units=self._units), f"{duration_text(left)} left"]
        if not self._terminal:
            click.echo(f"{self._stage}: {', '.join(words)}", err=True)
            return
        from pipeline.cli.bars import bar

        shown = bar(self._done, largest=max(1, self._total), width=24, filled=True)
        text = f"{self._stage} {shown}▏ {', '.join(words)}"
        self._width = max(self._width, len(text))
        click.echo(f"\r{text:{self._width}}", err=True, nl=False)


@contextlib.contextmanager
def counting(stage: str, units: str, *, quiet: bool) -> Iterator[Count]:
    """A count that is closed at the end; `units` is a plural."""
    count = Count(stage, units, quiet=quiet)
    try:
        yield count
    finally:
        count.close()
