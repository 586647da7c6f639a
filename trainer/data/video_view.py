"""VideoView: which frames of a cached video the model sees, gathered into its clips.

A clip of the cache is what an encoder saw together; a clip of a view is what is resampled together.
They are the same unless the ViewSpec asks for fewer or other frames.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from schemas.errors import ConfigError
from trainer.config import ViewSpec
from trainer.data.annotation import Span

TOLERANCE_SECONDS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedVideo:
    """The samples of one video, in order of time."""

    video_id: str
    rows: npt.NDArray[np.int64]
    """(S,): their rows in the index."""
    clip_index: npt.NDArray[np.int64]
    """(S,)"""
    start_seconds: npt.NDArray[np.float64]
    """(S,): of each clip, and below the end; clips that follow each other touch."""
    end_seconds: npt.NDArray[np.float64]
    num_frames: npt.NDArray[np.int64]
    """(S,): without fill."""
    times: npt.NDArray[np.float64] | None = None
    """(S, T, 2): of each frame, as stored; None: not read, since only whole clips are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoView:
    """C clips of F frames each."""

    video_id: str
    rows: npt.NDArray[np.int64]
    """(C, F): row of the index that holds the frame; -1: there is none."""
    frames: npt.NDArray[np.int64]
    """(C, F): which of the row's frames."""
    start_seconds: npt.NDArray[np.float64]
    """(C,): of each clip, on the video's clock."""
    end_seconds: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, clips: npt.NDArray[np.int64]) -> VideoView:
        """The view of some of the clips."""
        return replace(
            self,
            rows=self.rows[clips],
            frames=self.frames[clips],
            start_seconds=self.start_seconds[clips],
            end_seconds=self.end_seconds[clips],
        )

    def spread(self, num_clips: int) -> VideoView:
        """At most so many clips, each whole, evenly over all; Apollo's rule for long videos."""
        return self if len(self) <= num_clips else self.take(evenly(len(self), num_clips))

    def overlapping(self, span: Span) -> npt.NDArray[np.int64]:
        """Indices of the clips that overlap [start, end)."""
        start, end = span
        before_end = self.start_seconds < end - TOLERANCE_SECONDS
        return np.flatnonzero(before_end & (self.end_seconds > start + TOLERANCE_SECONDS))


def evenly(count: int, wanted: int) -> npt.NDArray[np.int64]:
    """`wanted` of `count` indices: the middle of each of as many equal parts."""
    return ((np.arange(wanted) + 0.5) * count / wanted).astype(np.int64)


def frame_stride(spec: ViewSpec, *, cache_fps: float) -> int:
    """Of the cache's frames every so-manieth is seen. ConfigError: not a whole number."""
    if spec.policy == "uniform" or spec.fps == 0:
        return 1
    stride = round(cache_fps / spec.fps)
    if stride < 1 or abs(cache_fps / stride - spec.fps) > 1e-9 * cache_fps:
        raise ConfigError(
            f"view.fps = {spec.fps:g} must be the cache's {cache_fps:g} divided by a whole number"
        )
    return stride


def needs_frame_times(spec: ViewSpec, *, cache_fps: float, frames_per_clip: int) -> bool:
    """Whether clips of the view are others than the cache's, so that the times of frames count."""
    whole = spec.policy == "fps" and spec.input != "center"
    same = spec.frames_per_clip in (0, frames_per_clip)
    return not (whole and same and frame_stride(spec, cache_fps=cache_fps) == 1)


def view_video(
    video: CachedVideo, spec: ViewSpec, *, cache_fps: float, frames_per_clip: int, span: Span | None
) -> VideoView:
    """What the model sees of a video, or of a span of it.

    `frames_per_clip` is the cache's. Clips lie on the video's own grid whatever the span, which
    takes all that overlap it. ConfigError as of `frame_stride`.
    """
    F = spec.frames_per_clip or frames_per_clip
    if spec.input == "text":
        return _empty(video, F)
    if not needs_frame_times(spec, cache_fps=cache_fps, frames_per_clip=frames_per_clip):
        frames = np.arange(F)
        filled = frames[None, :] < video.num_frames[:, None]
        view = VideoView(
            video_id=video.video_id,
            rows=np.where(filled, video.rows[:, None], -1),
            frames=np.where(filled, frames, 0),
            start_seconds=video.start_seconds,
            end_seconds=video.end_seconds,
        )
        return _limit(view if span is None else view.take(view.overlapping(span)), spec)
    assert video.times is not None
    T = frames_per_clip
    sample, frame = np.nonzero(np.arange(T)[None, :] < video.num_frames[:, None])
    k = video.clip_index[sample] * T + frame
    seconds = video.times[sample, frame]
    # A frame counts until the next one that the cache has, as its clip does.
    ends = np.append(seconds[1:, 0], seconds[-1:, 1])
    if spec.policy == "uniform" or spec.input == "center":
        wanted = np.arange(len(k))
        if span is not None:
            wanted = np.flatnonzero((seconds[:, 0] < span[1]) & (ends > span[0]))
        num_frames = 1 if spec.input == "center" else spec.num_frames
        if len(wanted) > num_frames:
            wanted = wanted[evenly(len(wanted), num_frames)]
        place = np.arange(len(wanted))
    else:
        stride = frame_stride(spec, cache_fps=cache_fps)
        wanted = np.flatnonzero(k % stride == 0)
        place = k[wanted] // stride
    groups, clip = np.unique(place // F, return_inverse=True)
    rows = np.full((len(groups), F), -1, dtype=np.int64)
    frames = np.zeros((len(groups), F), dtype=np.int64)
    rows[clip, place % F] = video.rows[sample[wanted]]
    frames[clip, place % F] = frame[wanted]
    starts = np.full(len(groups), np.inf)
    stops = np.full(len(groups), -np.inf)
    np.minimum.at(starts, clip, seconds[wanted, 0])
    np.maximum.at(stops, clip, ends[wanted])
    if spec.policy == "fps" and spec.input != "center" and len(groups):
        # The rate is what makes clips touch: each lasts until the next frame that is looked at.
        next_starts = np.append(starts[1:], max(stops[-1], starts[-1]))
        follows = np.append(groups[1:] == groups[:-1] + 1, False)
        stops = np.where(follows, next_starts, np.maximum(stops, starts))
    view = VideoView(
        video_id=video.video_id, rows=rows, frames=frames, start_seconds=starts, end_seconds=stops
    )
    if span is not None and spec.policy == "fps" and spec.input != "center":
        view = view.take(view.overlapping(span))
    return _limit(view, spec)


def _limit(view: VideoView, spec: ViewSpec) -> VideoView:
    return view.spread(spec.max_clips) if spec.max_clips else view


def _empty(video: CachedVideo, frames_per_clip: int) -> VideoView:
    nothing = np.zeros((0, frames_per_clip), dtype=np.int64)
    none = np.zeros(0)
    return VideoView(
        video_id=video.video_id, rows=nothing, frames=nothing, start_seconds=none, end_seconds=none
    )
