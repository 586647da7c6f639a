"""Follower: tells people and metrics files how a run is getting on, while it runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from pipeline.cli.progress import Display, open_display
from pipeline.measuring import Measured
from pipeline.meeting import Meeting, NewShards
from pipeline.metrics_file import MetricsFile, Snapshot
from schemas.errors import ReelcacheError

POLL_SECONDS = 0.5
TELL_SECONDS = 5.0
"""Between two words to a metrics file."""


class Follower:
    """Follows one run; a context manager, which gives metrics files their last word.

    UsageError at its beginning: a metrics file cannot be written.
    """

    def __init__(
        self,
        *,
        cache: str,
        files: Sequence[MetricsFile] = (),
        quiet: bool = False,
        loud: bool = False,
    ) -> None:
        """`quiet`: nothing on stderr; `loud`: a line for every shard there."""
        self._cache = cache
        self._files = files
        self._quiet = quiet
        self._tells_shards = loud and not quiet
        self._began = time.monotonic()
        self._told = -TELL_SECONDS
        self._measured = Measured()
        self.result: dict[str, Any] = {}
        """What the last line of a metrics file also says."""

    def __enter__(self) -> Follower:
        for file in self._files:
            file.check()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ReelcacheError):
            self.result = {"error": error.message}
        elif error is not None:
            self.result = {"error": type(error).__name__}
        snapshot = self._snapshot("", 0)
        for file in self._files:
            file.tell_end(snapshot, ok=error is None, result=self.result)
            if file.complaint and not self._quiet:
                click.echo(f"Not all could be written: {file.complaint}", err=True)

    @contextlib.contextmanager
    def watch(self, stage: str, total: int, meeting: Meeting) -> Iterator[None]:
        """Follow `stage`, which has `total` sources or clips to do, while it runs."""
        if self._quiet and not self._files:
            yield
            return
        display = None if self._quiet else open_display(stage, total)
        log = meeting.shard_log()
        done = threading.Event()

        def poll() -> None:
            while not done.wait(POLL_SECONDS):
                with contextlib.suppress(OSError, ValueError):  # of a disk that is full, or slow
                    self._look(stage, total, meeting, log, display)

        thread = threading.Thread(target=poll, name="follower", daemon=True)
        thread.start()
        is_well = False
        try:
            yield
            is_well = True
        finally:
            done.set()
            thread.join()
            with contextlib.suppress(OSError, ValueError):
                self._look(stage, total, meeting, log, display)
            if display is not None:
                if is_well:
                    display.show(self._measured, last=True)
                display.close()

    def _look(
        self,
        stage: str,
        total: int,
        meeting: Meeting,
        log: NewShards,
        display: Display | None,
    ) -> None:
        self._measured = meeting.measured()
        self._tell_shards(log, display)
        if display is not None:
            display.show(self._measured)
        now = time.monotonic() - self._began
        if now - self._told >= TELL_SECONDS:
            self._told = now
            snapshot = self._snapshot(stage, total)
            for file in self._files:
                file.tell_progress(snapshot)

    def _tell_shards(self, log: NewShards, display: Display | None) -> None:
        for shard in log.new():
            for file in self._files:
                file.tell_shard(shard)
            if self._tells_shards and display is not None:
                display.say(shard.line())

    def _snapshot(self, stage: str, total: int) -> Snapshot:
        return Snapshot(
            cache=self._cache,
            stage=stage,
            seconds=time.monotonic() - self._began,
            total=total,
            measured=self._measured,
        )
