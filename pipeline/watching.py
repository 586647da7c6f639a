"""Watch sources: look at intervals, and cache what has settled, in passes that are bounded runs.

    look -> which sources are new or changed, and no longer being written?
         -> none: nothing is read, started or written
         -> some: one run over all that has settled; it commits, as any run does

What a watch knows between passes is only which sources it need not hand to a run again: after a
restart the first pass finds out from the cache.
"""

from __future__ import annotations

import errno
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.arriving import Lister, Listing, Moment, Sight, Sights, State
from pipeline.layout import CacheLayout
from pipeline.planning import read_plan
from pipeline.report import RunReport
from schemas.errors import (
    CacheHeld,
    NothingUsable,
    ReelcacheError,
    SourceError,
    StorageError,
    WorkerDied,
)
from schemas.video import Source

GO_AWAY = (CacheHeld, SourceError, StorageError, WorkerDied)
"""Errors that may be over at the next pass."""
HOPELESS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
"""Of a cache's place, at the first pass: nothing that happens by itself changes them."""
LONGEST_PAUSE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """How a watch goes."""

    interval_seconds: float = 30.0
    """Between the end of a pass and the next look."""
    settle_seconds: float = 30.0
    """A file that has not changed for so long is whole."""
    num_passes: int | None = None
    """End after so many."""
    once: bool = False
    """End when all that is there is done."""
    limit: int | None = None
    """New or changed sources that one pass takes, those that came first; None: all."""

    def pause_seconds(self, num_failures: int) -> float:
        """Before the next pass: longer the more of them failed, one after the other."""
        longest = max(self.interval_seconds, LONGEST_PAUSE_SECONDS)
        return min(longest, self.interval_seconds * 2.0 ** min(num_failures, 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """What one pass saw and did."""

    number: int
    seen: int
    """Sources that are there."""
    waiting: int
    """Sources, and lists of them, that are still being written."""
    absent: int
    """Sources of lists whose file is not there: waited for, and no error."""
    new: int
    """Sources of this pass that were new or changed."""
    left: int
    """New or changed sources that are left for the next pass."""
    clips_left: int | None
    """Planned and not yet built; None: the plan cannot be read."""
    latencies_seconds: tuple[float, ...]
    """Of each file of `new`: from when it came until the cache held it."""
    seconds: float
    run: RunReport | None
    """None: there was nothing to do, or the run failed."""
    error: ReelcacheError | None
    complaints: tuple[SourceError, ...]
    """Of arguments that could not be read; the pass went on with the others."""
    next_seconds: float | None
    """Until the next pass; None: this was the last one."""

    def to_json(self) -> dict[str, Any]:
        """One line of `pipeline watch --json`."""
        done = ("videos", "clips", "frames", "shards", "bytes", "rejected", "retryable")
        latency = None
        if self.latencies_seconds:
            median = statistics.median(self.latencies_seconds)
            worst = max(self.latencies_seconds)
            latency = {"median": round(median, 3), "max": round(worst, 3)}
        names = ("seen", "waiting", "absent", "new", "left", "clips_left")
        return {
            "pass": self.number,
            **{name: getattr(self, name) for name in names},
            **{name: getattr(self.run, name) if self.run else None for name in done},
            "latency_seconds": latency,
            "seconds": round(self.seconds, 3),
            "error": self.error and _told(self.error),
            "complaints": [_told(error) for error in self.complaints],
            "next_seconds": self.next_seconds,
        }


def _told(error: ReelcacheError) -> dict[str, str]:
    return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}


def watch(
    arguments: Sequence[str],
    *,
    layout: CacheLayout,
    run: Callable[[Sequence[Source]], RunReport],
    settings: WatchSettings,
    tell: Callable[[PassReport], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], Moment] = lambda: Moment(steady=time.monotonic(), wall=time.time()),
) -> PassReport:
    """Pass after pass until the settings say that it is enough: the last one.

    `run` caches sources, as `beam_runner.run`. Errors that may go away are told with their pass,
    and tried again after growing pauses; any other ends the watch, as does a source that is not
    there at the first look. TooManyRejects: over all sources that have settled.
    """
    state = _Watch(arguments, layout=layout, run=run, settings=settings, now=now)
    while True:
        report = state.one_pass()
        tell(report)
        if report.next_seconds is None:
            return report
        sleep(report.next_seconds)


class _Watch:
    def __init__(
        self,
        arguments: Sequence[str],
        *,
        layout: CacheLayout,
        run: Callable[[Sequence[Source]], RunReport],
        settings: WatchSettings,
        now: Callable[[], Moment],
    ) -> None:
        self._layout = layout
        self._run = run
        self._settings = settings
        self._now = now
        self._lister = Lister(arguments, settle_seconds=settings.settle_seconds)
        self._sights = Sights()
        self._done: dict[object, State] = {}
        """Source -> the state in which a run has dealt with it."""
        self._before: Moment | None = None
        self._num_passes = 0
        self._num_failures = 0

    def one_pass(self) -> PassReport:
        began = self._now()
        is_first = self._num_passes == 0
        self._num_passes += 1
        listing = self._lister.list(began, before=self._before)
        if is_first and listing.errors:
            raise listing.errors[0]
        settled, num_waiting, num_absent = self._look(listing, began)
        self._before = began
        new = [(source, sight) for source, sight in settled if not self._is_done(source, sight)]
        new.sort(key=lambda pair: pair[1].arrived)
        taken = new[: self._settings.limit]
        left = {source.identity for source, _ in new[len(taken) :]}
        report, error = None, None
        if taken:
            report, error = self._try(
                [source for source, _ in settled if source.identity not in left],
                is_first=is_first,
            )
        failed = not (error is None or isinstance(error, NothingUsable))
        ended = self._now()
        latencies: dict[str, float] = {}
        if not failed:
            self._done.update((source.identity, sight.state) for source, sight in taken)
            latencies = {source.uri: ended.wall - sight.arrived for source, sight in taken}
        nothing_listed = bool(listing.errors) and not listing.sources
        self._num_failures = self._num_failures + 1 if failed or nothing_listed else 0
        num_waiting += listing.num_lists_waiting
        return PassReport(
            number=self._num_passes,
            seen=len(settled) + num_waiting,
            waiting=num_waiting,
            absent=num_absent,
            new=len(taken),
            left=len(left),
            clips_left=num_clips_left(self._layout) if failed else 0,
            latencies_seconds=tuple(max(0.0, seconds) for seconds in latencies.values()),
            seconds=ended.steady - began.steady,
            run=report,
            error=error,
            complaints=listing.errors,
            next_seconds=self._next_seconds(
                busy=failed or bool(num_waiting or listing.errors), more=bool(left) and not failed
            ),
        )

    def _look(self, listing: Listing, now: Moment) -> tuple[list[tuple[Source, Sight]], int, int]:
        settled: list[tuple[Source, Sight]] = []
        num_waiting = num_absent = 0
        for source in listing.sources:
            sight = self._sights.look(source.uri, now, before=self._before)
            if sight is None:
                num_absent += 1
            elif sight.has_settled(now, settle_seconds=self._settings.settle_seconds):
                settled.append((source, sight))
            else:
                num_waiting += 1
        return settled, num_waiting, num_absent

    def _is_done(self, source: Source, sight: Sight) -> bool:
        return self._done.get(source.identity) == sight.state

    def _try(
        self, sources: Sequence[Source], *, is_first: bool
    ) -> tuple[RunReport | None, ReelcacheError | None]:
        try:
            return self._run(sources), None
        except NothingUsable as error:
            return None, error  # so far: the next file may be a video
        except GO_AWAY as error:
            cause = error.__cause__
            if is_first and isinstance(cause, OSError) and cause.errno in HOPELESS:
                raise
            return None, error
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            return None, StorageError(f"{error.filename or self._layout.root}: {reason}")

    def _next_seconds(self, *, busy: bool, more: bool) -> float | None:
        settings = self._settings
        if settings.num_passes is not None and self._num_passes >= settings.num_passes:
            return None
        if settings.once and not busy and not more:
            return None
        return 0.0 if more else settings.pause_seconds(self._num_failures)


def num_clips_left(layout: CacheLayout) -> int | None:
    """Clips that are planned and not yet built; None: the plan cannot be read."""
    try:
        committed = layout.committed()
        return sum(spec.num_clips for spec in read_plan(layout) if spec.name not in committed)
    except (ReelcacheError, OSError):
        return None
