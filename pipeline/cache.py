"""FeatureCache: read a cache. Through the index: one positioned read a sample, no tar is parsed.

    cache = open_cache("cache/")
    sample = cache["v0123456789abcdef_000000"]
    sample.features["image"].shape, sample.times

Needs numpy and pyarrow; neither torch nor Beam.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.extents import Extents, group_rows
from pipeline.layout import CacheLayout
from pipeline.open_tars import OpenTars
from pipeline.places import read_bytes, to_place
from pipeline.signing import to_public
from pipeline.storage import read_table
from schemas.cache_info import CacheInfo
from schemas.errors import CacheDamaged, CacheIncomplete, RecipeError, UsageError
from schemas.quality import QUALITY_COLUMNS, Quality, quality_from
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.settings import nearest
from schemas.tables import INDEX_SCHEMA, as_index


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One row of the index."""

    key: str
    video_id: str
    clip_index: int
    start_seconds: float
    end_seconds: float
    num_frames: int
    truncated: bool
    corrupt: bool
    shard: str
    offset: int
    num_bytes: int
    members: dict[str, tuple[int, int]]
    """Member name without the key -> (offset in the tar, bytes)."""
    quality: Quality | None
    """None: written by a version that did not judge."""


class FeatureCache:
    """An open cache: `len`, `[key]`, iteration by video and clip; a context manager.

    Threads may share it, and other processes may be sent it: they open the tars anew.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.layout = CacheLayout(to_place(path))
        self.info = read_info(self.layout)
        self.recipe = read_recipe(self.info, self.layout)
        self._table = _read_index(self.layout)
        self.tars = OpenTars(self.layout, hint=_verify(self.layout))

    def __repr__(self) -> str:
        counts = self.info.counts
        return (
            f"FeatureCache({str(self.layout.root)!r}, {counts['videos']} videos,"
            f" {len(self)} samples, {counts['shards']} shards, recipe {self.recipe.name!r})"
        )

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[Sample]:
        """All samples, video by video, in order of time."""
        for key in self.keys():
            yield self[key]

    def __getitem__(self, key: str) -> Sample:
        """The sample; its arrays alias one buffer that is its own. UsageError: no such key."""
        if not isinstance(key, str):
            raise TypeError(f"{key!r} is not a key; cache.keys() lists them in order")
        return self.read(key)

    def __enter__(self) -> FeatureCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the features, in the recipe's order."""
        return self.info.streams

    @property
    def fingerprint(self) -> str:
        return self.info.fingerprint

    @property
    def index(self) -> pa.Table:
        """The index as a table; see docs/format.md."""
        return self._table

    @functools.cached_property
    def extents(self) -> Extents:
        """Where the samples lie, in the order of the index."""
        return Extents.of(self._table)

    def keys(self) -> list[str]:
        """Keys of all samples, video by video, in order of time."""
        return list(self._rows)

    @functools.cached_property
    def videos(self) -> dict[str, list[str]]:
        """video_id -> keys of its samples, in order of time."""
        videos: dict[str, list[str]] = {}
        ids = self._table.column("video_id").to_pylist()
        for key, number in self._rows.items():
            videos.setdefault(ids[number], []).append(key)
        return videos

    @functools.cached_property
    def rows_by_video(self) -> dict[str, npt.NDArray[np.int64]]:
        """video_id -> rows of its samples in the index, in their order."""
        codes = self._table.column("video_id").combine_chunks().dictionary_encode()
        return group_rows(codes.indices.to_numpy(), codes.dictionary.to_pylist())

    @functools.cached_property
    def aliases(self) -> dict[str, str]:
        """uri, or id that was given for it, -> video_id; of all sources that are cached.

        Of a uri that several videos are spans of, one of them.
        """
        found: dict[str, str] = {}
        for uri, given_id, video_id in self._sources:
            found[uri] = video_id
            if given_id is not None:
                found[given_id] = video_id
        return found

    @functools.cached_property
    def uris(self) -> dict[str, list[str]]:
        """video_id -> the uris of its sources, as they came; several are of equal content."""
        found: dict[str, dict[str, None]] = {}
        for uri, _, video_id in self._sources:
            found.setdefault(video_id, {})[uri] = None
        return {video_id: list(uris) for video_id, uris in found.items()}

    def find_video(self, name: str) -> str | None:
        """The id of the video of an id, an alias or a uri; None: there is no such video."""
        return name if name in self.videos else self.aliases.get(to_public(name))

    def video(self, name: str) -> Iterator[Sample]:
        """The samples of a video by its id, an alias or a uri, in order of time.

        UsageError: no such video.
        """
        video_id = self.find_video(name)
        if video_id is None:
            raise UsageError(f"no video {name!r} in the cache{nearest(name, self.videos)}")
        return (self[key] for key in self.videos[video_id])

    def row(self, key: str) -> SampleRow:
        """What the index says of a sample. UsageError: no such key."""
        number = self.number(key)
        fields = {name: column[number].as_py() for name, column in self._columns.items()}
        names = fields.pop("member_names")
        places = zip(fields.pop("member_offsets"), fields.pop("member_bytes"), strict=True)
        num_bytes = fields.pop("bytes")
        members = dict(zip(names, places, strict=True))
        quality = quality_from({name: fields.pop(name) for name in QUALITY_COLUMNS})
        return SampleRow(**fields, num_bytes=num_bytes, members=members, quality=quality)

    def read(self, key: str, *, buffer: bytearray | memoryview | None = None) -> Sample:
        """The sample, read with one call into `buffer` (`row(key).num_bytes` or more bytes).

        Its arrays alias the buffer: pass the same one again only when they are no longer needed.
        """
        members = self.read_members(self.number(key), buffer=buffer)
        return Sample.from_members(key, members, streams=self.streams)

    def read_members(
        self, number: int, *, buffer: bytearray | memoryview | None = None
    ) -> dict[str, memoryview]:
        """Member name -> its bytes, of the sample in a row of the index; otherwise as `read`."""
        extents = self.extents
        num_bytes, offset = int(extents.num_bytes[number]), int(extents.offsets[number])
        # Not a bytearray: that would be filled with zeros first.
        fresh = np.empty(num_bytes, dtype=np.uint8).data if buffer is None else buffer
        view = memoryview(fresh).cast("B")
        if view.nbytes < num_bytes:
            raise ValueError(f"{view.nbytes = } must be at least {num_bytes}")
        view = view[:num_bytes]
        shard = extents.shard_names[extents.shard_codes[number]]
        if self.tars.read_into(shard, [view], offset=offset) != num_bytes:
            key = self._columns["key"][number].as_py()
            raise self.damaged(f"{self.layout.tar(shard)} ends inside {key}")
        return {
            name: view[start - offset : start - offset + size]
            for name, start, size in extents.members(number)
        }

    def number(self, key: str) -> int:
        """The row of the index that a sample has. UsageError: no such key."""
        if key not in self._rows:
            raise UsageError(
                f"no sample {key!r} in {self.layout.root}{nearest(key, self._rows)}",
                hint=f"see: pipeline inspect {shlex.quote(str(self.layout.root))}",
            )
        return self._rows[key]

    def close(self) -> None:
        """Close the open tars; reading again opens them again."""
        self.tars.close()

    def damaged(self, message: str) -> CacheDamaged:
        """The error that a file of the cache is not what was written."""
        return CacheDamaged(message, hint=_verify(self.layout))

    @functools.cached_property
    def _sources(self) -> list[tuple[str, str | None, str]]:
        # uri, given id and video_id of all that are cached.
        names = ("uri", "given_id", "video_id")
        found: list[tuple[str, str | None, str]] = []
        for path in self.layout.extensions(self.layout.probes):
            columns = read_table(path).select(names).to_pydict()
            rows = zip(*(columns[name] for name in names), strict=True)
            found += [row for row in rows if row[2] in self.videos]
        return found

    @functools.cached_property
    def _rows(self) -> dict[str, int]:
        # By video and clip, which is not the order of the shards once videos were added.
        order = self._table.select(["video_id", "clip_index"]).to_pydict()
        numbers = sorted(
            range(self._table.num_rows),
            key=lambda number: (order["video_id"][number], order["clip_index"][number]),
        )
        keys = self._table.column("key").to_pylist()
        return {keys[number]: number for number in numbers}

    @functools.cached_property
    def _columns(self) -> dict[str, Any]:
        return {name: self._table.column(name) for name in INDEX_SCHEMA.names}


def open_cache(path: str | os.PathLike[str]) -> FeatureCache:
    """Open a cache for reading.

    UsageError: no such folder. CacheIncomplete: no run has finished there. CacheDamaged or
    CacheError: cache.json or the index is not what this version reads.
    """
    return FeatureCache(path)


def read_info(layout: CacheLayout) -> CacheInfo:
    """cache.json; errors as of `open_cache`."""
    root = layout.root
    if isinstance(root, Path) and not root.is_dir():
        what = "is a file, not a cache" if root.exists() else "no such folder"
        raise UsageError(f"{root}: {what}", hint="make one with: pipeline run SOURCES CACHE")
    try:
        text = read_bytes(layout.info).decode("utf-8")
    except FileNotFoundError as error:
        raise CacheIncomplete(
            f"{layout.root} has no cache.json: not a cache, or its first run has not finished",
            hint="make or finish it with: pipeline run SOURCES CACHE",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise CacheDamaged(f"{layout.info}: cannot be read: {error}") from error
    return CacheInfo.from_json(text, where=str(layout.info))


def read_recipe(info: CacheInfo, layout: CacheLayout) -> Recipe:
    """The recipe in cache.json, whose streams have their stamps. CacheDamaged."""
    try:
        recipe = Recipe.from_mapping(info.recipe)
        for name in recipe.streams:
            stamp = info.stamps[name]
            if not all(isinstance(size, int) for size in (*stamp["grid"], stamp["dim"])):
                raise TypeError(f"the stamp of {name} has no grid and dim of whole numbers")
        return recipe
    except (RecipeError, LookupError, TypeError, AttributeError) as error:
        raise CacheDamaged(f"{layout.info}: its recipe cannot be read: {error}") from error


def _read_index(layout: CacheLayout) -> Any:
    try:
        table = read_table(layout.index).combine_chunks()
    except CacheDamaged as error:
        error.hint = _verify(layout)
        raise
    try:
        return as_index(table)
    except KeyError as error:
        raise CacheDamaged(f"{layout.index}: {error.args[0]}") from error


def _verify(layout: CacheLayout) -> str:
    return f"run: pipeline verify {shlex.quote(str(layout.root))}"
