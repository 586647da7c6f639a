"""FeatureCache: read a cache. Through the index: one positioned read a sample, no tar is parsed.

    cache = open_cache("cache/")
    sample = cache["v0123456789abcdef_000000"]
    sample.features["image"].shape, sample.times

Needs numpy and pyarrow; neither torch nor Beam.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.layout import CacheLayout
from pipeline.places import Place, read_bytes, read_range, to_place
from pipeline.signing import to_public
from pipeline.storage import read_table
from schemas.cache_info import CacheInfo
from schemas.errors import CacheDamaged, CacheIncomplete, RecipeError, UsageError
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.settings import nearest
from schemas.tables import INDEX_SCHEMA

MAX_OPEN_TARS = 64


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Where samples lie, as plain arrays: taking a row from a table costs as much as reading it."""

    shards: list[str]
    offsets: npt.NDArray[np.int64]
    num_bytes: npt.NDArray[np.int64]
    first_member: npt.NDArray[np.int32]
    """(N + 1,): the members of row n are [first_member[n], first_member[n + 1])."""
    names: list[str]
    name_codes: npt.NDArray[np.int32]
    member_offsets: npt.NDArray[np.int64]
    member_bytes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, table: pa.Table) -> _Places:
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        shards = columns["shard"].dictionary_encode()
        names = columns["member_names"].flatten().dictionary_encode()
        shard_names = shards.dictionary.to_pylist()
        return cls(
            shards=[shard_names[code] for code in shards.indices.to_numpy()],
            offsets=columns["offset"].to_numpy(),
            num_bytes=columns["bytes"].to_numpy(),
            first_member=columns["member_names"].offsets.to_numpy(),
            names=names.dictionary.to_pylist(),
            name_codes=names.indices.to_numpy(),
            member_offsets=columns["member_offsets"].flatten().to_numpy(),
            member_bytes=columns["member_bytes"].flatten().to_numpy(),
        )

    def members(self, number: int) -> Iterator[tuple[str, int, int]]:
        """(name, offset in the tar, bytes) of each member of a row."""
        where = slice(self.first_member[number], self.first_member[number + 1])
        names = (self.names[code] for code in self.name_codes[where])
        places = (self.member_offsets[where].tolist(), self.member_bytes[where].tolist())
        return zip(names, *places, strict=True)


class _Tar:
    """A tar to read from; a local one is open, and closed when nobody reads from it any more."""

    def __init__(self, path: Place) -> None:
        self._path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if isinstance(path, Path) else -1

    def read_into(self, view: memoryview, *, offset: int) -> int:
        """Fill `view` with one read: how many bytes came. OSError."""
        if self.fd < 0:
            return read_range(self._path, view, offset=offset)
        return os.preadv(self.fd, [view], offset)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.fd)


class FeatureCache:
    """An open cache: `len`, `[key]`, iteration by video and clip; a context manager.

    Threads may share it, and other processes may be sent it: they open the tars anew.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.layout = CacheLayout(to_place(path))
        self.info = read_info(self.layout)
        self.recipe = read_recipe(self.info, self.layout)
        self._table = _read_index(self.layout)
        self._tars: OrderedDict[str, _Tar] = OrderedDict()
        self._lock = threading.Lock()

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
    def aliases(self) -> dict[str, str]:
        """uri, or id that was given for it, -> video_id; of all sources that are cached."""
        names = ("uri", "given_id", "video_id")
        found: dict[str, str] = {}
        for path in self.layout.extensions(self.layout.probes):
            columns = read_table(path).select(names).to_pydict()
            for uri, given_id, video_id in zip(*(columns[name] for name in names), strict=True):
                if video_id in self.videos:
                    found[uri] = video_id
                    if given_id is not None:
                        found[given_id] = video_id
        return found

    def video(self, name: str) -> Iterator[Sample]:
        """The samples of a video by its id, an alias or a uri, in order of time.

        UsageError: no such video.
        """
        video_id = name if name in self.videos else self.aliases.get(to_public(name))
        if video_id is None:
            raise UsageError(f"no video {name!r} in the cache{nearest(name, self.videos)}")
        return (self[key] for key in self.videos[video_id])

    def row(self, key: str) -> SampleRow:
        """What the index says of a sample. UsageError: no such key."""
        number = self._number(key)
        fields = {name: column[number].as_py() for name, column in self._columns.items()}
        names = fields.pop("member_names")
        places = zip(fields.pop("member_offsets"), fields.pop("member_bytes"), strict=True)
        num_bytes = fields.pop("bytes")
        members = dict(zip(names, places, strict=True))
        return SampleRow(**fields, num_bytes=num_bytes, members=members)

    def read(self, key: str, *, buffer: bytearray | memoryview | None = None) -> Sample:
        """The sample, read with one call into `buffer` (`row(key).num_bytes` or more bytes).

        Its arrays alias the buffer: pass the same one again only when they are no longer needed.
        """
        number = self._number(key)
        places = self._places
        num_bytes, offset = int(places.num_bytes[number]), int(places.offsets[number])
        # Not a bytearray: that would be filled with zeros first.
        fresh = np.empty(num_bytes, dtype=np.uint8).data if buffer is None else buffer
        view = memoryview(fresh).cast("B")
        if view.nbytes < num_bytes:
            raise ValueError(f"{view.nbytes = } must be at least {num_bytes}")
        view = view[:num_bytes]
        self._read_into(key, places.shards[number], offset, view)
        members = {
            name: view[start - offset : start - offset + size]
            for name, start, size in places.members(number)
        }
        return Sample.from_members(key, members, streams=self.streams)

    def close(self) -> None:
        """Close the open tars; reading again opens them again."""
        with self._lock:
            self._tars.clear()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tars": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_lock": threading.Lock()})

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

    @functools.cached_property
    def _places(self) -> _Places:
        return _Places.of(self._table)

    def _number(self, key: str) -> int:
        if key not in self._rows:
            raise UsageError(
                f"no sample {key!r} in {self.layout.root}{nearest(key, self._rows)}",
                hint=f"see: pipeline inspect {shlex.quote(str(self.layout.root))}",
            )
        return self._rows[key]

    def _read_into(self, key: str, shard: str, offset: int, view: memoryview) -> None:
        tar = self._open_tar(shard)  # held, so that no other thread's eviction closes it
        try:
            count = tar.read_into(view, offset=offset)
        except OSError as error:
            raise CacheDamaged(
                f"{self.layout.tar(shard)}: cannot be read: {error.strerror or error}",
                hint=f"run: pipeline verify {shlex.quote(str(self.layout.root))}",
            ) from error
        if count != view.nbytes:
            raise CacheDamaged(
                f"{self.layout.tar(shard)} ends inside {key}",
                hint=f"run: pipeline verify {shlex.quote(str(self.layout.root))}",
            )

    def _open_tar(self, shard: str) -> _Tar:
        with self._lock:
            if shard in self._tars:
                self._tars.move_to_end(shard)
                return self._tars[shard]
            path = self.layout.tar(shard)
            try:
                tar = self._tars[shard] = _Tar(path)
            except OSError as error:
                raise CacheDamaged(
                    f"{path}: {error.strerror}",
                    hint=f"run: pipeline verify {shlex.quote(str(self.layout.root))}",
                ) from error
            if len(self._tars) > MAX_OPEN_TARS:
                self._tars.popitem(last=False)
            return tar


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
        error.hint = f"run: pipeline verify {shlex.quote(str(layout.root))}"
        raise
    if table.schema.names != INDEX_SCHEMA.names:
        raise CacheDamaged(f"{layout.index}: columns {table.schema.names} are not an index's")
    return table
