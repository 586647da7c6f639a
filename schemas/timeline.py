"""Time: which frames are sampled, and how samples become clips. Pure mathematics on seconds.

For a rate f the grid times are t_k = first + k / f up to the last frame's time (+ TOLERANCE); the
sample at t_k is the frame displayed then: the largest time <= t_k + TOLERANCE. With a span
[start, end) the grid begins at the start and ends before the end.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

TOLERANCE_SECONDS = 1e-6
"""Containers store times in whole ticks, often of a microsecond: a frame that is meant to be shown
at t_k may carry t_k rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The times at which a video is sampled."""

    origin_seconds: float
    fps: float
    end_seconds: float | None = None
    """Exclusive; None: up to the last frame."""

    @classmethod
    def of(
        cls,
        *,
        first_seconds: float,
        fps: float,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
    ) -> Grid:
        """The grid of a video whose first frame is at `first_seconds`, with an optional span."""
        origin = first_seconds if start_seconds is None else max(start_seconds, first_seconds)
        return cls(origin_seconds=origin, fps=fps, end_seconds=end_seconds)

    def time(self, k: int) -> float:
        """t_k in seconds."""
        return self.origin_seconds + k / self.fps

    def num_samples(self, last_seconds: float) -> int:
        """How many grid times a video has whose last frame is at `last_seconds`."""
        estimate = (last_seconds - self.origin_seconds + TOLERANCE_SECONDS) * self.fps
        count = max(0, math.floor(estimate) + 1)
        # The estimate may be off by one by rounding; the rule itself decides.
        while count > 0 and not self.holds(count - 1, last_seconds):
            count -= 1
        while self.holds(count, last_seconds):
            count += 1
        return count

    def holds(self, k: int, last_seconds: float) -> bool:
        """Whether t_k is one of the grid times of a video whose last frame is at `last_seconds`."""
        time = self.time(k)
        if self.end_seconds is not None and time >= self.end_seconds:
            return False
        return time <= last_seconds + TOLERANCE_SECONDS


def displayed_indices(times: npt.ArrayLike, grid: Grid) -> npt.NDArray[np.int64]:
    """(K,) int64: for each grid time the index of the frame displayed then.

    `times` is (N,) float64, increasing. Empty where the grid holds no frame.
    """
    times = np.asarray(times, dtype=np.float64)
    if times.size == 0:
        return np.zeros(0, dtype=np.int64)
    count = grid.num_samples(float(times[-1]))
    ticks = grid.origin_seconds + np.arange(count) / grid.fps
    indices = np.searchsorted(times, ticks + TOLERANCE_SECONDS, side="right") - 1
    return indices.astype(np.int64)


def num_clips(num_samples: int, frames_per_clip: int) -> int:
    """Clips lie back to back; the last one is filled up."""
    return -(-num_samples // frames_per_clip)


def windows_per_clip(*, fps: float, frames_per_clip: int) -> int:
    """Windows of sound, one second each, that every sample has room for."""
    return math.ceil(clip_length(fps=fps, frames_per_clip=frames_per_clip))


def clip_windows(clip_index: int, *, fps: float, frames_per_clip: int) -> range:
    """The windows of sound that begin during a clip; window k begins k seconds after the origin.

    Over all clips each window comes once; a clip of less than a second may have none.
    """
    length = clip_length(fps=fps, frames_per_clip=frames_per_clip)
    return range(math.ceil(clip_index * length), math.ceil((clip_index + 1) * length))


@functools.cache
def clip_length(*, fps: float, frames_per_clip: int) -> Fraction:
    """Seconds of a clip, exactly: the rate is the fraction that was meant, such as 30000/1001."""
    rate = Fraction(fps).limit_denominator(1_000_000) or Fraction(fps)
    return frames_per_clip / rate


def display_ranges(
    times: npt.ArrayLike, *, last_duration_seconds: float
) -> npt.NDArray[np.float64]:
    """(N, 2) float64: [start, end) during which each frame is displayed.

    A frame is displayed until the next one is due; the last one for its own duration.
    """
    starts = np.asarray(times, dtype=np.float64)
    if starts.size == 0:
        return np.zeros((0, 2), dtype=np.float64)
    ends = np.append(starts[1:], starts[-1] + last_duration_seconds)
    return np.stack([starts, ends], axis=1)
