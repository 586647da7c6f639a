"""VideoView: which frames of a cached video the model sees, gathered into its clips.

A clip of the cache is what an encoder saw together; a clip of a view is what is resampled together.
They are the same unless the ViewSpec asks for fewer or other frames. Times are grid times, as those
of the cache's clips: a picture that stays on display is seen again at each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from schemas.errors import ConfigError
from schemas.event import Event
from trainer.config import ViewSpec
from trainer.data.annotation import Span

TOLERANCE_SECONDS = 1e-6
Seconds = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedVideo:
    """The samples of one video, in order of time."""

    video_id: str
    rows: Indices
    """(S,): their rows in the index."""
    clip_index: Indices
    """(S,)"""
    start_seconds: Seconds
    """(S,): grid time of each clip's first frame; frame i is looked at i / fps after it."""
    end_seconds: Seconds
    """(S,): clips that follow each other touch."""
    num_frames: Indices
    """(S,): without fill."""
    events: tuple[Event, ...] | None = ()
    """Of the kinds that a view asks for, in order of time; None: nobody has looked for them."""

    def overlapping(self, span: Span) -> Indices:
        """Indices of the samples that overlap [start, end)."""
        return np.flatnonzero(_overlap(self.start_seconds, self.end_seconds, span))


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoView:
    """C clips of F frames each."""

    video_id: str
    rows: Indices
    """(C, F): row of the index that holds the frame; -1: there is none."""
    frames: Indices
    """(C, F): which of the row's frames."""
    start_seconds: Seconds
    """(C,): of each clip, on the video's clock: grid time of its first frame."""
    end_seconds: Seconds
    """(C,): when its last frame's time is over."""
    origin_seconds: float = 0.0
    """When the clock of these times begins, on the video's own."""
    events: tuple[Event, ...] = ()
    """Of all the video, on its own clock."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, clips: Indices) -> VideoView:
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

    def since(self, seconds: float) -> VideoView:
        """The same on a clock that begins at `seconds`."""
        return replace(
            self,
            start_seconds=self.start_seconds - seconds,
            end_seconds=self.end_seconds - seconds,
            origin_seconds=self.origin_seconds + seconds,
        )

    def overlapping(self, span: Span) -> Indices:
        """Indices of the clips that overlap [start, end)."""
        return np.flatnonzero(_overlap(self.start_seconds, self.end_seconds, span))


def evenly(count: int, wanted: int) -> Indices:
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


def view_video(
    video: CachedVideo, spec: ViewSpec, *, cache_fps: float, frames_per_clip: int, span: Span | None
) -> VideoView:
    """What the model sees of a video, or of a span of it.

    `frames_per_clip` is the cache's. Clips lie on the video's own grid whatever the span, which
    takes all that overlap it; a uniform choice is made among the frames that do. Frames that the
    cache lacks are masked, clips without any are left out. ConfigError as of `frame_stride`.
    """
    F = spec.frames_per_clip or frames_per_clip
    stride = frame_stride(spec, cache_fps=cache_fps)
    if spec.input == "text":
        return _whole(video, F).take(np.zeros(0, dtype=np.int64))
    by_rate = spec.policy == "fps" and spec.input != "center"
    if by_rate and stride == 1 and frames_per_clip == F:
        view = _whole(video, F)
    else:
        sample, frame = np.nonzero(np.arange(frames_per_clip) < video.num_frames[:, None])
        k = video.clip_index[sample] * frames_per_clip + frame
        starts = video.start_seconds[sample] + frame / cache_fps
        # A frame's time is over at the next grid time, or where the cache's clip ends.
        ends = video.end_seconds[sample]
        follows = k[1:] == k[:-1] + 1
        ends[:-1][follows] = starts[1:][follows]
        if by_rate:
            wanted = np.flatnonzero(k % stride == 0)
            place = k[wanted] // stride
            # What is passed over belongs to the frame before it.
            ends = ends[np.searchsorted(k, k + stride) - 1]
        else:
            wanted = np.arange(len(k))
            if span is not None:
                wanted = np.flatnonzero(_overlap(starts, ends, span))
            num_frames = 1 if spec.input == "center" else spec.num_frames
            if len(wanted) > num_frames:
                wanted = wanted[evenly(len(wanted), num_frames)]
            place = np.arange(len(wanted))
        groups, first, clip = np.unique(place // F, return_index=True, return_inverse=True)
        last = np.append(first[1:], len(place)) - 1
        rows = np.full((len(groups), F), -1, dtype=np.int64)
        frames = np.zeros((len(groups), F), dtype=np.int64)
        rows[clip, place % F] = video.rows[sample[wanted]]
        frames[clip, place % F] = frame[wanted]
        view = VideoView(
            video_id=video.video_id,
            rows=rows,
            frames=frames,
            start_seconds=starts[wanted[first]],
            end_seconds=ends[wanted[last[: len(groups)]]],
            events=video.events or (),
        )
    if span is not None and by_rate:
        view = view.take(view.overlapping(span))
    return view.spread(spec.max_clips) if spec.max_clips else view


def _whole(video: CachedVideo, frames_per_clip: int) -> VideoView:
    """The cache's own clips."""
    frames = np.arange(frames_per_clip)
    filled = frames < video.num_frames[:, None]
    return VideoView(
        video_id=video.video_id,
        rows=np.where(filled, video.rows[:, None], -1),
        frames=np.where(filled, frames, 0),
        start_seconds=video.start_seconds,
        end_seconds=video.end_seconds,
        events=video.events or (),
    )


def _overlap(starts: Seconds, ends: Seconds, span: Span) -> npt.NDArray[np.bool_]:
    start, end = span
    return (starts < end - TOLERANCE_SECONDS) & (ends > start + TOLERANCE_SECONDS)
