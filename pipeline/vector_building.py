"""Build a vector index from the means of clips, a piece of them in memory at a time.

Over all means twice: for their centre and a sample to learn cells from, then to be added. Of some
vectors the true neighbours are found on the way, by which effort is chosen and recall told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.clip_vectors import Vectors, to_directions, turn_to_directions
from pipeline.vector_index import (
    SEED,
    TRAINED_PER_CELL,
    Kind,
    NearestByAll,
    Numbers,
    VectorIndex,
    num_cells,
)
from schemas.errors import CacheDamaged

NUM_QUERIES = 500
"""Own vectors by which recall is measured."""
NUM_NEAREST = 10
ROWS_AT_ONCE = 8_192
"""Vectors that are compared with all queries at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltVectors:
    """A vector index and what is known of it."""

    vectors: VectorIndex
    centre: Vectors
    """(D,): what was taken from the means."""
    recall: float
    """Of the ten nearest others of its own vectors."""
    num_queries: int
    """By how many of them; 0: the index is exact."""


def build_vectors(
    pieces: Callable[[], Iterator[Vectors]], *, total: int, kind: Kind, centred: bool
) -> BuiltVectors:
    """`pieces` gives the (N, D) means of all clips, in order, each time the same.

    CacheDamaged: there are not `total` of them.
    """
    chosen, own = choose_rows(total, kind=kind)
    sample_SD, mean_D = _sample(pieces(), chosen, total=total)
    centre_D = mean_D if centred else np.zeros_like(mean_D)
    turn_to_directions(sample_SD, centre_D=centre_D)
    vectors = VectorIndex.learn(kind, sample=sample_SD, num_vectors=total)
    queries_QD = sample_SD[np.searchsorted(chosen, own)]
    del sample_SD  # large, and no longer needed
    nearest = NearestByAll(queries_QD, num=NUM_NEAREST + 1)
    for means_ND in pieces():
        for first in range(0, len(means_ND), ROWS_AT_ONCE):
            part = to_directions(means_ND[first : first + ROWS_AT_ONCE], centre_D=centre_D)
            vectors.add(part)
            if kind != "flat":
                nearest.look_at(part)
    if len(vectors) != total:
        raise CacheDamaged(f"{len(vectors)} vectors of {total} clips")
    if kind == "flat":
        return BuiltVectors(vectors=vectors, centre=centre_D, recall=1.0, num_queries=0)
    recall = vectors.tune(queries_QD, own_Q=own, nearest_QK=nearest.numbers_QK)
    return BuiltVectors(vectors=vectors, centre=centre_D, recall=recall, num_queries=len(own))


def choose_rows(total: int, *, kind: Kind) -> tuple[Numbers, Numbers]:
    """Numbers of vectors, sorted: those to learn cells from, and those of them that are queries."""
    num_queries = min(total, NUM_QUERIES)
    num = max(num_queries, TRAINED_PER_CELL * num_cells(total)) if kind == "ivf" else num_queries
    chance = np.random.default_rng(SEED)
    chosen = np.sort(chance.choice(total, size=min(total, num), replace=False))
    return chosen, np.sort(chance.choice(chosen, size=num_queries, replace=False))


def _sample(pieces: Iterator[Vectors], chosen: Numbers, *, total: int) -> tuple[Vectors, Vectors]:
    # (the chosen ones, the mean of all)
    sums_D: npt.NDArray[np.float64] | None = None
    sample_SD: Vectors | None = None
    start = filled = 0
    for means_ND in pieces:
        num, dim = means_ND.shape
        if sums_D is None or sample_SD is None:
            sums_D, sample_SD = np.zeros(dim), np.empty((len(chosen), dim), dtype=np.float32)
        sums_D += means_ND.sum(axis=0, dtype=np.float64)
        first, stop = np.searchsorted(chosen, [start, start + num])
        sample_SD[first:stop] = means_ND[chosen[first:stop] - start]
        start, filled = start + num, int(stop)
    if sums_D is None or sample_SD is None or (start, filled) != (total, len(chosen)):
        raise CacheDamaged(f"{start} vectors of {total} clips")
    return sample_SD, (sums_D / total).astype(np.float32)
