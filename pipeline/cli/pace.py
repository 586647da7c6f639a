"""Pace: how fast a stage is, from the last minute, and when it will be done. Pure."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 60.0


class Pace:
    """Told a growing count now and then; what was done before the first one is not in the rate."""

    def __init__(self, *, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window = window_seconds
        self._steps: deque[tuple[float, int]] = deque()
        """(seconds, count) of each growth, from the last one before the window on."""

    def update(self, count: int, *, now: float, working: bool = True) -> None:
        """`count` at `now` seconds; the time before work begins is left out."""
        if not self._steps:
            if working or count:
                self._steps.append((now, count))
            return
        if count > self._steps[-1][1]:
            self._steps.append((now, count))
        # Always two, so that the rate of what takes minutes is known.
        while len(self._steps) > 2 and self._steps[1][0] <= now - self._window:
            self._steps.popleft()

    def rate(self, *, now: float) -> float | None:
        """A second, > 0; None: not known yet."""
        if len(self._steps) < 2:
            return None
        began, before = self._steps[0]
        return (self._steps[-1][1] - before) / max(now - began, 1e-3)

    def left_seconds(self, left: int, *, now: float) -> float | None:
        """Until `left` more are done; None: not known yet."""
        rate = self.rate(now=now)
        return None if rate is None else left / rate


def rate_text(rate: float, *, units: str) -> str:
    """Such as `12.5 clips/s`, `40 clips/min`, `95 s a clip`: never a rate of 0.0.

    `units` is a plural.
    """
    if rate >= 1:
        return f"{rate:,.1f} {units}/s"
    if 60 * rate >= 1:
        return f"{60 * rate:.1f} {units}/min"
    return f"{1 / rate:,.0f} s a {units.removesuffix('s')}"
