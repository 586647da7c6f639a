"""Peek into samples: read some members of one, and not the features, which are nearly all bytes."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from pipeline.cache import FeatureCache

GAP_BYTES = 2**16
"""Members that lie no farther apart are read at once, with what lies between them."""


def peek(cache: FeatureCache, key: str, *, names: Collection[str]) -> dict[str, memoryview]:
    """Member name -> its bytes, of those of `names` that the sample has.

    UsageError: no such key. CacheDamaged: the tar cannot be read, or ends inside the sample.
    """
    number, extents = cache.number(key), cache.extents
    shard = extents.shard_names[extents.shard_codes[number]]
    wanted = sorted((at, size, name) for name, at, size in extents.members(number) if name in names)
    found: dict[str, memoryview] = {}
    while wanted:
        start, end = wanted[0][0], sum(wanted[0][:2])
        count = 1
        while count < len(wanted) and wanted[count][0] - end <= GAP_BYTES:
            end = sum(wanted[count][:2])
            count += 1
        data = np.empty(end - start, dtype=np.uint8).data
        if cache.tars.read_into(shard, [data], offset=start) != len(data):
            raise cache.damaged(f"{cache.layout.tar(shard)} ends inside {key}")
        for offset, size, name in wanted[:count]:
            found[name] = data[offset - start : offset - start + size]
        wanted = wanted[count:]
    return found
