"""The frames of a cache as one sequence a video, comparable across videos.

A frame is a vector of two parts: what an encoder says of it, seen from the mean over videos, and
what it looks like, small and grey. Copies that an encoder takes for something else, since they are
blurred, still look alike; what it takes for the same, since it shows the same things or is
mirrored, does not.

Shapes: N frames of all videos, D channels of the encoder, P of the picture.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipeline.aligning import Sequence
from pipeline.cache import FeatureCache
from pipeline.clip_vectors import shown_grids, to_directions
from pipeline.pooling import FrameVectors, pool_frames
from pipeline.thumbnails import mirror, picture_vectors, read_thumbnails

BLACK = 0.98
"""Share of black pixels from which a clip shows nothing: all such clips are alike."""
FEATURE_SHARE = 0.3
"""Of the score; the rest is the picture's. Chosen with `python -m benchmarks.dedup`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSequences:
    """The real frames of all videos, video by video, in order of time; black clips are left out."""

    video_ids: tuple[str, ...]
    starts: npt.NDArray[np.int64]
    """(videos + 1,): where the frames of a video begin."""
    features: npt.NDArray[np.float16]
    """(N, D); D = 0: they say nothing, and do not count."""
    pictures: npt.NDArray[np.float16]
    """(N, P) of length 1 or 0; P = 0: the cache has no previews."""
    times: npt.NDArray[np.float64]
    """(N,): on the sources' own clocks."""
    step_seconds: float

    def __len__(self) -> int:
        return len(self.video_ids)

    @property
    def frames_of(self) -> list[slice]:
        """Those of each video."""
        return [slice(begin, end) for begin, end in itertools.pairwise(self.starts.tolist())]

    @property
    def share(self) -> float:
        """Of the features in a score."""
        if not self.pictures.shape[1]:
            return 1.0
        return FEATURE_SHARE if self.features.shape[1] else 0.0

    def centred(self, video_ids: Collection[str]) -> FrameSequences:
        """The same with features as seen from their mean over these videos, of length 1.

        Over videos and not frames, so that a long one does not outweigh the others.
        """
        counted = [
            self.features[own].mean(axis=0, dtype=np.float64)
            for video_id, own in zip(self.video_ids, self.frames_of, strict=True)
            if video_id in video_ids and own.stop > own.start
        ]
        centre_D = np.mean(counted, axis=0) if counted else np.zeros(self.features.shape[1])
        features_ND = np.empty_like(self.features)
        for own in self.frames_of:  # a video at a time, for memory
            features_ND[own] = to_directions(
                self.features[own].astype(np.float32), centre_D=centre_D.astype(np.float32)
            )
        return replace(self, features=features_ND)

    def vectors(self, frames: slice | npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """(frames, D + P) of these frames, once centred: a product of two is their score."""
        parts = (self.share, self.features[frames]), (1 - self.share, self.pictures[frames])
        weighted = [np.float32(share**0.5) * part.astype(np.float32) for share, part in parts]
        return np.concatenate(weighted, axis=1)

    def sequence(self, number: int, *, mirrored: bool = False) -> Sequence:
        """Of the video with that number; `mirrored`, its pictures are."""
        own = self.frames_of[number]
        vectors = self.vectors(own)
        if mirrored and self.pictures.shape[1]:
            first = self.features.shape[1]
            vectors[:, first:] = mirror(vectors[:, first:])
        return Sequence(vectors=vectors, times=self.times[own], step_seconds=self.step_seconds)


def read_sequences(
    cache: FeatureCache,
    *,
    stream: str,
    with_features: bool = True,
    on_samples: Callable[[int], None] = lambda _: None,
) -> FrameSequences:
    """Of a stream, and of the pictures where the cache has previews.

    `with_features` False: of the pictures alone if there are any. `on_samples` is told how many
    more samples are done. Errors as of `pool_frames` and `read_thumbnails`.
    """
    index, sampling = cache.index, cache.recipe.sampling
    T, clip_seconds = sampling.frames_per_clip, sampling.frames_per_clip / sampling.fps
    has_pictures = cache.recipe.preview.enabled
    codes, ids = _codes(index.column("video_id").to_pylist())
    starts_N = index.column("start_seconds").to_numpy()
    num_frames_N = index.column("num_frames").to_numpy()
    black_N = np.array([value or 0.0 for value in index.column("black").to_pylist()])
    features, pictures, times, owners, step_seconds = [], [], [], [], clip_seconds
    thumbnails = read_thumbnails(cache, on_samples=on_samples) if has_pictures else None
    pooled: Iterator[FrameVectors] | None = None
    if with_features or not has_pictures:
        pooled = pool_frames(
            cache, stream=stream, on_samples=(lambda _: None) if has_pictures else on_samples
        )
    for rows in cache.extents.rows_by_shard().values():
        vectors_NGD = (
            np.zeros((len(rows), T, 0), np.float16) if pooled is None else (next(pooled).vectors)
        )
        G = vectors_NGD.shape[1]
        step_seconds = clip_seconds / G
        shown_NG = shown_grids(num_frames_N[rows], G=G, T=T)
        shown_NG &= (black_N[rows] < BLACK)[:, None]
        features.append(vectors_NGD[shown_NG])
        if thumbnails is not None:
            pictures.append(next(thumbnails).pictures[:, np.arange(G) * T // G][shown_NG])
        times.append((starts_N[rows][:, None] + np.arange(G) * step_seconds)[shown_NG])
        owners.append(np.broadcast_to(codes[rows][:, None], shown_NG.shape)[shown_NG])
    times_N, owners_N = np.concatenate(times), np.concatenate(owners)
    order = np.lexsort((times_N, owners_N))
    bounds = np.searchsorted(owners_N[order], np.arange(len(ids) + 1))
    sequences = FrameSequences(
        video_ids=tuple(ids),
        starts=bounds,
        features=np.concatenate(features)[order],
        pictures=np.zeros((len(order), 0), np.float16),
        times=times_N[order],
        step_seconds=step_seconds,
    )
    if not pictures:
        return sequences
    thumbnails_N = np.concatenate(pictures)[order]
    vectors = [picture_vectors(thumbnails_N[own]) for own in sequences.frames_of]
    return replace(sequences, pictures=np.concatenate(vectors).astype(np.float16))


def _codes(video_ids: list[str]) -> tuple[npt.NDArray[np.int64], list[str]]:
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(video_id, len(numbers)) for video_id in video_ids]
    return np.array(codes, dtype=np.int64), list(numbers)
