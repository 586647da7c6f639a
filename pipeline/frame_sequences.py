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
from pipeline.thumbnails import Pictures, Thumbnails, mirror, picture_vectors, read_thumbnails

BLACK = 0.98
"""Share of black pixels from which a clip shows nothing: all such clips are alike."""
FEATURE_SHARE = 0.3
"""Of the score; the rest is the picture's. Chosen with `python -m benchmarks.dedup`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSequences:
    """The real frames of all videos, video by video, in order of time.

    Black clips are left out, and frames whose features are no numbers.
    """

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
    thumbnails: Iterator[Thumbnails] | None = None
    pooled: Iterator[FrameVectors] | None = None
    if cache.recipe.preview.enabled:
        thumbnails, on_samples = read_thumbnails(cache, on_samples=on_samples), lambda _: None
    if with_features or thumbnails is None:
        pooled = pool_frames(cache, stream=stream, on_samples=on_samples)
    parts = [
        _take_shown(
            cache,
            rows,
            features=None if pooled is None else next(pooled).vectors,
            pictures=None if thumbnails is None else next(thumbnails).pictures,
        )
        for rows in cache.extents.rows_by_shard().values()
    ]
    rows_N = np.concatenate([part.rows for part in parts])
    times_N = np.concatenate([part.times for part in parts])
    ids, codes = np.unique(cache.index.column("video_id").to_numpy(), return_inverse=True)
    order = np.lexsort((times_N, codes[rows_N]))
    starts = np.searchsorted(codes[rows_N][order], np.arange(len(ids) + 1))
    sequences = FrameSequences(
        video_ids=tuple(ids.tolist()),
        starts=starts,
        features=np.concatenate([part.features for part in parts])[order],
        pictures=np.zeros((len(order), 0), np.float16),
        times=times_N[order],
        step_seconds=parts[0].step_seconds,
    )
    if thumbnails is None:
        return sequences
    pictures = np.concatenate([part.pictures for part in parts])[order]
    vectors = [picture_vectors(pictures[own]) for own in sequences.frames_of]
    return replace(sequences, pictures=np.concatenate(vectors).astype(np.float16))


@dataclass(frozen=True, slots=True)
class _Shown:
    rows: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    features: npt.NDArray[np.float16]
    pictures: Pictures
    step_seconds: float


def _take_shown(
    cache: FeatureCache,
    rows: npt.NDArray[np.int64],
    *,
    features: npt.NDArray[np.float16] | None,
    pictures: Pictures | None,
) -> _Shown:
    """What is not fill, and not black, of the clips of one shard."""
    T = cache.recipe.sampling.frames_per_clip
    if features is None:
        features = np.zeros((len(rows), T, 0), np.float16)
    if pictures is None:
        pictures = np.zeros((len(rows), T, 0, 0), np.uint8)
    G = features.shape[1]
    step_seconds = T / cache.recipe.sampling.fps / G
    columns = cache.index.select(["start_seconds", "num_frames", "black"]).take(rows)
    starts_N, num_frames_N = (column.to_numpy() for column in columns.columns[:2])
    black_N = columns.column("black").fill_null(0.0).to_numpy()
    shown_NG = shown_grids(num_frames_N, G=G, T=T) & (black_N < BLACK)[:, None]
    # One that is no number would make all others none, by way of the mean.
    shown_NG &= np.isfinite(features).all(axis=2)
    times_NG = starts_N[:, None] + np.arange(G) * step_seconds
    return _Shown(
        rows=np.broadcast_to(rows[:, None], shown_NG.shape)[shown_NG],
        times=times_NG[shown_NG],
        features=features[shown_NG],
        pictures=pictures[:, np.arange(G) * T // G][shown_NG],
        step_seconds=step_seconds,
    )
