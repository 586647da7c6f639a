"""Which pairs of videos have frames that are alike: those worth aligning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from pipeline.aligning import LEAST_FRAMES
from pipeline.frame_sequences import FrameSequences
from pipeline.vector_index import FLAT_BELOW, SEED, TRAINED_PER_CELL, VectorIndex, num_cells

NUM_NEAREST = 64
"""Key frames of any video that are looked at for each, where not all frames are compared."""
SAME_SCENE = 0.8
"""Score from which a frame is like the key frame before it, and is none itself."""
LEAST_LENGTH = 0.7
"""Of a key frame's vector; that of one which shows nothing is shorter."""
SLACK = 0.1
"""By which key frames may be less alike than frames: those of a copy are not the original's."""
CELLS = 16
"""That are looked into."""
FRAMES_AT_ONCE = 4_096


def find_candidates(
    frames: FrameSequences,
    *,
    least_score: float,
    on_frames: Callable[[int], None] = lambda _: None,
) -> Iterator[tuple[int, int]]:
    """Numbers of two videos, the smaller first, of which several frames have a like one.

    Below `FLAT_BELOW` frames all are compared; above, the nearest of each key frame are found by
    faiss, which may miss some. UsageError: faiss is needed and not installed.
    """
    find = _by_all if len(frames.times) < FLAT_BELOW else _by_nearest
    return find(frames, least_score=least_score, on_frames=on_frames)


def find_key_frames(frames: FrameSequences) -> npt.NDArray[np.int64]:
    """The first frame of each scene, as numbers of frames, in order.

    Else the nearest of a frame would be those beside it, and nothing of another video.
    """
    keys: list[int] = []
    for own in frames.frames_of:
        vectors_TC = frames.vectors(own)
        is_shown = np.einsum("tc,tc->t", vectors_TC, vectors_TC) >= LEAST_LENGTH**2
        last = -1
        for number in np.flatnonzero(is_shown).tolist():
            if last < 0 or float(vectors_TC[number] @ vectors_TC[last]) < SAME_SCENE:
                keys.append(own.start + number)
                last = number
    return np.array(keys, dtype=np.int64)


def _by_all(
    frames: FrameSequences, *, least_score: float, on_frames: Callable[[int], None]
) -> Iterator[tuple[int, int]]:
    filled = np.flatnonzero(np.diff(frames.starts))
    everything = frames.vectors(slice(None))
    for place, number in enumerate(filled[:-1].tolist()):
        later = filled[place + 1 :]
        begin = int(frames.starts[later[0]])
        own = everything[frames.frames_of[number]]
        scores = own @ everything[begin:].T
        best = np.maximum.reduceat(scores, frames.starts[later] - begin, axis=1)
        hits = (best >= least_score).sum(axis=0)
        # A copy at another speed has fewer frames than the original.
        for other in later[hits >= min(LEAST_FRAMES, len(own))].tolist():
            yield number, other
        on_frames(len(own))


def _by_nearest(
    frames: FrameSequences, *, least_score: float, on_frames: Callable[[int], None]
) -> Iterator[tuple[int, int]]:
    keys = find_key_frames(frames)
    if not len(keys):
        return
    owners = np.searchsorted(frames.starts, keys, side="right") - 1
    index = build_index(frames, keys)
    hits: Counter[tuple[int, int]] = Counter()
    for begin in range(0, len(keys), FRAMES_AT_ONCE):
        part = frames.vectors(keys[begin : begin + FRAMES_AT_ONCE])
        scores, numbers = index.search(part, num=NUM_NEAREST)
        key, place = np.nonzero((numbers >= 0) & (scores >= least_score - SLACK))
        own, other = owners[begin + key], owners[numbers[key, place]]
        # Once a key frame and pair, however many of the other's are like it.
        found = np.unique(np.stack([begin + key, own, other], axis=1)[own != other], axis=0)
        hits.update((min(a, b), max(a, b)) for a, b in found[:, 1:].tolist())
        after = keys[begin + len(part)] if begin + len(part) < len(keys) else len(frames.times)
        on_frames(int(after - keys[begin]))
    num_keys = np.bincount(owners, minlength=len(frames)).tolist()
    for (a, b), count in sorted(hits.items()):
        # Each of both has as many hits if they have as many scenes in common.
        if count >= 2 * min(2, num_keys[a], num_keys[b]) - 1:
            yield a, b


def build_index(frames: FrameSequences, keys: npt.NDArray[np.int64]) -> VectorIndex:
    """Of these frames, by their place in `keys`. UsageError: faiss is not installed."""
    num_learned = min(len(keys), TRAINED_PER_CELL * num_cells(len(keys)))
    learned = np.random.default_rng(SEED).choice(keys, size=max(1, num_learned), replace=False)
    index = VectorIndex.learn("ivf", sample=frames.vectors(np.sort(learned)), num_vectors=len(keys))
    index.effort = CELLS
    for begin in range(0, len(keys), FRAMES_AT_ONCE):
        index.add(frames.vectors(keys[begin : begin + FRAMES_AT_ONCE]))
    return index
