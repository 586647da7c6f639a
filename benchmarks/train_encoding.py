"""Clips of random frames, decoded already, and a reader that encodes them whenever it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.encode_steps import spend
from benchmarks.train_cache import CLIP_SECONDS
from pipeline.decoding import ClipFrames
from pipeline.encoding import StreamEncoders
from schemas.errors import VideoError
from schemas.sample import Sample
from trainer.data.buffers import Buffers
from trainer.data.clip_reader import CachedClips

STREAM, FRAMES = "video", 4
CLIPS_PER_VIDEO = 4


class EncodingReader:
    """Makes features of frames that lie in memory, as the pipeline does, whenever it is asked."""

    def __init__(self, encoders: StreamEncoders, clips: list[ClipFrames]) -> None:
        """`clips` are those of the rows of the index."""
        self._encoders, self._clips = encoders, clips
        self.cpu_seconds = 0.0

    def read(self, rows_CF: Any, frames_CF: Any, *, into: Buffers) -> CachedClips:  # noqa: ARG002
        clips = [self._clips[row] for row in rows_CF[:, 0]]
        values: list[Any] = []
        spent = spend(lambda: values.extend(_encode(self._encoders, clips)))
        self.cpu_seconds += spent[0]
        times = np.stack([clip.times for clip in clips])
        return CachedClips(
            features={STREAM: torch.from_numpy(np.stack(values))},
            scales={},
            frame_mask=torch.ones(rows_CF.shape, dtype=torch.bool),
            frame_times=torch.from_numpy(times),
        )


def _encode(encoders: StreamEncoders, clips: list[ClipFrames]) -> Iterator[Any]:
    """(T, H, W, D) float16 of each."""
    for features in encoders.encode(clips):
        assert not isinstance(features, VideoError), features
        yield features[STREAM].values


def make_clips(encoders: StreamEncoders, *, num_clips: int) -> list[ClipFrames]:
    spec, generator = encoders.specs[STREAM], np.random.default_rng(0)
    shape = (FRAMES, spec.height, spec.width, 3)
    clips = []
    for number in range(num_clips):
        start = CLIP_SECONDS * (number % CLIPS_PER_VIDEO)
        begins = start + np.arange(FRAMES) * CLIP_SECONDS / FRAMES
        clips.append(
            ClipFrames(
                clip_index=number % CLIPS_PER_VIDEO,
                num_frames=FRAMES,
                start_seconds=start,
                end_seconds=start + CLIP_SECONDS,
                times=np.stack([begins, begins + CLIP_SECONDS / FRAMES], axis=1),
                frames={STREAM: generator.integers(0, 256, shape, dtype=np.uint8)},
                preview=None,
                corrupt=False,
                shape={},
            )
        )
    return clips


def make_samples(encoders: StreamEncoders, clips: list[ClipFrames]) -> Iterator[Sample]:
    for number, (clip, values) in enumerate(zip(clips, _encode(encoders, clips), strict=True)):
        video_id = f"v{number // CLIPS_PER_VIDEO}"
        yield Sample(
            key=f"{video_id}_{clip.clip_index:06d}",
            features={STREAM: values},
            times=clip.times,
            mask=np.ones(FRAMES, bool),
            info={"video_id": video_id, "clip_index": clip.clip_index},
            preview=None,
        )
