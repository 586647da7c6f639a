"""Which pairs of videos have frames that are alike: those worth aligning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from pipeline.aligning import LEAST_FRAMES
from pipeline.frame_sequences import FrameSequences
from pipeline.vector_index import FLAT_BELOW, VectorIndex

NUM_NEAREST = 64
"""Frames of any video that are looked at for each frame, where not all are compared."""
TRAINED = 50_000
CELLS = 16
"""That are looked into."""
ROWS_AT_ONCE = 4_096


def find_candidates(frames: FrameSequences, *, least_score: float) -> Iterator[tuple[int, int]]:
    """Numbers of two videos, the smaller first, of which several frames have a like one.

    Below `FLAT_BELOW` frames all are compared; above, the nearest of each are found by faiss, which
    may miss some. UsageError: faiss is needed and not installed.
    """
    find = _by_all if len(frames.times) < FLAT_BELOW else _by_nearest
    return find(frames, least_score=least_score)


def _by_all(frames: FrameSequences, *, least_score: float) -> Iterator[tuple[int, int]]:
    filled = np.flatnonzero(np.diff(frames.starts))
    everything = frames.vectors.astype(np.float32)
    for place, number in enumerate(filled[:-1].tolist()):
        later = filled[place + 1 :]
        begin = int(frames.starts[later[0]])
        own = everything[frames.starts[number] : frames.starts[number + 1]]
        scores = own @ everything[begin:].T
        best = np.maximum.reduceat(scores, frames.starts[later] - begin, axis=1)
        hits = (best >= least_score).sum(axis=0)
        # A copy at another speed has fewer frames than the original.
        for other in later[hits >= min(LEAST_FRAMES, len(own))].tolist():
            yield number, other


def _by_nearest(frames: FrameSequences, *, least_score: float) -> Iterator[tuple[int, int]]:
    total = len(frames.times)
    owners = np.repeat(np.arange(len(frames)), np.diff(frames.starts))
    rows = np.linspace(0, total - 1, min(TRAINED, total)).astype(np.int64)
    index = VectorIndex.learn(
        "ivf", sample=frames.vectors[rows].astype(np.float32), num_vectors=total
    )
    index.effort = CELLS
    for begin in range(0, total, ROWS_AT_ONCE):
        index.add(frames.vectors[begin : begin + ROWS_AT_ONCE].astype(np.float32))
    hits: Counter[tuple[int, int]] = Counter()
    for begin in range(0, total, ROWS_AT_ONCE):
        part = frames.vectors[begin : begin + ROWS_AT_ONCE].astype(np.float32)
        scores, numbers = index.search(part, num=NUM_NEAREST)
        frame, place = np.nonzero((numbers >= 0) & (scores >= least_score))
        own, other = owners[begin + frame], owners[numbers[frame, place]]
        # Once a frame and pair, however many of the other's frames are like it.
        found = np.unique(np.stack([begin + frame, own, other], axis=1)[own != other], axis=0)
        hits.update((min(a, b), max(a, b)) for a, b in found[:, 1:].tolist())
    yield from sorted(pair for pair, count in hits.items() if count >= LEAST_FRAMES)
