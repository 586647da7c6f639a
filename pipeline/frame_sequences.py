"""The frame vectors of a cache as one sequence a video, comparable across videos.

Features of one encoder have a large mean in common, which is taken away: that over videos, so that
a long one does not outweigh the others.

Shapes: N frames of all videos, D channels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipeline.aligning import Sequence
from pipeline.cache import FeatureCache
from pipeline.clip_vectors import shown_grids, to_directions
from pipeline.pooling import pool_frames

BLACK = 0.98
"""Share of black pixels from which a clip shows nothing: all such clips are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSequences:
    """The real frames of all videos, video by video, in order of time; black clips are left out."""

    video_ids: tuple[str, ...]
    starts: npt.NDArray[np.int64]
    """(videos + 1,): where the frames of a video begin."""
    vectors: npt.NDArray[np.float16]
    """(N, D); once centred, of length 1."""
    times: npt.NDArray[np.float64]
    """(N,): on the sources' own clocks."""
    step_seconds: float

    def __len__(self) -> int:
        return len(self.video_ids)

    def centred(self, video_ids: Collection[str]) -> FrameSequences:
        """The same frames as seen from the mean over these videos, of length 1."""
        bounds = itertools.pairwise(self.starts.tolist())
        videos = [slice(begin, end) for begin, end in bounds]
        total_D = np.zeros(self.vectors.shape[1], dtype=np.float64)
        num = 0
        for video_id, own in zip(self.video_ids, videos, strict=True):
            if video_id in video_ids and own.stop > own.start:
                total_D += self.vectors[own].mean(axis=0, dtype=np.float64)
                num += 1
        centre_D = (total_D / max(1, num)).astype(np.float32)
        vectors_ND = np.empty_like(self.vectors)
        for own in videos:  # a video at a time, for memory
            vectors_ND[own] = to_directions(self.vectors[own].astype(np.float32), centre_D=centre_D)
        return replace(self, vectors=vectors_ND)

    def sequence(self, number: int) -> Sequence:
        """Of the video with that number."""
        own = slice(int(self.starts[number]), int(self.starts[number + 1]))
        return Sequence(
            vectors=self.vectors[own].astype(np.float32),
            times=self.times[own],
            step_seconds=self.step_seconds,
        )


def read_sequences(
    cache: FeatureCache, *, stream: str, on_samples: Callable[[int], None] = lambda _: None
) -> FrameSequences:
    """Of a stream. Errors as of `pool_frames`."""
    index = cache.index
    sampling = cache.recipe.sampling
    T, clip_seconds = sampling.frames_per_clip, sampling.frames_per_clip / sampling.fps
    codes, ids = _codes(index.column("video_id").to_pylist())
    starts_N = index.column("start_seconds").to_numpy()
    num_frames_N = index.column("num_frames").to_numpy()
    black_N = np.array([value or 0.0 for value in index.column("black").to_pylist()])
    vectors, times, owners, step_seconds = [], [], [], clip_seconds
    for part in pool_frames(cache, stream=stream, on_samples=on_samples):
        G = part.vectors.shape[1]
        step_seconds = clip_seconds / G
        shown_NG = shown_grids(num_frames_N[part.rows], G=G, T=T)
        shown_NG &= (black_N[part.rows] < BLACK)[:, None]
        times_NG = starts_N[part.rows][:, None] + np.arange(G) * step_seconds
        vectors.append(part.vectors[shown_NG])
        times.append(times_NG[shown_NG])
        owners.append(np.broadcast_to(codes[part.rows][:, None], shown_NG.shape)[shown_NG])
    vectors_ND, times_N = np.concatenate(vectors), np.concatenate(times)
    owners_N = np.concatenate(owners)
    order = np.lexsort((times_N, owners_N))
    vectors_ND, times_N, owners_N = vectors_ND[order], times_N[order], owners_N[order]
    bounds = np.searchsorted(owners_N, np.arange(len(ids) + 1))
    return FrameSequences(
        video_ids=tuple(ids),
        starts=bounds,
        vectors=vectors_ND,
        times=times_N,
        step_seconds=step_seconds,
    )


def _codes(video_ids: list[str]) -> tuple[npt.NDArray[np.int64], list[str]]:
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(video_id, len(numbers)) for video_id in video_ids]
    return np.array(codes, dtype=np.int64), list(numbers)
