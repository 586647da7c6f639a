"""Diff: two caches by recipe, by video and clip, and by the features of the clips of both."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.feature_errors import FeatureErrors, Features, StreamDifference
from pipeline.probing import read_probes
from pipeline.settling import Content, probe_content
from schemas.compact import pool_by_area
from schemas.recipe import AUDIO, differing_fields
from schemas.sample import AUDIO_MEMBER, SCALE_MEMBER, Sample
from schemas.timeline import TOLERANCE_SECONDS

Indices = npt.NDArray[np.int64]
Members = dict[str, memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoDifference:
    """A video of both caches that is not the same in them."""

    video_id: str
    only_a: int
    """Clips that only the first cache has."""
    only_b: int
    other_times: int
    """Clips of both that begin or end at another time."""
    other_frames: int
    """Clips of both that have another number of frames."""
    other_id: str = ""
    """What the second cache calls it; empty: the same."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDiff:
    """How two caches differ."""

    fields: tuple[str, ...]
    """Of their recipes and encoders, as `differing_fields`."""
    only_a: tuple[str, ...]
    """Videos."""
    only_b: tuple[str, ...]
    videos: tuple[VideoDifference, ...]
    num_same_videos: int
    """Of both, with the same clips, times and numbers of frames."""
    num_common: int
    """Clips of both caches at the same times."""
    num_compared: int = 0
    """Of those, by their bytes; a shard of both is equal by its digest, and is not read."""
    num_equal: int = 0
    """Of those compared, with no byte that differs."""
    members: Mapping[str, int] = field(default_factory=dict)
    """Member -> clips in which its bytes differ, or that one of the two has not."""
    info: Mapping[str, int] = field(default_factory=dict)
    """Field of KEY.json -> clips in which it differs."""
    streams: tuple[StreamDiff, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether nothing differs of all that was compared."""
        differing = self.fields or self.only_a or self.only_b or self.videos
        return not differing and self.num_equal == self.num_compared


def diff_caches(
    a: FeatureCache,
    b: FeatureCache,
    *,
    videos_only: bool = False,
    max_clips: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> CacheDiff:
    """Compare two caches; with `max_clips` so many clips of both by their bytes, else all of them.

    Videos are matched by id, else by content; clips by their number, streams by name. `progress` is
    told of clips.
    CacheDamaged: a sample cannot be read.
    """
    identities = [cache.recipe.identity(cache.info.stamps) for cache in (a, b)]
    names = _match_contents(a, b)
    only_a = sorted(a.videos.keys() - b.videos.keys() - names.keys())
    only_b = sorted(b.videos.keys() - a.videos.keys() - set(names.values()))
    videos, pairs_N2 = _match_clips(a, b, names=names)
    comparison = _Comparison(a, b)
    if not videos_only:
        chosen_N2 = _choose(pairs_N2, max_clips)
        for row_a, row_b in _in_order(a, chosen_N2):
            comparison.add(row_a, row_b)
            progress(1)
    return CacheDiff(
        fields=tuple(differing_fields(*identities)),
        only_a=tuple(only_a),
        only_b=tuple(only_b),
        videos=tuple(videos),
        num_same_videos=len(a.videos) - len(only_a) - len(videos),
        num_common=len(pairs_N2),
        num_compared=comparison.num_clips,
        num_equal=comparison.num_equal,
        members=dict(sorted(comparison.members.items())),
        info=dict(sorted(comparison.info.items())),
        streams=tuple(comparison.finish()),
    )


def _match_contents(a: FeatureCache, b: FeatureCache) -> dict[str, str]:
    """Id in the first cache -> id in the second, of equal content under ids that only one has."""
    contents: list[dict[Content, str]] = []
    for cache, other in ((a, b), (b, a)):
        ids = cache.videos.keys() - other.videos.keys()
        found = (probe for probe in read_probes(cache.layout) if probe.reject is None)
        contents.append(
            {probe_content(probe): probe.video_id for probe in found if probe.video_id in ids}
        )
    first, second = contents
    return {first[content]: second[content] for content in first.keys() & second.keys()}


def _match_clips(
    a: FeatureCache, b: FeatureCache, *, names: Mapping[str, str]
) -> tuple[list[VideoDifference], Indices]:
    """Videos that differ, and (N, 2) rows of the clips of both that are at the same times."""
    tables = [_Table(cache) for cache in (a, b)]
    videos: list[VideoDifference] = []
    pairs: list[Indices] = [np.zeros((0, 2), dtype=np.int64)]
    for video_id in sorted(tables[0].rows.keys() & (tables[1].rows.keys() | names.keys())):
        ids = (video_id, names.get(video_id, video_id))
        rows = [table.rows[one] for table, one in zip(tables, ids, strict=True)]
        clips = [table.clips[own] for table, own in zip(tables, rows, strict=True)]
        _, at_a, at_b = np.intersect1d(clips[0], clips[1], assume_unique=True, return_indices=True)
        both = [rows[0][at_a], rows[1][at_b]]
        times = [table.times_N2[own] for table, own in zip(tables, both, strict=True)]
        same = (np.abs(times[0] - times[1]) <= TOLERANCE_SECONDS).all(axis=1)
        frames = [table.frames[own] for table, own in zip(tables, both, strict=True)]
        found = VideoDifference(
            video_id=video_id,
            only_a=len(clips[0]) - len(at_a),
            only_b=len(clips[1]) - len(at_b),
            other_times=int((~same).sum()),
            other_frames=int((frames[0] != frames[1]).sum()),
            other_id=names.get(video_id, ""),
        )
        counts = (found.only_a, found.only_b, found.other_times, found.other_frames)
        if any(counts) or found.other_id:
            videos.append(found)
        pairs.append(np.stack(both, axis=1)[same])
    return videos, np.concatenate(pairs)


class _Table:
    """Of the index, what tells clips apart; by row."""

    def __init__(self, cache: FeatureCache) -> None:
        index = cache.index
        codes = index.column("video_id").combine_chunks().dictionary_encode()
        order = np.argsort(codes.indices.to_numpy(), kind="stable")
        counts = np.bincount(codes.indices.to_numpy(), minlength=len(codes.dictionary))
        parts = np.split(order, np.cumsum(counts)[:-1])
        self.rows: dict[str, Indices] = dict(zip(codes.dictionary.to_pylist(), parts, strict=True))
        self.clips = index.column("clip_index").to_numpy()
        starts, ends = (index.column(f"{name}_seconds").to_numpy() for name in ("start", "end"))
        self.times_N2 = np.stack([starts, ends], axis=1)
        self.frames = index.column("num_frames").to_numpy()


def _choose(pairs_N2: Indices, max_clips: int | None) -> Indices:
    if max_clips is None or max_clips >= len(pairs_N2):
        return pairs_N2
    chance = np.random.default_rng(0)  # the same ones each time
    return pairs_N2[np.sort(chance.choice(len(pairs_N2), max_clips, replace=False))]


def _in_order(cache: FeatureCache, pairs_N2: Indices) -> Iterator[tuple[int, int]]:
    # As they lie in the first cache's tars.
    extents, rows = cache.extents, pairs_N2[:, 0]
    order = np.lexsort((extents.offsets[rows], extents.shard_codes[rows]))
    return ((int(row_a), int(row_b)) for row_a, row_b in pairs_N2[order])


class _Comparison:
    """Sums over pairs of clips."""

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
            _read(cache, row, key) for cache, row in zip(self._caches, (row_a, row_b), strict=True)
        ]
        differing = {
            name
            for name in found[0].keys() | found[1].keys()
            if not _is_same(found[0].get(name), found[1].get(name))
        }
        self.members.update(differing)
        self.num_equal += not differing
        if "json" in differing:
            self._add_info(*(json.loads(bytes(members.get("json", b"{}"))) for members in found))
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
        for name, one in self._streams.items():
            if name in self._sums:
                one.difference = self._sums[name].difference(name)
            yield one

    def _is_known_equal(self, row_a: int, row_b: int) -> bool:
        told = []
        for cache, row, digests in zip(self._caches, (row_a, row_b), self._digests, strict=True):
            extents = cache.extents
            shard = extents.shard_names[int(extents.shard_codes[row])]
            told.append((digests.get(shard, ""), int(extents.offsets[row])))
        return told[0] == told[1] and bool(told[0][0])

    def _add_info(self, a: dict[str, Any], b: dict[str, Any]) -> None:
        self.info.update(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))

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


def _read(cache: FeatureCache, row: int, key: str) -> Members:
    extents = cache.extents
    offset, size = int(extents.offsets[row]), int(extents.num_bytes[row])
    shard = extents.shard_names[int(extents.shard_codes[row])]
    view = memoryview(np.empty(size, dtype=np.uint8).data).cast("B")
    if cache.tars.read_into(shard, [view], offset=offset) != size:
        raise cache.damaged(f"{cache.layout.tar(shard)} ends inside {key}")
    return {
        name: view[start - offset : start - offset + count]
        for name, start, count in extents.members(row)
    }


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
