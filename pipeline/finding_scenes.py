"""Find scenes: every frame of a video is looked at, and where a shot ends a scene begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.decoding import ClipFrames, Order, StartAgain
from pipeline.fetching import Fetcher
from pipeline.pool import DecoderPool
from pipeline.prefetching import DecodeAhead
from pipeline.video_sources import VideoSource
from schemas.errors import VideoError
from schemas.event import Event
from schemas.recipe import DecodeSpec, PreviewSpec
from schemas.resize import PictureSpec

SCENE = "scene"
NUM_DECODERS = 2
"""Processes that decode side by side."""
FRAMES_AT_ONCE = 50

Frames = npt.NDArray[np.uint8]
Times = npt.NDArray[np.float64]
Found = tuple[str, list[Event] | VideoError]
"""video_id -> its events, or why it could not be looked at."""


class Detector(Protocol):
    """As `encoders.shots.ShotDetector`."""

    def probabilities(self, frames: Iterator[Frames]) -> Iterator[npt.NDArray[np.float32]]:
        """How likely each frame is the last one of a shot."""


def find_scenes(
    cache: FeatureCache,
    sources: Sequence[VideoSource],
    *,
    detector: Detector,
    picture: PictureSpec,
    threshold: float,
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[Found]:
    """The scenes of each video, in the order of `sources`.

    They lie back to back over all of it. A scene begins when its first frame is displayed, and its
    score is the probability of that cut; the first one has none. `progress` is told seconds of
    video. StorageError: the disk is full.
    """
    recipe = replace(
        cache.recipe,
        sampling=replace(cache.recipe.sampling, frames_per_clip=FRAMES_AT_ONCE),
        preview=PreviewSpec(enabled=False),
        decode=DecodeSpec(),
    )
    pieces = [
        replace(
            one.piece,
            num_clips=math.ceil(max(1.0, one.seconds * recipe.sampling.fps) / FRAMES_AT_ONCE),
        )
        for one in sources
    ]
    with (
        DecoderPool(recipe.limits, num_processes=NUM_DECODERS) as pool,
        Fetcher(pieces, scratch=cache.layout.scratch) as files,
        DecodeAhead(
            pieces,
            recipe=recipe,
            pictures={SCENE: picture},
            pool=pool,
            files=files,
            every_frame=True,
        ) as ahead,
    ):
        for source, piece in zip(sources, pieces, strict=True):
            order: Order | None = None
            while True:
                try:
                    looked = _Looked(ahead.clips(piece, order=order), progress)
                    found = [p for some in detector.probabilities(looked.frames()) for p in some]
                    scenes = cut_scenes(source, looked.times(), found, threshold=threshold)
                except StartAgain as again:
                    order = again.order
                    continue
                except VideoError as error:
                    yield source.video_id, error
                else:
                    yield source.video_id, scenes
                break


def cut_scenes(
    source: VideoSource, times: Times, probabilities: Sequence[float], *, threshold: float
) -> list[Event]:
    """Scenes of a video whose N frames are displayed at `times`, (N, 2) seconds.

    `probabilities` are those of a cut after each frame. Of frames in a row that are all above
    `threshold`, as in a fade, the likeliest is the last one of its shot. VideoError: no_frames.
    """
    if not len(times):
        raise VideoError("no_frames", "none is displayed")
    lasts: list[int] = []
    run: list[int] = []
    for number, probability in enumerate(probabilities):
        if probability > threshold:
            run.append(number)
        elif run:
            lasts.append(max(run, key=lambda i: probabilities[i]))
            run = []
    # Nothing comes after the last frame, whatever the probability.
    begins = [0, *(last + 1 for last in lasts if last + 1 < len(times))]
    end = float(times[-1, 1])
    if source.piece.end_seconds is not None:
        end = min(end, source.piece.end_seconds)
    starts = [max(float(times[number, 0]), source.origin_seconds) for number in begins]
    scores = [None, *(float(probabilities[number - 1]) for number in begins[1:])]
    return [
        Event(
            video_id=source.video_id,
            start_seconds=start,
            end_seconds=max(start, stop),
            kind=SCENE,
            score=score,
        )
        for start, stop, score in zip(starts, [*starts[1:], end], scores, strict=True)
    ]


class _Looked:
    """The frames of a video on their way to a detector; their times are kept."""

    def __init__(self, clips: Iterator[object], progress: Callable[[float], None]) -> None:
        self._clips = clips
        self._progress = progress
        self._times: list[Times] = []

    def frames(self) -> Iterator[Frames]:
        for clip in self._clips:
            if isinstance(clip, ClipFrames):
                times = clip.times[: clip.num_frames]
                self._times.append(times)
                yield clip.frames[SCENE][: clip.num_frames]
                self._progress(float(times[-1, 1] - times[0, 0]))

    def times(self) -> Times:
        return np.concatenate(self._times) if self._times else np.zeros((0, 2))
