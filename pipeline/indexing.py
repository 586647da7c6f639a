"""Make the search index of a cache, or add the shards that are new to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from pipeline.cache import FeatureCache
from pipeline.clip_vectors import (
    LEAST_CENTRED,
    Vectors,
    mean_of_frames,
    to_directions,
)
from pipeline.pooling import FrameVectors, Pool, mean_of_grids, pool_frames
from pipeline.search_index import (
    SearchIndexInfo,
    Space,
    centre_text,
    index_name,
    is_whole,
    publish_search_index,
    read_index_info,
    read_search_index,
)
from pipeline.vector_building import build_vectors
from pipeline.vector_index import Kind, choose_kind, load_faiss
from schemas.errors import UsageError

GROWTH = 2
"""An index that has grown by this factor is made anew: its centre and cells are of the old ones."""
NONE_YET = "there was none"

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
    cache: FeatureCache, info: SearchIndexInfo | None, *, kind: Kind | None = None
) -> Lack:
    """What has to be done. `kind` None: as was asked for before, else by size."""
    num_of = {name: len(rows) for name, rows in cache.extents.rows_by_shard().items()}
    total = sum(num_of.values())
    why = NONE_YET if info is None else ""
    if info is not None:
        wanted = _choose(total, asked=kind or info.asked_kind)
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
    lack = find_lack(cache, info, kind=kind)
    why = lack.why_anew
    if info is not None and not is_whole(cache.layout, info):
        why = "since its file was not there whole"
    if info is None or why:
        why = "as asked" if rebuild else why
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


def _choose(num_vectors: int, *, asked: str) -> Kind:
    return asked or choose_kind(num_vectors)  # type: ignore[return-value]


def _build(
    cache: FeatureCache, *, stream: str, space: Space, frames: FrameSource, asked: str
) -> SearchIndexInfo:
    shards = {name: len(rows) for name, rows in cache.extents.rows_by_shard().items()}
    total = len(cache)
    kind = _choose(total, asked=asked)
    built = build_vectors(
        lambda: (_means(cache, one) for one in frames(tuple(shards))),
        total=total,
        kind=kind,
        centred=space == "features" and total >= LEAST_CENTRED,
    )
    info = SearchIndexInfo(
        fingerprint=cache.fingerprint,
        stream=stream,
        space=space,
        kind=kind,
        asked_kind=asked,
        effort=built.vectors.effort,
        dim=built.vectors.dim,
        shards=tuple(shards.items()),
        centre=centre_text(built.centre),
        num_built=total,
        recall_at_10=round(built.recall, 6),
        recall_queries=built.num_queries,
        faiss_version=load_faiss().__version__,
        file="",
        file_bytes=0,
        file_sha256="",
    )
    return publish_search_index(built.vectors, info, cache.layout)


def _means(cache: FeatureCache, one: FrameVectors) -> Vectors:
    num_frames_N = cache.index.column("num_frames").to_numpy()[one.rows]
    T = cache.recipe.sampling.frames_per_clip
    return mean_of_frames(one.vectors, num_frames_N, T=T)


def _directions(cache: FeatureCache, one: FrameVectors, *, centre_D: Vectors) -> Vectors:
    return to_directions(_means(cache, one), centre_D=centre_D)
