"""FrameSequences: one vector a sampled frame of every video, in order of time.

Vectors are centred, so that a cosine says something, and brought to few dimensions by the
directions in which they vary most. Shapes: F frames, N clips, G grids a clip, D channels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.clip_vectors import turn_to_directions
from pipeline.pooling import pool_frames
from pipeline.thumbnails import SIZE, ThumbnailShelf

DIM = 128
"""Of more channels, so many directions are kept."""
LEAST_CENTRED = 8
"""Videos; the mean of fewer is more of what they show than of what encoders add."""
NUM_LEARNED = 20_000
"""Frames, about, by which directions are found."""

Vectors = npt.NDArray[np.float32]
Piece = tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]]
"""(N,) rows of the index, and their (N, G, D) vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSequences:
    """The frames of all videos, one video after the other."""

    video_ids: tuple[str, ...]
    firsts: npt.NDArray[np.int64]
    """(videos + 1,): where each video's frames begin, and where the last one's end."""
    times: npt.NDArray[np.float64]
    """(F,): grid times in seconds on each source's own clock, increasing within a video."""
    vectors: Vectors
    """(F, D) of length 1."""
    step_seconds: float
    """From a frame to the next."""

    @functools.cached_property
    def video_of_frame(self) -> npt.NDArray[np.int64]:
        """(F,): the number of each frame's video."""
        return np.repeat(np.arange(len(self.video_ids)), np.diff(self.firsts))

    def frames(self, video: int) -> slice:
        """Of a video by its number."""
        return slice(int(self.firsts[video]), int(self.firsts[video + 1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Which rows of the index are which clips."""

    video_ids: tuple[str, ...]
    videos: npt.NDArray[np.int64]
    """(rows,): the number of the video."""
    starts: npt.NDArray[np.float64]
    num_frames: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    """(rows,): by video and clip."""


def read_sequences(
    cache: FeatureCache, *, stream: str, on_samples: Callable[[int], None] = lambda _: None
) -> FrameSequences:
    """From the frame vectors of a stream. Errors are those of `pool_frames`."""
    told = on_samples

    def pieces() -> Iterator[Piece]:
        nonlocal told
        for shard in pool_frames(cache, stream=stream, on_samples=told):
            yield shard.rows, shard.vectors
        told = lambda _: None  # noqa: E731 - the second time all are there

    return to_sequences(cache, pieces)


def read_picture_sequences(
    cache: FeatureCache,
    shelf: ThumbnailShelf,
    *,
    on_samples: Callable[[int], None] = lambda _: None,
) -> FrameSequences:
    """From the previews, for encoders whose features mean nothing. CacheDamaged."""
    rows_of = {key: row for row, key in enumerate(cache.index.column("key").to_pylist())}
    T = cache.recipe.sampling.frames_per_clip
    kept: list[Piece] = []

    def pieces() -> Iterator[Piece]:
        if kept:
            yield from kept
            return
        real_N = cache.index.column("num_frames").to_numpy()
        for video_id, keys in cache.videos.items():
            rows = np.array([rows_of[key] for key in keys])
            vectors = np.zeros((len(rows), T, (SIZE // 2) ** 2), dtype=np.float16)
            is_real = np.arange(T) < real_N[rows][:, None]
            vectors[is_real] = _halve(shelf[video_id].pictures)
            kept.append((rows, vectors))
            on_samples(len(rows))
        yield from kept

    return to_sequences(cache, pieces)


def _halve(pictures: Vectors) -> Vectors:
    halves = pictures.reshape(-1, SIZE // 2, 2, SIZE // 2, 2).mean(axis=(2, 4))
    return halves.reshape(len(pictures), -1)


def to_sequences(cache: FeatureCache, pieces: Callable[[], Iterator[Piece]]) -> FrameSequences:
    """`pieces` gives all rows of the index, each time the same."""
    places = _places(cache)
    T, fps = cache.recipe.sampling.frames_per_clip, cache.recipe.sampling.fps
    centre_D, basis_DE, G = _learn(pieces, places, T=T)
    real_N = np.clip(-(-places.num_frames * G // T), 1, G)
    in_order = real_N[places.order]
    begins = np.empty(len(real_N), dtype=np.int64)
    begins[places.order] = np.cumsum(in_order) - in_order
    dim = len(centre_D) if basis_DE is None else basis_DE.shape[1]
    vectors = np.empty((int(real_N.sum()), dim), dtype=np.float32)
    times = np.empty(len(vectors))
    step = T / fps / G
    for rows, vectors_NGD in pieces():
        is_real = np.arange(G) < real_N[rows][:, None]
        where = (begins[rows][:, None] + np.arange(G))[is_real]
        flat = vectors_NGD[is_real].astype(np.float32) - centre_D
        vectors[where] = flat if basis_DE is None else flat @ basis_DE
        times[where] = (places.starts[rows][:, None] + step * np.arange(G))[is_real]
    turn_to_directions(vectors, centre_D=np.zeros(dim, dtype=np.float32))
    counts = np.bincount(places.videos, weights=real_N, minlength=len(places.video_ids))
    return FrameSequences(
        video_ids=places.video_ids,
        firsts=np.concatenate([[0], np.cumsum(counts.astype(np.int64))]),
        times=times,
        vectors=vectors,
        step_seconds=step,
    )


def _places(cache: FeatureCache) -> _Places:
    table = cache.index
    ids = np.array(table.column("video_id").to_pylist(), dtype=object)
    video_ids, videos = np.unique(ids, return_inverse=True)
    clips = table.column("clip_index").to_numpy()
    return _Places(
        video_ids=tuple(video_ids.tolist()),
        videos=videos,
        starts=table.column("start_seconds").to_numpy(),
        num_frames=table.column("num_frames").to_numpy().astype(np.int64),
        order=np.lexsort((clips, videos)),
    )


def _learn(
    pieces: Callable[[], Iterator[Piece]], places: _Places, *, T: int
) -> tuple[Vectors, Vectors | None, int]:
    """(the centre, the directions that are kept, G)."""
    num_videos = len(places.video_ids)
    counts_V = np.bincount(places.videos, minlength=num_videos)
    every = max(1, len(places.videos) // NUM_LEARNED)
    centre: npt.NDArray[np.float64] | None = None
    chosen: list[Vectors] = []
    G = 1
    for rows, vectors_NGD in pieces():
        G = vectors_NGD.shape[1]
        means_ND = vectors_NGD.mean(axis=1, dtype=np.float32)
        # Each video counts once, however long it is.
        weights_N = 1 / counts_V[places.videos[rows]] / num_videos
        part = weights_N @ means_ND.astype(np.float64)
        centre = part if centre is None else centre + part
        chosen.append(
            vectors_NGD[rows % every == 0].reshape(-1, vectors_NGD.shape[2])[:: max(1, G)]
        )
    assert centre is not None  # a cache has clips
    centre_D = centre.astype(np.float32)
    if num_videos < LEAST_CENTRED:
        centre_D = np.zeros_like(centre_D)
    if len(centre_D) <= DIM:
        return centre_D, None, G
    sample = np.concatenate(chosen).astype(np.float32) - centre_D
    _, directions = np.linalg.eigh(sample.T @ sample)
    return centre_D, np.ascontiguousarray(directions[:, -DIM:], dtype=np.float32), G
