"""Compare clips of two caches by the bytes of their members, and features by numbers."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.cache import FeatureCache
from pipeline.feature_errors import FeatureErrors, Features, StreamDifference
from pipeline.places import list_sizes
from schemas.compact import pool_by_area
from schemas.json_text import parse_json
from schemas.recipe import AUDIO
from schemas.sample import AUDIO_MEMBER, SCALE_MEMBER, MemberData, Sample


@dataclass(slots=True)
class StreamDiff:
    """The features of one stream in the clips that were compared."""

    name: str
    num_clips: int = 0
    num_equal: int = 0
    """To the bit, as they are stored."""
    not_comparable: str = ""
    """Why numbers say nothing; empty where they do."""
    compared_at: str = ""
    """On which cells, where one cache's are finer."""
    worst_key: str = ""
    """The clip of the smallest cosine."""
    num_not_finite: int = 0
    """Clips with NaN or infinity, which are left out of the numbers."""
    difference: StreamDifference | None = None
    """Over the clips that are not equal; the second cache's features are what errors are of."""


class ClipComparison:
    """Sums over pairs of clips, each given by its rows in the indexes of two caches."""

    def __init__(self, a: FeatureCache, b: FeatureCache) -> None:
        self._caches = (a, b)
        self._digests = [{one.name: one.sha256 for one in cache.info.shards} for cache in (a, b)]
        self._keys = a.index.column("key")
        self.num_clips = self.num_equal = 0
        self.members: Counter[str] = Counter()
        self.info: Counter[str] = Counter()
        names = list(dict.fromkeys([*a.streams, *b.streams]))
        with_sound = [cache for cache in (a, b) if cache.recipe.audio is not None]
        self._streams = {name: StreamDiff(name) for name in names + [AUDIO] * bool(with_sound)}
        for name, one in self._streams.items():
            lacking = [
                ("first", "second")[number]
                for number, cache in enumerate((a, b))
                if not (cache in with_sound if name == AUDIO else name in cache.streams)
            ]
            one.not_comparable = f"the {lacking[0]} cache has none" if lacking else ""
        self._sums: dict[str, FeatureErrors] = {}
        self._least: dict[str, float] = {}

    def add(self, row_a: int, row_b: int) -> None:
        """Compare one clip of both. CacheDamaged."""
        self.num_clips += 1
        shared = [one for one in self._streams.values() if not one.not_comparable]
        if self._is_known_equal(row_a, row_b):
            self.num_equal += 1
            for one in shared:
                one.num_clips += 1
                one.num_equal += 1
            return
        key = self._keys[row_a].as_py()
        found = [
            cache.read_members(row) for cache, row in zip(self._caches, (row_a, row_b), strict=True)
        ]
        differing = {
            name
            for name in found[0].keys() | found[1].keys()
            if not _is_same(found[0].get(name), found[1].get(name))
        }
        self.members.update(differing)
        self.num_equal += not differing
        if "json" in differing:
            self._add_info(key, found)
        samples: list[Sample] = []
        for one in shared:
            own = {AUDIO_MEMBER} if one.name == AUDIO else {f"{one.name}.npy"}
            own.add(f"{one.name}{SCALE_MEMBER}")
            one.num_clips += 1
            if not own & differing:
                one.num_equal += 1
                continue
            samples = samples or [
                Sample.from_members(key, members, streams=cache.streams)
                for members, cache in zip(found, self._caches, strict=True)
            ]
            self._add_features(one, key, samples)

    def finish(self) -> Iterator[StreamDiff]:
        """What came of it, stream by stream; sound is the last."""
        for name, one in self._streams.items():
            if name in self._sums:
                one.difference = self._sums[name].difference(name)
            yield one

    def _is_known_equal(self, row_a: int, row_b: int) -> bool:
        told, shards = [], []
        for cache, row, digests in zip(self._caches, (row_a, row_b), self._digests, strict=True):
            extents = cache.extents
            shard = extents.shard_names[int(extents.shard_codes[row])]
            told.append((digests.get(shard, ""), int(extents.offsets[row])))
            shards.append(shard)
        if told[0] != told[1] or not told[0][0]:
            return False
        # Their bytes are not read; that they are there is.
        for cache, shard, whole in zip(self._caches, shards, self._whole, strict=True):
            if shard not in whole:
                raise cache.damaged(f"{cache.layout.tar(shard)}: is not there as it was written")
        return True

    @functools.cached_property
    def _whole(self) -> list[set[str]]:
        # Of both caches, the shards whose tar is as long as it was written.
        found = []
        for cache in self._caches:
            sizes = list_sizes(cache.layout.shards)
            found.append(
                {
                    one.name
                    for one in cache.info.shards
                    if sizes.get(cache.layout.tar(one.name).name) == one.tar_bytes
                }
            )
        return found

    def _add_info(self, key: str, found: Sequence[Mapping[str, MemberData]]) -> None:
        try:
            a, b = (parse_json(bytes(members.get("json", b"{}"))) for members in found)
            self.info.update(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
        except (ValueError, AttributeError) as error:
            raise self._caches[0].damaged(f"{key}: its json, here or there: {error}") from error

    def _add_features(self, one: StreamDiff, key: str, samples: list[Sample]) -> None:
        pair = [_decoded(sample, one.name) for sample in samples]
        aligned = _align(*pair)
        if isinstance(aligned, str):
            one.not_comparable = aligned
            return
        if not all(np.isfinite(features).all() for features in aligned):
            one.num_not_finite += 1
            return
        if pair[0].shape != pair[1].shape:
            one.compared_at = _cells(aligned[0])
        sums = self._sums.setdefault(one.name, FeatureErrors(aligned[0].shape[-1]))
        cosine = sums.add(*aligned)
        if cosine < self._least.get(one.name, math.inf):
            self._least[one.name], one.worst_key = cosine, key


def _is_same(a: memoryview | None, b: memoryview | None) -> bool:
    if a is None or b is None:
        return False
    return np.array_equal(np.frombuffer(a, np.uint8), np.frombuffer(b, np.uint8))


def _decoded(sample: Sample, name: str) -> Features:
    if name != AUDIO:
        return sample.decode(name)
    assert sample.audio is not None
    return sample.audio.astype(np.float32)


def _align(a: Features, b: Features) -> tuple[Features, Features] | str:
    """Both on the coarser cells; or why they cannot be compared."""
    if a.shape == b.shape:
        return a, b
    if a.ndim != 4 or b.ndim != 4 or a.shape[0] != b.shape[0] or a.shape[3] != b.shape[3]:
        return f"{_shape(a)} and {_shape(b)}"
    pairs = list(zip(a.shape[1:3], b.shape[1:3], strict=True))
    for is_finer, (fine, coarse) in enumerate([(b, a), (a, b)]):
        if all(one[1 - is_finer] % one[is_finer] == 0 for one in pairs):
            pooled = pool_by_area(fine.astype(np.float32), grid=coarse.shape[1:3])
            return (pooled, coarse) if is_finer else (coarse, pooled)
    return f"neither of {_cells(a)} and {_cells(b)} cells divides the other"


def _shape(features: Features) -> str:
    return " x ".join(map(str, features.shape))


def _cells(features: Features) -> str:
    return " x ".join(map(str, features.shape[1:3]))
