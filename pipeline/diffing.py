"""Diff: two caches by recipe, by video and clip, and by the features of the clips of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.clip_comparison import ClipComparison, StreamDiff
from pipeline.probing import read_probes
from pipeline.settling import Content, probe_content
from schemas.recipe import differing_fields
from schemas.timeline import TOLERANCE_SECONDS

Indices = npt.NDArray[np.int64]


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
    comparison = ClipComparison(a, b)
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
        self.rows = cache.rows_by_video
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
