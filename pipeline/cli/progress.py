"""Show how far a stage is: a bar on a terminal, a plain line now and then elsewhere; on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

import click

from pipeline.cli.show import duration_text
from pipeline.meeting import Meeting

POLL_SECONDS = 0.5
LINE_SECONDS = 10.0
_UNITS = {"probe": ("probed", "sources"), "build": ("done", "clips")}


@contextlib.contextmanager
def watch(stage: str, total: int, meeting: Meeting) -> Iterator[None]:
    """Show the progress of `stage`, which has `total` sources or clips to do, while it runs."""
    display = _Bar(stage, total) if sys.stderr.isatty() else _Lines(stage, total)
    done = threading.Event()

    def poll() -> None:
        while not done.wait(POLL_SECONDS):
            display.show(meeting.totals()[_UNITS[stage][0]])

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        done.set()
        thread.join()
        display.close()
        raise
    done.set()
    thread.join()
    display.show(total, last=True)
    display.close()


class _Lines:
    def __init__(self, stage: str, total: int) -> None:
        self._stage, self._total, self._unit = stage, total, _UNITS[stage][1]
        self._began = self._said = time.monotonic()

    def show(self, count: int, *, last: bool = False) -> None:
        now = time.monotonic()
        if not last and (count >= self._total or now - self._said < LINE_SECONDS):
            return
        self._said = now
        seconds = now - self._began
        line = f"{self._stage}: {count:,} of {self._total:,} {self._unit}"
        if count and seconds > 0:
            rate = count / seconds
            left = (self._total - count) / rate
            line += f", {rate:.1f} {self._unit}/s"
            line += f", {duration_text(left)} left" if left > 0 else f", {duration_text(seconds)}"
        click.echo(line, err=True)

    def close(self) -> None:
        """Nothing to tidy up."""


class _Bar:
    def __init__(self, stage: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        unit = _UNITS[stage][1]
        self._progress = Progress(
            TextColumn("{task.description:5}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit + " {task.fields[rate]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(stage, total=total, rate="")
        self._began = time.monotonic()
        self._progress.start()

    def show(self, count: int, *, last: bool = False) -> None:  # noqa: ARG002 - as of _Lines
        rate = count / max(time.monotonic() - self._began, 1e-3)
        self._progress.update(self._task, completed=count, rate=f"{rate:.1f}/s")

    def close(self) -> None:
        self._progress.stop()
