"""Match frames: for the frames of each video, the nearest frames of other videos.

A video's frames that look alike are one: of them the first stands for all, so that a still picture
does not use up the places of the nearest. Shapes: F frames, R frames that stand for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.sequences import FrameSequences
from pipeline.vector_building import choose_rows
from pipeline.vector_index import NearestByAll, VectorIndex, choose_kind, load_faiss
from schemas.errors import UsageError

SAME_FROM = 0.95
"""Cosine of two frames of one video from which they are one."""
LOOK_BACK = 512
"""Frames in which a like one is looked for."""
NUM_NEAREST = 32
LEAST_LIKE = 0.2
"""Cosine of a match; loose, for what is matched is aligned and then looked at."""
MOST_WITHOUT_FAISS = 50_000
_QUERIES_AT_ONCE = 4096

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """M matches; `first` is always of a video with a smaller number than `second`."""

    first: Numbers
    second: Numbers
    """(M,) numbers of frames."""
    cosines: npt.NDArray[np.float32]
    num_distinct: Numbers
    """(videos,): frames of each that stand for others."""


def match_frames(
    sequences: FrameSequences, *, on_frames: Callable[[int], None] = lambda _: None
) -> Matches:
    """The near frames of every two videos. UsageError: too many frames without faiss."""
    chosen = choose_distinct(sequences)
    videos_R = sequences.video_of_frame[chosen]
    found: list[tuple[Numbers, Numbers, npt.NDArray[np.float32]]] = []
    for start, scores_QK, numbers_QK in _search(sequences.vectors[chosen]):
        own_Q = np.arange(start, start + len(scores_QK))
        near = (numbers_QK >= 0) & (scores_QK >= LEAST_LIKE)
        near &= videos_R[numbers_QK] != videos_R[own_Q][:, None]
        rows, columns = np.nonzero(near)
        found.append((own_Q[rows], numbers_QK[rows, columns], scores_QK[rows, columns]))
        on_frames(len(scores_QK))
    own, other, cosines = (np.concatenate(parts) for parts in zip(*found, strict=True))
    swap = own > other  # frames are in the order of their videos
    first, second = np.where(swap, other, own), np.where(swap, own, other)
    _, once = np.unique(first * len(chosen) + second, return_index=True)
    return Matches(
        first=chosen[first[once]],
        second=chosen[second[once]],
        cosines=cosines[once],
        num_distinct=np.bincount(videos_R, minlength=len(sequences.video_ids)),
    )


def choose_distinct(sequences: FrameSequences) -> Numbers:
    """(R,) numbers of frames that are not like one of their video's shortly before."""
    kept = [
        frames.start + number
        for video in range(len(sequences.video_ids))
        for frames in (sequences.frames(video),)
        for number in _distinct(sequences.vectors[frames])
    ]
    return np.array(kept, dtype=np.int64)


def _distinct(vectors: npt.NDArray[np.float32]) -> Iterator[int]:
    for start in range(0, len(vectors), LOOK_BACK):
        block = vectors[start : start + LOOK_BACK]
        alike = block @ block.T >= SAME_FROM
        covered = np.zeros(len(block), dtype=bool)
        for number in range(len(block)):
            if not covered[number]:
                covered |= alike[number]
                yield start + number


def _search(
    vectors_RD: npt.NDArray[np.float32],
) -> Iterator[tuple[int, npt.NDArray[np.float32], Numbers]]:
    """(number of the first query, scores, numbers), a block of all vectors as queries at a time."""
    num = min(NUM_NEAREST, len(vectors_RD))
    try:
        load_faiss()
    except UsageError as error:
        if len(vectors_RD) > MOST_WITHOUT_FAISS:
            raise UsageError(
                f"{len(vectors_RD):,} frames are too many to compare without the package faiss",
                hint=error.hint,
            ) from error
        yield from _search_all(vectors_RD, num=num)
        return
    index = _build(vectors_RD)
    for start in range(0, len(vectors_RD), _QUERIES_AT_ONCE):
        scores, numbers = index.search(vectors_RD[start : start + _QUERIES_AT_ONCE], num=num)
        yield start, scores, numbers


def _build(vectors_RD: npt.NDArray[np.float32]) -> VectorIndex:
    total = len(vectors_RD)
    kind = choose_kind(total)
    if kind == "flat":
        index = VectorIndex.learn(kind, sample=vectors_RD[:1], num_vectors=total)
        index.add(vectors_RD)
        return index
    learned, own = choose_rows(total, kind=kind)
    index = VectorIndex.learn(kind, sample=vectors_RD[learned], num_vectors=total)
    index.add(vectors_RD)
    nearest = NearestByAll(vectors_RD[own], num=11)
    nearest.look_at(vectors_RD)
    index.tune(vectors_RD[own], own_Q=own, nearest_QK=nearest.numbers_QK)
    return index


def _search_all(
    vectors_RD: npt.NDArray[np.float32], *, num: int
) -> Iterator[tuple[int, npt.NDArray[np.float32], Numbers]]:
    size = 512
    for start in range(0, len(vectors_RD), size):
        scores = vectors_RD[start : start + size] @ vectors_RD.T
        numbers = np.argpartition(-scores, num - 1, axis=1)[:, :num]
        yield start, np.take_along_axis(scores, numbers, axis=1), numbers
