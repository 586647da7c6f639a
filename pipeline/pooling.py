"""Frame vectors: the mean of each grid of features, made once a shard and kept beside the cache.

What looks for likeness (search, duplicates) reads these: a few thousandths of the features' bytes.
A shard's name holds its content's fingerprint, so a file is never out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.places import Place, read_bytes
from pipeline.storage import publish_bytes
from schemas.compact import decode_features, stored_shape
from schemas.errors import UsageError
from schemas.sample import SCALE_MEMBER, decode_npy, encode_npy
from schemas.settings import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameVectors:
    """The frame vectors of one shard."""

    shard: str
    rows: npt.NDArray[np.int64]
    """(N,): which rows of the index."""
    vectors: npt.NDArray[np.float16]
    """(N, G, D): of G grids a clip, fewer than its frames where an encoder has a temporal stride.
    Those of fill repeat the last frame."""


Pool = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]
"""(G, H, W, D) -> (G, D)."""


def mean_of_grids(features_GHWD: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """(G, H, W, D) -> (G, D)."""
    vectors_GD: npt.NDArray[np.float32] = features_GHWD.mean(axis=(1, 2))
    return vectors_GD


def pool_frames(
    cache: FeatureCache,
    *,
    stream: str,
    shards: Collection[str] | None = None,
    kept_as: str = "",
    pool: Pool = mean_of_grids,
    on_samples: Callable[[int], None] = lambda _: None,
) -> Iterator[FrameVectors]:
    """Shard by shard in the order of the index; shards that were pooled before are not read.

    Only those of `shards`, or all. Vectors that another `pool` makes are `kept_as` something else
    than the stream. `on_samples` is told how many more samples are done. UsageError: no such
    stream. CacheDamaged. StorageError: the cache's place cannot be written.
    """
    if stream not in cache.streams:
        raise UsageError(
            f"no stream {stream!r} in the cache{nearest(stream, cache.streams)}",
            hint=f"it has: {', '.join(cache.streams)}",
        )
    for shard, rows in cache.extents.rows_by_shard().items():
        if shards is not None and shard not in shards:
            continue
        path = cache.layout.vectors_of(kept_as or stream, shard)
        shape = _shape(cache, stream, len(rows))
        vectors_NGD: npt.NDArray[np.float16] | None = read_kept(path, shape=shape, dtype=np.float16)
        if vectors_NGD is None:
            vectors_NGD = _pool_shard(cache, rows, shard=shard, stream=stream, pool=pool)
            data = b"".join(encode_npy(vectors_NGD))
            publish_bytes(data, path, scratch=cache.layout.scratch)
        yield FrameVectors(shard=shard, rows=rows, vectors=vectors_NGD)
        on_samples(len(rows))


def _shape(cache: FeatureCache, stream: str, num_samples: int) -> tuple[int, int, int]:
    num_frames = cache.recipe.sampling.frames_per_clip
    stamp = cache.info.stamps[stream]
    num_grids, *_, dim = stored_shape(cache.recipe.streams[stream], stamp, num_frames=num_frames)
    return num_samples, num_grids, dim


def read_kept(
    path: Place, *, shape: tuple[int, ...], dtype: npt.DTypeLike
) -> npt.NDArray[Any] | None:
    """An array that was made of a shard before; None: it has to be made, again if damaged.

    It says nothing that the shard does not.
    """
    try:
        array = decode_npy(read_bytes(path))
    except (OSError, ValueError):
        return None
    return array if array.shape == shape and array.dtype == dtype else None


def _pool_shard(
    cache: FeatureCache, rows: npt.NDArray[np.int64], *, shard: str, stream: str, pool: Pool
) -> npt.NDArray[np.float16]:
    N, G, D = _shape(cache, stream, len(rows))
    vectors_NGD = np.empty((N, G, D), dtype=np.float16)
    offsets_N2, sizes_N2 = cache.extents.find(rows, names=[f"{stream}.npy", stream + SCALE_MEMBER])
    buffer = np.empty(int(sizes_N2.max(initial=0)), dtype=np.uint8)

    def read(number: int, member: int) -> npt.NDArray[np.generic] | None:
        size, offset = int(sizes_N2[number, member]), int(offsets_N2[number, member])
        if size == 0:
            return None
        view = buffer[:size] if member == 0 else np.empty(size, dtype=np.uint8)
        if cache.tars.read_into(shard, [view.data], offset=offset) != size:
            raise cache.damaged(f"{cache.layout.tar(shard)} ends inside a sample")
        try:
            return decode_npy(view.data)
        except ValueError as error:
            raise cache.damaged(f"{cache.layout.tar(shard)}: {error}") from error

    for number in range(N):
        values, scale = read(number, 0), read(number, 1)
        if values is None or values.ndim != 4 or values.shape[::3] != (G, D):
            raise cache.damaged(f"{cache.layout.tar(shard)} has a sample without {stream}")
        features_GHWD = decode_features(values, scale)  # type: ignore[arg-type]
        vectors_NGD[number] = pool(features_GHWD)
    return vectors_NGD
