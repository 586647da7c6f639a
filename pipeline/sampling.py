"""From decoded frames to clips: which frame is shown at each grid time.

Frames come in the order of display, so one frame of look-ahead decides; nothing is kept but the
frame in hand. Files whose times go back are decoded twice: once for all times, once for the frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from schemas.timeline import TOLERANCE_SECONDS, Grid, display_ranges, displayed_indices

Picture = TypeVar("Picture")
Convert = Callable[[Any], Picture]


class TimesGoBack(Exception):
    """A frame's time is before that of the frame ahead of it: one pass cannot decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedFrame:
    """A decoded frame with its own time."""

    seconds: float
    duration_seconds: float
    """As the container says; 0 where it does not."""
    frame: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which samples are wanted, and on which grid."""

    fps: float
    start_seconds: float | None = None
    end_seconds: float | None = None
    """The source's span [start, end)."""
    first_k: int = 0
    stop_k: int | None = None
    """Samples [first_k, stop_k); None: to the end of the video."""
    every_frame: bool = False
    """Each frame that is displayed in the span is one sample, whatever the rate."""

    def grid(self, first_seconds: float) -> Grid:
        """The grid of a video whose first frame is at `first_seconds`."""
        return Grid.of(
            first_seconds=first_seconds,
            fps=self.fps,
            start_seconds=self.start_seconds,
            end_seconds=self.end_seconds,
        )

    def clip(self, first_k: int, count: int) -> range:
        """Those of the samples first_k, ..., first_k + count - 1 that are wanted."""
        stop = first_k + count if self.stop_k is None else min(first_k + count, self.stop_k)
        return range(max(first_k, self.first_k), stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledFrame(Generic[Picture]):
    """The picture on display at t_k."""

    k: int
    grid_seconds: float
    start_seconds: float
    end_seconds: float
    """[start, end) of its display."""
    picture: Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureClip(Generic[Picture]):
    """frames_per_clip pictures; the last clip of a video is filled with its last picture."""

    clip_index: int
    samples: list[SampledFrame[Picture]]
    num_frames: int
    """Samples that are not fill."""
    start_seconds: float
    end_seconds: float
    """From its first grid time to the next clip's, or to the end of the video or span."""


Sampled = Generator[SampledFrame[Picture], None, float]
"""Samples in order of k; returns where the last of them ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTimes:
    """The samples of a window over frames whose times are all known."""

    ks: range
    ranks: npt.NDArray[np.int64]
    """(K,) the frame on display, counted in the order of display."""
    grid_seconds: npt.NDArray[np.float64]
    """(K,)"""
    display_seconds: npt.NDArray[np.float64]
    """(K, 2) [start, end) of its display."""
    end_seconds: float
    """Where the last sample ends."""

    def sample(self, index: int, picture: Picture) -> SampledFrame[Picture]:
        """The sample at an index, with its picture."""
        return SampledFrame(
            k=self.ks[index],
            grid_seconds=float(self.grid_seconds[index]),
            start_seconds=float(self.display_seconds[index, 0]),
            end_seconds=float(self.display_seconds[index, 1]),
            picture=picture,
        )


def choose_samples(
    times: npt.NDArray[np.float64], *, duration_seconds: float, window: Window
) -> SampleTimes:
    """The samples in the window over frames at `times`, (N,) increasing, at least one.

    `duration_seconds` is the last frame's as the container says; 0 where it does not.
    """
    grid = window.grid(float(times[0]))
    ranks = displayed_indices(times, grid)
    ticks: npt.ArrayLike | None = None
    if window.every_frame and len(ranks):
        end = grid.end_seconds
        stop = len(times) if end is None else int(np.searchsorted(times, end))
        ranks = np.arange(ranks[0], stop)
        ticks = np.maximum(times[ranks], grid.origin_seconds)
    interval = float(times[-1] - times[-2]) if len(times) > 1 else 0.0
    duration = last_duration(duration_seconds, interval, window.fps)
    ranges = display_ranges(times, last_duration_seconds=duration)
    wanted = window.clip(0, len(ranks))
    ranks_wanted = ranks[wanted.start : max(wanted.start, wanted.stop)]
    return SampleTimes(
        ks=wanted,
        ranks=ranks_wanted,
        grid_seconds=np.array(
            [grid.time(k) for k in wanted] if ticks is None else ticks, dtype=np.float64
        ),
        display_seconds=ranges[ranks_wanted],
        end_seconds=_video_end(grid, window, len(ranks), float(ranges[-1, 1])),
    )


def sample_in_order(
    frames: Iterable[TimedFrame], *, window: Window, convert: Convert[Picture]
) -> Sampled[Picture]:
    """The wanted samples of frames that come in the order of their times.

    TimesGoBack: they do not; start again with `sample_any_order`.
    """
    if window.every_frame:
        return (yield from _every_frame(frames, window, convert))
    grid: Grid | None = None
    previous: TimedFrame | None = None
    interval = 0.0
    k = 0
    for current in frames:
        if previous is None or grid is None:
            grid = window.grid(current.seconds)
        else:
            if current.seconds < previous.seconds:
                raise TimesGoBack
            interval = current.seconds - previous.seconds
            first_k = k
            while _is_before(grid, k, current.seconds):
                k += 1
            yield from _emit(grid, window, first_k, k, previous, current.seconds, convert)
            # Only a frame beyond tells that the video goes on after the last wanted sample.
            if window.stop_k is not None and k >= window.stop_k:
                if grid.holds(window.stop_k, current.seconds):
                    return grid.time(window.stop_k)
            elif _is_over(grid, k, current.seconds):
                assert grid.end_seconds is not None
                return grid.end_seconds
        previous = current
    if previous is None or grid is None:
        return 0.0
    end = previous.seconds + last_duration(previous.duration_seconds, interval, window.fps)
    stop_k = max(k, grid.num_samples(previous.seconds))
    yield from _emit(grid, window, k, stop_k, previous, end, convert)
    return _video_end(grid, window, stop_k, end)


def _every_frame(
    frames: Iterable[TimedFrame], window: Window, convert: Convert[Picture]
) -> Sampled[Picture]:
    # What `choose_samples` chooses of the same frames.
    previous: TimedFrame | None = None
    interval = end = 0.0
    origin, stop = -math.inf, math.inf
    k = 0

    def sample(frame: TimedFrame, end_seconds: float) -> SampledFrame[Picture]:
        return SampledFrame(
            k=k,
            grid_seconds=max(frame.seconds, origin),
            start_seconds=frame.seconds,
            end_seconds=end_seconds,
            picture=convert(frame.frame),
        )

    for current in frames:
        if previous is None:
            grid = window.grid(current.seconds)
            origin = grid.origin_seconds
            stop = math.inf if grid.end_seconds is None else grid.end_seconds
        elif current.seconds < previous.seconds:
            raise TimesGoBack
        else:
            interval = current.seconds - previous.seconds
            if current.seconds > origin + TOLERANCE_SECONDS and previous.seconds < stop:
                yield sample(previous, current.seconds)
                k += 1
            if current.seconds >= stop:
                return stop
        previous = current
    if previous is not None and origin - TOLERANCE_SECONDS <= previous.seconds < stop:
        end = previous.seconds + last_duration(previous.duration_seconds, interval, window.fps)
        yield sample(previous, end)
    return min(end, stop)


def sample_any_order(
    decode: Callable[[], Iterable[TimedFrame]],
    *,
    window: Window,
    convert: Convert[Picture],
    in_display_order: Callable[[], bool] = lambda: False,
) -> Sampled[Picture]:
    """The wanted samples of frames whose times go back; calls `decode` twice, keeps all pictures.

    Frames are sorted by their times. Where frames come `in_display_order` all the same (asked after
    the first decoding), it is the times that are sorted: the first frame gets the earliest.
    """
    listed = [(frame.seconds, frame.duration_seconds) for frame in decode()]
    if not listed:
        return 0.0
    seconds = np.array([time for time, _ in listed])
    order = np.argsort(seconds, kind="stable")
    times = seconds[order]
    if in_display_order():
        order = np.arange(len(times))
    duration = listed[int(order[-1])][1]
    chosen = choose_samples(times, duration_seconds=duration, window=window)
    numbers = set(order[chosen.ranks].tolist())
    pictures = {
        number: convert(frame.frame) for number, frame in enumerate(decode()) if number in numbers
    }
    for i, rank in enumerate(chosen.ranks):
        yield chosen.sample(i, pictures[int(order[rank])])
    return chosen.end_seconds


def assemble_clips(
    samples: Sampled[Picture], *, frames_per_clip: int
) -> Iterator[PictureClip[Picture]]:
    """Clips back to back, the last one filled.

    A clip is given out when the next sample has come: until then it may be the last, which ends
    with the video.
    """
    held: list[SampledFrame[Picture]] = []
    while True:
        try:
            sample = next(samples)
        except StopIteration as stop:
            if held:
                yield _close(held, frames_per_clip, end_seconds=float(stop.value))
            return
        if len(held) == frames_per_clip:
            yield _close(held, frames_per_clip, end_seconds=sample.grid_seconds)
            held = []
        held.append(sample)


def last_duration(duration_seconds: float, interval_seconds: float, fps: float) -> float:
    """How long the last frame is displayed: its own duration, else the interval before it.

    A single frame without a duration is displayed for one sample.
    """
    return duration_seconds or interval_seconds or 1.0 / fps


def _is_before(grid: Grid, k: int, seconds: float) -> bool:
    # t_k is decided by an earlier frame than the one at `seconds`.
    time = grid.time(k)
    inside = grid.end_seconds is None or time < grid.end_seconds
    return inside and time + TOLERANCE_SECONDS < seconds


def _is_over(grid: Grid, k: int, seconds: float) -> bool:
    # The span has no grid time from t_k on, and the frame at `seconds` lies beyond it.
    end = grid.end_seconds
    return end is not None and grid.time(k) >= end and seconds >= end


def _emit(
    grid: Grid,
    window: Window,
    first_k: int,
    stop_k: int,
    frame: TimedFrame,
    end_seconds: float,
    convert: Convert[Picture],
) -> Iterator[SampledFrame[Picture]]:
    wanted = window.clip(first_k, stop_k - first_k)
    if not wanted:
        return
    picture = convert(frame.frame)
    for k in wanted:
        yield SampledFrame(
            k=k,
            grid_seconds=grid.time(k),
            start_seconds=frame.seconds,
            end_seconds=end_seconds,
            picture=picture,
        )


def _video_end(grid: Grid, window: Window, num_samples: int, end_seconds: float) -> float:
    if window.stop_k is not None and num_samples > window.stop_k:
        return grid.time(window.stop_k)
    return end_seconds if grid.end_seconds is None else min(end_seconds, grid.end_seconds)


def _close(
    held: list[SampledFrame[Picture]], frames_per_clip: int, *, end_seconds: float
) -> PictureClip[Picture]:
    return PictureClip(
        clip_index=held[0].k // frames_per_clip,
        samples=held + [held[-1]] * (frames_per_clip - len(held)),
        num_frames=len(held),
        start_seconds=held[0].grid_seconds,
        end_seconds=end_seconds,
    )
