"""Make the search index of a cache, or add the shards that are new to it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.clip_vectors import (
    LEAST_CENTRED,
    Vectors,
    mean_of_frames,
    to_directions,
    turn_to_directions,
)
from pipeline.pooling import FrameVectors, Pool, mean_of_grids, pool_frames
from pipeline.search_index import (
    SearchIndexInfo,
    Space,
    index_name,
    publish_search_index,
    read_index_info,
    read_search_index,
    rows_by_shard,
)
from pipeline.vector_index import (
    SEED,
    TRAINED_PER_CELL,
    Kind,
    NearestByAll,
    Numbers,
    VectorIndex,
    choose_kind,
    load_faiss,
    num_cells,
)
from schemas.errors import CacheDamaged, UsageError

NUM_QUERIES = 500
"""Own vectors by which recall is measured."""
NUM_NEAREST = 10
GROWTH = 2
"""An index that has grown by this factor is made anew: its centre and cells are of the old ones."""
NONE_YET = "there was none"
ROWS_AT_ONCE = 16_384
"""Vectors that are compared with all queries at a time."""

FrameSource: TypeAlias = Callable[[Collection[str]], Iterator[FrameVectors]]
"""Shards -> the frame vectors of each; see `pool_frames`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexing:
    """What became of a search index."""

    info: SearchIndexInfo
    num_added: int
    """Clips that are new in it; all where it was made anew."""
    why_anew: str
    """Empty: it was added to, or there was nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What an index lacks to be of the cache as it is."""

    shards: tuple[str, ...]
    """That are not in it; all of them where it has to be made anew."""
    num_clips: int
    why_anew: str


def find_lack(
    cache: FeatureCache, info: SearchIndexInfo | None, *, space: Space, kind: Kind | None = None
) -> Lack:
    """What has to be done. `kind` None: as was asked for before, else by size."""
    num_of = {name: len(rows) for name, rows in rows_by_shard(cache).items()}
    total = sum(num_of.values())
    why = NONE_YET if info is None else ""
    if info is not None:
        wanted = _choose(total, space=space, asked=kind or info.asked_kind)
        if any(num_of.get(name) != num for name, num in info.shards):
            why = "since some of its shards are gone"
        elif wanted != info.kind:
            why = f"as {wanted} instead of {info.kind}"
        elif total > GROWTH * info.num_built:
            why = f"since the cache has grown from {info.num_built:,} clips to {total:,}"
    covered = set() if why or info is None else {name for name, _ in info.shards}
    shards = tuple(name for name in num_of if name not in covered)
    return Lack(shards=shards, num_clips=sum(num_of[name] for name in shards), why_anew=why)


def update_index(
    cache: FeatureCache,
    *,
    stream: str,
    space: Space = "features",
    frames: FrameSource,
    kind: Kind | None = None,
    rebuild: bool = False,
) -> Indexing:
    """Add the shards that are new, or make the index anew where it has to be or `rebuild` says so.

    UsageError: faiss is not installed, or there is no clip. FingerprintMismatch: the index that is
    there is another cache's. CacheDamaged. StorageError.
    """
    load_faiss()
    if not len(cache):
        raise UsageError(f"{cache.layout.root} has no clip to be found")
    info = None if rebuild else read_index_info(cache, stream=stream, space=space)
    lack = find_lack(cache, info, space=space, kind=kind)
    if info is None or lack.why_anew:
        why = "as asked" if rebuild else lack.why_anew
        asked: str = kind or (info.asked_kind if info else "")
        made = _build(cache, stream=stream, space=space, frames=frames, asked=asked)
        return Indexing(info=made, num_added=made.num_vectors, why_anew=why)
    if not lack.shards:
        return Indexing(info=info, num_added=0, why_anew="")
    index, centre_D = read_search_index(cache, info), info.centre_vector()
    added: list[tuple[str, int]] = []
    for one in frames(lack.shards):
        index.vectors.add(_directions(cache, one, centre_D=centre_D))
        added.append((one.shard, len(one.rows)))
    info = replace(info, shards=(*info.shards, *added), faiss_version=load_faiss().__version__)
    info = publish_search_index(index.vectors, info, cache.layout)
    return Indexing(info=info, num_added=lack.num_clips, why_anew="")


def frames_of(
    cache: FeatureCache,
    *,
    stream: str,
    space: Space = "features",
    pool: Pool = mean_of_grids,
    on_samples: Callable[[int], None] = lambda _: None,
) -> FrameSource:
    """Those that are kept in the cache, and the others made by `pool` and kept."""

    def frames(shards: Collection[str]) -> Iterator[FrameVectors]:
        return pool_frames(
            cache,
            stream=stream,
            shards=frozenset(shards),
            kept_as=index_name(stream, space),
            pool=pool,
            on_samples=on_samples,
        )

    return frames


def _choose(num_vectors: int, *, space: Space, asked: str) -> Kind:
    by_size = choose_kind(num_vectors, own_queries=space == "features")
    return asked or by_size  # type: ignore[return-value]


def _build(
    cache: FeatureCache, *, stream: str, space: Space, frames: FrameSource, asked: str
) -> SearchIndexInfo:
    rows_of, total = rows_by_shard(cache), len(cache)
    shards = tuple(rows_of)
    kind = _choose(total, space=space, asked=asked)
    chosen, own = _choose_rows(total, kind=kind)
    # Twice over all vectors, so that few are in memory: the first time makes and keeps them.
    sum_D: npt.NDArray[np.float64] | None = None
    sample_SD: Vectors | None = None
    start = filled = 0
    for one in frames(shards):
        means_ND = _means(cache, one)
        total_D = means_ND.sum(axis=0, dtype=np.float64)
        sum_D = total_D if sum_D is None else sum_D + total_D
        if sample_SD is None:
            sample_SD = np.empty((len(chosen), means_ND.shape[1]), dtype=np.float32)
        picked = _within(chosen, start, len(means_ND))
        sample_SD[filled : filled + len(picked)] = means_ND[picked]
        filled, start = filled + len(picked), start + len(means_ND)
    if sum_D is None or sample_SD is None or start != total:
        raise CacheDamaged(f"{cache.layout.root}: {start} vectors of {total} clips")
    centred = space == "features" and total >= LEAST_CENTRED
    centre_D = (sum_D / total if centred else np.zeros_like(sum_D)).astype(np.float32)
    turn_to_directions(sample_SD, centre_D=centre_D)
    vectors = VectorIndex.learn(kind, sample=sample_SD, num_vectors=total)
    queries_QD = sample_SD[np.searchsorted(chosen, own)]
    del sample_SD
    nearest = NearestByAll(queries_QD, num=NUM_NEAREST + 1)
    covered: list[tuple[str, int]] = []
    for one in frames(shards):
        directions_ND = _directions(cache, one, centre_D=centre_D)
        vectors.add(directions_ND)
        covered.append((one.shard, len(one.rows)))
        if kind != "flat":
            for first in range(0, len(directions_ND), ROWS_AT_ONCE):
                nearest.look_at(directions_ND[first : first + ROWS_AT_ONCE])
    recall = 1.0
    if kind != "flat":
        recall = vectors.tune(queries_QD, own_Q=own, nearest_QK=nearest.numbers_QK)
    info = SearchIndexInfo(
        fingerprint=cache.fingerprint,
        stream=stream,
        space=space,
        kind=kind,
        asked_kind=asked,
        effort=vectors.effort,
        dim=len(centre_D),
        shards=tuple(covered),
        centre=base64.b64encode(centre_D.astype("<f4").tobytes()).decode(),
        num_built=total,
        recall_at_10=round(recall, 6),
        recall_queries=0 if kind == "flat" else len(own),
        faiss_version=load_faiss().__version__,
        file="",
        file_bytes=0,
        file_sha256="",
    )
    return publish_search_index(vectors, info, cache.layout)


def _choose_rows(total: int, *, kind: Kind) -> tuple[Numbers, Numbers]:
    """Numbers of vectors, sorted: those to learn cells from, and those of them that are queries."""
    num_queries = min(total, NUM_QUERIES)
    num = max(num_queries, TRAINED_PER_CELL * num_cells(total)) if kind == "ivf" else num_queries
    chance = np.random.default_rng(SEED)
    chosen = np.sort(chance.choice(total, size=min(total, num), replace=False))
    return chosen, np.sort(chance.choice(chosen, size=num_queries, replace=False))


def _within(numbers: Numbers, start: int, num: int) -> Numbers:
    first, stop = np.searchsorted(numbers, [start, start + num])
    return numbers[first:stop] - start


def _means(cache: FeatureCache, one: FrameVectors) -> Vectors:
    num_frames_N = cache.index.column("num_frames").to_numpy()[one.rows]
    T = cache.recipe.sampling.frames_per_clip
    return mean_of_frames(one.vectors, num_frames_N, T=T)


def _directions(cache: FeatureCache, one: FrameVectors, *, centre_D: Vectors) -> Vectors:
    return to_directions(_means(cache, one), centre_D=centre_D)
