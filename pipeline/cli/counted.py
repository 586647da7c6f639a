"""Show on stderr how much is done: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import click

from pipeline.cli.show import count_text, duration_text, size_text

TERMINAL_SECONDS, LINE_SECONDS = 0.1, 10.0
WIDTH = 24
BYTE = "byte"


@contextlib.contextmanager
def counted(
    total: int, verb: str, *, unit: str = BYTE, quiet: bool
) -> Iterator[Callable[[int], None]]:
    """A function that is told how many more are done, and says so on stderr.

    `unit` is what is counted, one of it.
    """
    shows_bar = sys.stderr.isatty()
    began = said = time.monotonic()
    done = 0

    def tell(count: int) -> None:
        nonlocal done, said
        done += count
        now = time.monotonic()
        if quiet or now - said < (TERMINAL_SECONDS if shows_bar else LINE_SECONDS):
            return
        said = now
        share = min(1.0, done / total) if total else 1.0
        left = (now - began) * (1 - share) / max(share, 1e-9)
        words = f"{_text(done, unit)} of {_text(total, unit)} {verb}, {duration_text(left)} left"
        if shows_bar:
            bar = "━" * round(WIDTH * share) + " " * (WIDTH - round(WIDTH * share))
            click.echo(f"\r\x1b[K{bar} {words}", err=True, nl=False)
        else:
            click.echo(words, err=True)

    try:
        yield tell
    finally:
        if shows_bar and not quiet:
            click.echo("\r\x1b[K", err=True, nl=False)


def _text(count: int, unit: str) -> str:
    return size_text(count) if unit == BYTE else count_text(count, unit)
