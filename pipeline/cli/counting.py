"""Counting: how far something is that has no stages; one line on a terminal, few elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import click

LINE_SECONDS = 10.0


class Counting:
    """Says on stderr how many of `total` are done; a context manager."""

    def __init__(self, what: str, total: int, *, unit: str, quiet: bool) -> None:
        """Such as "pooled", 1200, "clips"."""
        self._what = what
        self._total = total
        self._unit = unit
        self._quiet = quiet
        self._on_terminal = sys.stderr.isatty()
        self._done = 0
        self._said = time.monotonic()
        self._width = 0

    def add(self, num: int) -> None:
        """So many more are done; past the total nothing is said."""
        self._done += num
        now = time.monotonic()
        if self._quiet or self._done > self._total:
            return
        text = f"{self._what}: {self._done:,} of {self._total:,} {self._unit}"
        if self._on_terminal:
            click.echo(f"\r{text:{self._width}}", err=True, nl=False)
            self._width = len(text)
        elif now - self._said >= LINE_SECONDS:
            self._said = now
            click.echo(text, err=True)

    def __enter__(self) -> Counting:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._width:
            click.echo("\r" + " " * self._width + "\r", err=True, nl=False)
