"""Catalog: what is in a cache, by video, and by which names a video is found."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.cache import FeatureCache
from pipeline.signing import to_public
from pipeline.storage import read_table
from schemas.errors import AnnotationError
from trainer.data.annotation import Span
from trainer.data.video_events import VideoEvents
from trainer.data.video_view import CachedVideo

REJECTED = -1
"""Stands for a video that is known and not in the cache."""
MAX_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The videos that a name may mean."""

    numbers: tuple[int, ...]
    """Their places in the catalog, or REJECTED; of several a span may tell which it is."""
    is_exact: bool
    """Whether the name is an id, a uri or the end of one; else only the file's name agrees."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog:
    """The V videos and N samples of a cache; arrays of samples are video by video, in order."""

    fps: float
    frames_per_clip: int
    video_ids: list[str]
    """(V,)"""
    first_sample: npt.NDArray[np.int64]
    """(V + 1,): the samples of video v are [first_sample[v], first_sample[v + 1])."""
    rows: npt.NDArray[np.int64]
    """(N,): rows of the index."""
    clip_index: npt.NDArray[np.int64]
    start_seconds: npt.NDArray[np.float64]
    end_seconds: npt.NDArray[np.float64]
    num_frames: npt.NDArray[np.int64]
    shard_names: list[str]
    shard_codes: npt.NDArray[np.int32]
    """(N,): of each row of the index, in its order."""
    uris: Mapping[str, int]
    """uri -> place of the video made of it."""
    several: Mapping[str, tuple[int, ...]]
    """uri -> places, of those of which several spans are videos."""
    rejected: Mapping[str, str]
    """uri or given id of a source that is not in the cache -> why."""
    events: VideoEvents | None = None
    """Of the kinds that were asked for; None: of none."""

    @classmethod
    def of(cls, cache: FeatureCache, *, event_kinds: Sequence[str] = ()) -> Catalog:
        """The catalog of an open cache. CacheDamaged: a table of it cannot be read.

        UsageError: there are no events of one of the kinds.
        """
        table = cache.index
        columns = {
            name: table.column(name).combine_chunks() for name in ("video_id", "shard", "bytes")
        }
        videos, shards = (
            columns["video_id"].dictionary_encode(),
            columns["shard"].dictionary_encode(),
        )
        codes = videos.indices.to_numpy()
        video_ids = videos.dictionary.to_pylist()
        arrays = {
            name: table.column(name).to_numpy()
            for name in ("clip_index", "start_seconds", "end_seconds", "num_frames")
        }
        order = np.lexsort((arrays["clip_index"], codes))
        counts = np.bincount(codes, minlength=len(video_ids))
        uris, several = _read_uris(cache, videos.dictionary)
        sampling = cache.recipe.sampling
        return cls(
            fps=sampling.fps,
            frames_per_clip=sampling.frames_per_clip,
            video_ids=video_ids,
            first_sample=np.concatenate([[0], np.cumsum(counts)]),
            rows=order,
            clip_index=arrays["clip_index"][order],
            start_seconds=arrays["start_seconds"][order],
            end_seconds=arrays["end_seconds"][order],
            num_frames=arrays["num_frames"][order].astype(np.int64),
            shard_names=shards.dictionary.to_pylist(),
            shard_codes=shards.indices.to_numpy(),
            uris=uris,
            several=several,
            rejected=_read_rejected(cache),
            events=VideoEvents.read(cache.layout, kinds=event_kinds) if event_kinds else None,
        )

    def __len__(self) -> int:
        return len(self.video_ids)

    def __repr__(self) -> str:
        return f"Catalog({len(self)} videos, {len(self.rows)} samples)"

    def video(self, number: int) -> CachedVideo:
        """The video at a place in the catalog."""
        samples = slice(self.first_sample[number], self.first_sample[number + 1])
        return CachedVideo(
            video_id=self.video_ids[number],
            rows=self.rows[samples],
            clip_index=self.clip_index[samples],
            start_seconds=self.start_seconds[samples],
            end_seconds=self.end_seconds[samples],
            num_frames=self.num_frames[samples],
            events=() if self.events is None else self.events.of(self.video_ids[number]),
        )

    def shard_of(self, row: int) -> str:
        """The shard in which a row of the index lies."""
        return self.shard_names[int(self.shard_codes[row])]

    def find(self, name: str, *, span: Span | None = None) -> CachedVideo | None:
        """The video of a name, as `match` finds it; None: it is not in the cache.

        Of several spans of one source it is the one that shares most with `span`. AnnotationError:
        the name may mean several videos.
        """
        numbers = self.match(name).numbers
        chosen = self.choose(numbers, span=span)
        if chosen is None and numbers:
            raise AnnotationError(f"{name!r} may mean several videos: {self.describe(numbers)}")
        return None if chosen in (None, REJECTED) else self.video(chosen)

    def match(self, name: str) -> Match:
        """The videos that a name may mean: by video_id, by uri or given id, then by the file.

        Ids are never read from names of files; but a name that only one source's file has, with or
        without its ending, is as good as a path. With folders before it, those decide where they
        can.
        """
        number = self._numbers.get(name)
        if number is not None:
            return Match(numbers=(number,), is_exact=True)
        uri = to_public(name)
        if uri in self.uris or uri in self.rejected:
            return Match(numbers=self._places(uri), is_exact=True)
        path = name.replace("\\", "/").removeprefix("./")
        found = self._called(_file_name(path))
        ending = [uri for uri in found if uri.endswith(f"/{path}")] if "/" in path else []
        places = {place for uri in ending or found for place in self._places(uri)}
        return Match(numbers=tuple(sorted(places)), is_exact=bool(ending))

    def choose(self, numbers: tuple[int, ...], *, span: Span | None) -> int | None:
        """The one that is meant of the places in a Match; None: there is none, or no telling."""
        if len(numbers) < 2 or span is None:
            return numbers[0] if len(numbers) == 1 else None
        shared = []
        for number in numbers:
            if number != REJECTED:
                video = self.video(number)
                start, end = (
                    max(span[0], video.start_seconds[0]),
                    min(span[1], video.end_seconds[-1]),
                )
                shared.append((max(0.0, end - start), number))
        shared.sort(reverse=True)
        is_plain = shared[0][0] > 0 and (len(shared) == 1 or shared[1][0] < shared[0][0])
        return shared[0][1] if is_plain else None

    def describe(self, numbers: tuple[int, ...]) -> str:
        """Some of the videos at places, in words."""
        known = [self.video_ids[number] for number in numbers if number != REJECTED]
        known += ["one that was rejected"] * (REJECTED in numbers)
        return ", ".join(known[:MAX_SHOWN]) + (", ..." if len(known) > MAX_SHOWN else "")

    def why_rejected(self, name: str) -> str:
        """Why the source that a name means is not in the cache, in words."""
        reason = self.rejected.get(to_public(name), "")
        return f"rejected, {reason}" if reason else "rejected"

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {video_id: number for number, video_id in enumerate(self.video_ids)}

    @functools.cached_property
    def _files(self) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Name of a file, and the same without its ending -> a uri that ends so; and the others."""
        first: dict[str, str] = {}
        others: dict[str, list[str]] = {}
        for uri in (*self.uris, *(uri for uri in self.rejected if uri not in self.uris)):
            name = _file_name(uri)
            stem = name.rpartition(".")[0]
            for one in (name, stem) if stem else (name,):
                if first.setdefault(one, uri) is not uri:
                    others.setdefault(one, []).append(uri)
        return first, others

    def _called(self, file_name: str) -> list[str]:
        first, others = self._files
        return [first[file_name], *others.get(file_name, ())] if file_name in first else []

    def _places(self, uri: str) -> tuple[int, ...]:
        number = self.uris.get(uri, REJECTED)
        return self.several.get(uri, (number,))


def _file_name(path: str) -> str:
    return path.partition("?~")[0].rpartition("/")[2]


def _read_uris(
    cache: FeatureCache, video_ids: pa.Array
) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """`uris` and `several` of a Catalog."""
    fields = ("uri", "given_id", "start_seconds", "end_seconds", "video_id")
    tables = [
        read_table(path).select(fields) for path in cache.layout.extensions(cache.layout.probes)
    ]
    if not tables:
        return {}, {}
    table = pa.concat_tables(tables)
    places = pc.fill_null(pc.index_in(table.column("video_id"), value_set=video_ids), REJECTED)
    uris = table.column("uri").to_pylist()
    numbers = places.to_pylist()
    last = dict(zip(uris, numbers, strict=True))
    several: dict[str, tuple[int, ...]] = {}
    if len(last) < len(uris):
        # The newest row of a source counts, as in the pipeline; its spans are sources of their own.
        counts = Counter(uris)
        columns = [table.column(name).to_pylist() for name in fields[1:4]]
        newest: dict[str, dict[Any, int]] = {}
        for uri, *rest, number in zip(uris, *columns, numbers, strict=True):
            if counts[uri] > 1:
                newest.setdefault(uri, {})[tuple(rest)] = number
        for uri, by_span in newest.items():
            cached = tuple(sorted(set(by_span.values()) - {REJECTED}))
            last[uri] = cached[-1] if cached else REJECTED
            if len(cached) > 1:
                several[uri] = cached
    return {uri: number for uri, number in last.items() if number != REJECTED}, several


def _read_rejected(cache: FeatureCache) -> dict[str, str]:
    table = read_table(cache.layout.rejects)
    uris, ids, reasons = (table.column(name).to_pylist() for name in ("uri", "video_id", "reason"))
    named = {one: reason for one, reason in zip(ids, reasons, strict=True) if one}
    return dict(zip(uris, reasons, strict=True)) | named
