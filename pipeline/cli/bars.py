"""Bars of a terminal: one number as a bar, or many as a line of small ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import click

WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def bar(value: float, *, largest: float, width: int = WIDTH, filled: bool = False) -> str:
    """`value` of `largest` as a bar of `width` at most, to an eighth of a cell.

    Above 0 something is seen. `filled` with spaces up to the width.
    """
    share = 0.0 if largest <= 0 else min(1.0, max(0.0, value / largest))
    eighths = round(share * width * 8)
    if value > 0:
        eighths = max(1, eighths)
    whole, rest = divmod(eighths, 8)
    text = _EIGHTHS[8] * whole + (_EIGHTHS[rest] if rest else "")
    return f"{text:{width}}" if filled else text


def sparkline(
    values: Sequence[float | None], *, low: float, high: float, width: int | None = None
) -> str:
    """A character a value, between `low` and `high`; a space where it is None.

    Of more than `width` values each character is the mean of those that fall to it.
    """
    if width is not None and len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [_mean(values[a:b]) for a, b in itertools.pairwise(edges)]
    return "".join(" " if value is None else _height(value, low, high) for value in values)


def print_bars(histogram: dict[str, int]) -> None:
    """Name, bar and count, a line each."""
    width = max(len(name) for name in histogram)
    largest = max(histogram.values())
    for name, count in histogram.items():
        click.echo(f"  {name:{width}}  {bar(count, largest=largest)} {count:,}")


def _height(value: float, low: float, high: float) -> str:
    share = 0.0 if high <= low else (value - low) / (high - low)
    return _HEIGHTS[min(7, max(0, int(share * 8)))]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
