"""VectorIndex: finds the nearest of many vectors; faiss behind one face, of three kinds.

flat compares with every vector. hnsw follows a graph of near ones (Malkov and Yashunin, 2016). ivf
compares with those in the cells nearest to the query. The last two keep float16, and put in as much
effort as a wanted recall takes: docs/search.md has the figures that the sizes come from.

Shapes: N vectors of length 1, Q queries, D dimensions, K nearest.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from schemas.errors import CacheDamaged, UsageError

Kind = Literal["flat", "hnsw", "ivf"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FLAT_BELOW = 20_000
"""Vectors."""
LEAST_RECALL = 0.99
"""Of the ten nearest, what effort is raised for; a little more than is promised."""
NUM_NEIGHBOURS, BUILD_EFFORT = 24, 80
"""Of hnsw: M and efConstruction."""
TRAINED_PER_CELL = 40
"""Vectors a cell from which cells are learned; faiss wants 39 at least."""
SEED = 1
MOST_ON_GPU = 2048
"""Results and cells of one query, there."""

Vectors = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]


def load_faiss() -> Any:
    """The package. UsageError: it is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise UsageError(
            "searching needs the package faiss",
            hint="pip install 'reelcache[search]', or 'reelcache[gpu]' on a machine with a GPU",
        ) from error
    return faiss


def choose_kind(num_vectors: int) -> Kind:
    """By size; hnsw only where it is asked for, since ivf is built and asked sooner.

    And cells can all be looked into, for queries from elsewhere, where a graph leads astray.
    """
    return "flat" if num_vectors < FLAT_BELOW else "ivf"


def num_cells(num_vectors: int) -> int:
    """Of ivf: twice the square root."""
    return max(1, min(round(2 * math.sqrt(num_vectors)), num_vectors // TRAINED_PER_CELL))


class VectorIndex:
    """Vectors numbered from 0 in the order in which they were added."""

    def __init__(self, index: Any, *, kind: Kind, effort: int) -> None:
        """`index` is faiss's, on the CPU; with a GPU it is copied there where that can be."""
        self.kind: Kind = kind
        self.effort = effort
        """Of hnsw: efSearch. Of ivf: cells that are looked into. Of flat: nothing."""
        self._faiss = load_faiss()
        self._gpu = self._faiss.get_num_gpus() > 0 and kind != "hnsw"
        if self._gpu:
            self._resources = self._faiss.StandardGpuResources()
            index = self._faiss.index_cpu_to_gpu(self._resources, 0, index)
        self._index = index

    @classmethod
    def learn(cls, kind: Kind, *, sample: Vectors, num_vectors: int) -> VectorIndex:
        """An empty index for about `num_vectors` such vectors as those of the (S, D) `sample`."""
        faiss, dim = load_faiss(), sample.shape[1]
        metric = faiss.METRIC_INNER_PRODUCT
        half = faiss.ScalarQuantizer.QT_fp16
        if kind == "flat":
            return cls(faiss.IndexFlatIP(dim), kind=kind, effort=0)
        if kind == "hnsw":
            index = faiss.IndexHNSWSQ(dim, half, NUM_NEIGHBOURS, metric)
            index.hnsw.efConstruction = BUILD_EFFORT
            index.train(sample[:1])  # float16 has nothing to learn
            return cls(index, kind=kind, effort=16)
        cells = max(1, min(num_cells(num_vectors), len(sample)))
        index = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(dim), dim, cells, half, metric)
        index.by_residual = False  # which float16 gains nothing from
        index.cp.seed, index.cp.niter = SEED, 10
        index.cp.min_points_per_centroid = 1  # else it complains on stderr
        index.cp.max_points_per_centroid = TRAINED_PER_CELL
        found = cls(index, kind=kind, effort=1)
        found._index.train(np.ascontiguousarray(sample))
        return found

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dim(self) -> int:
        return int(self._index.d)

    def add(self, vectors_ND: Vectors) -> None:
        """Add vectors; they take the next numbers."""
        # A graph that several threads build depends on who comes first.
        with self._one_thread() if self.kind == "hnsw" else contextlib.nullcontext():
            self._index.add(np.ascontiguousarray(vectors_ND, dtype=np.float32))

    def search(
        self, queries_QD: Vectors, *, num: int, thorough: bool = False
    ) -> tuple[Vectors, Numbers]:
        """(inner products, numbers), (Q, num) each, the nearest first; number -1: no more found.

        `thorough`: look everywhere if the kind allows it, for queries of another kind than the
        vectors.
        """
        num = min(num, MOST_ON_GPU) if self._gpu else num
        if self.kind == "ivf":
            most = min(self._index.nlist, MOST_ON_GPU if self._gpu else self._index.nlist)
            self._index.nprobe = most if thorough else min(self.effort, most)
        elif self.kind == "hnsw":
            self._index.hnsw.efSearch = max(self.effort * (8 if thorough else 1), num)
        queries_QD = np.ascontiguousarray(queries_QD, dtype=np.float32)
        scores_QK, numbers_QK = self._index.search(queries_QD, num)
        return scores_QK, numbers_QK

    def tune(self, queries_QD: Vectors, *, own_Q: Numbers, nearest_QK: Numbers) -> float:
        """Raise the effort until the nearest are found: the recall that is reached."""
        while True:
            recall = self.recall(queries_QD, own_Q=own_Q, nearest_QK=nearest_QK)
            if recall >= LEAST_RECALL or self.effort >= self._most_effort():
                return recall
            self.effort = min(2 * self.effort, self._most_effort())

    def recall(self, queries_QD: Vectors, *, own_Q: Numbers, nearest_QK: Numbers) -> float:
        """The share of the nearest that is found of queries that are vectors of the index.

        `own_Q` are their numbers, which do not count; of the K - 1 others `nearest_QK` has the
        true ones, and -1 where there were fewer.
        """
        _, found_QK = self.search(queries_QD, num=nearest_QK.shape[1])
        there = total = 0
        for own, near, found in zip(own_Q, nearest_QK, found_QK, strict=True):
            others = _others(near, own)
            there += len(others & _others(found, own))
            total += len(others)
        return there / total if total else 1.0

    def write(self, path: Path) -> None:
        """To a file of faiss; the same bytes for the same vectors and versions. OSError."""
        index = self._faiss.index_gpu_to_cpu(self._index) if self._gpu else self._index
        # faiss' own writer does not tell why it failed, nor that what it buffered was lost.
        with path.open("wb") as file:
            self._faiss.write_index(index, self._faiss.PyCallbackIOWriter(file.write))

    @classmethod
    def read(cls, path: Path, *, kind: Kind, effort: int) -> VectorIndex:
        """The inverse of `write`. CacheDamaged: the file is no such index.

        faiss trusts what it reads: check the file's digest first.
        """
        faiss = load_faiss()
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            raise CacheDamaged(f"{path}: faiss cannot read it") from error
        classes = {
            "flat": faiss.IndexFlat,
            "hnsw": faiss.IndexHNSWSQ,
            "ivf": faiss.IndexIVFScalarQuantizer,
        }
        if not isinstance(index, classes[kind]):
            raise CacheDamaged(f"{path}: holds {type(index).__name__}, not {kind}")
        return cls(index, kind=kind, effort=effort)

    def _most_effort(self) -> int:
        if self.kind == "ivf":
            return int(self._index.nlist)
        return 0 if self.kind == "flat" else 2048

    @contextlib.contextmanager
    def _one_thread(self) -> Iterator[None]:
        before = self._faiss.omp_get_max_threads()
        self._faiss.omp_set_num_threads(1)
        try:
            yield
        finally:
            self._faiss.omp_set_num_threads(before)


class NearestByAll:
    """The K nearest by comparing with every vector, a piece of them at a time."""

    def __init__(self, queries_QD: Vectors, *, num: int) -> None:
        self._queries_QD = np.ascontiguousarray(queries_QD, dtype=np.float32)
        self._seen = 0
        self._scores_QK = np.full((len(queries_QD), num), -np.inf, dtype=np.float32)
        self.numbers_QK: Numbers = np.full((len(queries_QD), num), -1, dtype=np.int64)
        """So far; -1 where there were fewer."""

    def look_at(self, vectors_ND: Vectors) -> None:
        """The next vectors; they take the next numbers."""
        num = self.numbers_QK.shape[1]
        faiss = load_faiss()
        fresh_QK, places_QK = faiss.knn(
            self._queries_QD,
            np.ascontiguousarray(vectors_ND, dtype=np.float32),
            num,
            metric=faiss.METRIC_INNER_PRODUCT,
        )
        scores = np.concatenate(
            [self._scores_QK, np.where(places_QK < 0, -np.inf, fresh_QK)], axis=1
        )
        numbers_QK = np.where(places_QK < 0, -1, places_QK + self._seen)
        numbers = np.concatenate([self.numbers_QK, numbers_QK], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :num]
        self._scores_QK = np.take_along_axis(scores, best, axis=1)
        self.numbers_QK = np.take_along_axis(numbers, best, axis=1)
        self._seen += len(vectors_ND)


def _others(numbers_K: Numbers, own: np.int64) -> set[int]:
    others = [number for number in numbers_K.tolist() if number >= 0 and number != own]
    return set(others[: len(numbers_K) - 1])
