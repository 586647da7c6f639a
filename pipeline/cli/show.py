"""Print a result: aligned text for people or one JSON document; options of all commands."""

from __future__ import annotations

import json
import logging
import os
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def common_options(command: F) -> F:
    """--json, -q and -v; the command gets `as_json`, `quiet` and `loud`."""
    for option in (
        click.option("-v", "--verbose", "loud", is_flag=True, help="Say more on stderr."),
        click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    ):
        command = option(command)
    return command


weights_option = click.option(
    "--weights",
    multiple=True,
    metavar="[STREAM=]WHERE",
    help="Where an encoder's weights are: a file, a folder, a file's URL, `hub` to download"
    " them, or `random` for a trial; repeatable.",
)


device_option = click.option(
    "--device", default="auto", show_default=True, help="Where encoders compute."
)


def set_verbosity(*, quiet: bool, loud: bool) -> None:
    """Let libraries speak with -v only; they log through root loggers, to stderr."""
    if loud and not quiet:
        logging.basicConfig(level=logging.WARNING)
        return
    logging.basicConfig(level=logging.CRITICAL)
    logging.getLogger().setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=1, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns aligned, numbers to the right."""
    texts = [[_text(cell) for cell in row] for row in rows]
    columns = list(zip(header, *texts, strict=True))
    widths = [max(_width(text) for text in column) for column in columns]
    right = [
        bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        for i in range(len(header))
    ]
    for line in [list(header), *texts]:
        cells = [
            " " * (width - _width(text)) + text if to_right else text + " " * (width - _width(text))
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Name and value, a line each."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(f"{name:{width}}  {value}".rstrip())


def size_text(num_bytes: float) -> str:
    """Such as 4.2 MB, in powers of 1000."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def duration_text(seconds: float) -> str:
    """Such as 12.3 s, 4:05 or 1:02:03."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def count_text(count: int, noun: str) -> str:
    """Such as 1 clip, 1,204 clips."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: str) -> str:
    """In one line: a name may hold a newline or a terminal's control codes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.3f}"
    text = f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
    return printable(text)


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)
