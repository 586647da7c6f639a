"""Export: the clips of a cache as files of other formats, clip by clip, with no more in memory.

_export.json, the last file to be written, says what an export is of; without it there is none.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.cache import FeatureCache
from pipeline.clip_columns import OF_VIDEOS, clip_columns
from pipeline.layout import CacheLayout
from pipeline.peeking import peek
from pipeline.places import Place, list_sizes, scratch_for
from pipeline.slicing import check_apart
from pipeline.storage import delete, publish_bytes, storage_errors
from schemas.compact import as_float16
from schemas.errors import CacheHeld, UsageError
from schemas.recipe import AUDIO
from schemas.sample import AUDIO_MASK_MEMBER, AUDIO_MEMBER, SCALE_MEMBER, Sample
from schemas.settings import nearest
from schemas.tables import INDEX_SCHEMA

Format = Literal["parquet", "lance", "safetensors", "npy"]
WRITERS: dict[str, str] = {
    "parquet": "pipeline.export_tables:write_parquet",
    "lance": "pipeline.export_tables:write_lance",
    "safetensors": "pipeline.export_arrays:write_safetensors",
    "npy": "pipeline.export_arrays:write_npy",
}
"""Format -> module:function."""
INFO = "_export.json"
BEGUN = "_export.begun"
"""Is there until INFO is: what lies beside it is of an export that was not finished."""
SCALE = "_scale"
MOST_OF_A_SAMPLE = 0.5
"""A part of a sample that is at least so large is read as the whole of it, with one call."""
_EXTENTS = ("offset", "bytes")
_RESERVED = ("json", "preview", "file")
"""Columns of tables besides arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What of each clip is written."""

    streams: tuple[str, ...]
    """Names of streams, `audio` among them."""
    pooled: bool = False
    """The mean over the cells of a grid: (T, D) float16 in the place of (T, H, W, D)."""
    decode: bool = False
    """int8 as float16, without scales."""
    compression: Literal["none", "zstd"] = "none"
    """Of Parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One array of every clip."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The N clips that are exported, in the order of the index, and what is written of each."""

    cache: FeatureCache
    options: ExportOptions
    rows: npt.NDArray[np.int64]
    """(N,) of the index."""
    table: pa.Table
    """(N,): what is known of each clip, see `clip_columns`."""
    arrays: tuple[Array, ...]
    """The same in every clip."""
    has_preview: bool

    def shards(self) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
        """(name of a shard, which of the N clips are in it), of those with clips."""
        codes = self.cache.extents.shard_codes[self.rows]
        for code in dict.fromkeys(codes.tolist()):
            yield self.cache.extents.shard_names[code], np.flatnonzero(codes == code)

    def clips(
        self, numbers: Sequence[int] | npt.NDArray[np.int64]
    ) -> Iterator[tuple[Sample, dict[str, npt.NDArray[Any]]]]:
        """Each of these of the N clips, with its arrays by name."""
        for number in numbers:
            sample = _read(self.cache, int(self.rows[number]), self._wanted)
            arrays = arrays_of(sample, self.options)
            for one in self.arrays:
                found = arrays[one.name]
                if found.shape != one.shape or found.dtype != one.dtype:
                    raise self.cache.damaged(
                        f"{sample.key}: {one.name} is {found.shape} {found.dtype}, not"
                        f" {one.shape} {one.dtype} as in other clips"
                    )
            yield sample, arrays

    @property
    def _wanted(self) -> frozenset[str]:
        return _wanted_members(self.options)


class Write(Protocol):
    """Writes one format: the names of what it wrote in `root`."""

    def __call__(
        self, selection: Selection, root: Place, *, progress: Callable[[int], None]
    ) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What was written."""

    num_clips: int
    num_bytes: int
    names: tuple[str, ...]
    """Files, or one folder, in the place."""


def export_cache(
    cache: FeatureCache,
    root: Place,
    *,
    to: Format,
    options: ExportOptions,
    rows: npt.NDArray[np.bool_] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Export:
    """Write the clips of a cache, or of some rows of its index, into a new or unfinished export.

    `progress` is told of clips. UsageError: no such stream, no clip, a package is missing, or the
    place holds something else. CacheHeld: another export is at work there. CacheDamaged.
    StorageError.
    """
    selection = select_clips(cache, options, rows=rows)
    _check_place(root, cache)
    with _held(root):
        _check_files(root)
        names = _write(selection, root, to=to, progress=progress)
    return Export(num_clips=len(selection.rows), num_bytes=_size(root, names), names=tuple(names))


def _write(
    selection: Selection, root: Place, *, to: Format, progress: Callable[[int], None]
) -> list[str]:
    module, _, name = WRITERS[to].partition(":")
    write: Write = getattr(importlib.import_module(module), name)
    scratch = scratch_for(root)
    try:
        publish_bytes(b"", root / BEGUN, scratch=scratch)
        names = write(selection, root, progress=progress)
        info = {
            "format": to,
            "cache_fingerprint": selection.cache.fingerprint,
            "recipe": selection.cache.recipe.name,
            "clips": len(selection.rows),
            "arrays": {
                one.name: {"shape": list(one.shape), "dtype": one.dtype.name}
                for one in selection.arrays
            },
            "options": asdict(selection.options),
            "files": names,
        }
        text = json.dumps(info, indent=1, ensure_ascii=False) + "\n"
        publish_bytes(text.encode(), root / INFO, scratch=scratch)
        delete(root / BEGUN)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return names


def select_clips(
    cache: FeatureCache, options: ExportOptions, *, rows: npt.NDArray[np.bool_] | None = None
) -> Selection:
    """What an export would consist of. UsageError: no such stream, no clip."""
    known = [*cache.streams, *([AUDIO] if cache.recipe.audio is not None else [])]
    for name in options.streams:
        if name not in known:
            raise UsageError(f"no stream {name!r} in the cache{nearest(name, known)}")
    numbers = np.arange(len(cache)) if rows is None else np.flatnonzero(rows)
    if not len(numbers):
        raise UsageError("no clip is chosen")
    first = _read(cache, int(numbers[0]), _wanted_members(options))
    arrays = arrays_of(first, options)
    table = clip_columns(cache)
    own = {*INDEX_SCHEMA.names, *OF_VIDEOS}
    # A list's own columns give way to what an export always has.
    dropped = {*_EXTENTS, *(name for name in (*arrays, *_RESERVED) if name not in own)}
    kept = [name for name in table.schema.names if name not in dropped]
    return Selection(
        cache=cache,
        options=options,
        rows=numbers,
        table=table.select(kept).take(pa.array(numbers)),
        arrays=tuple(
            Array(name=name, dtype=array.dtype, shape=array.shape) for name, array in arrays.items()
        ),
        has_preview=first.preview is not None,
    )


def arrays_of(sample: Sample, options: ExportOptions) -> dict[str, npt.NDArray[Any]]:
    """Name -> array of what is written of a sample: features (and scales), sound, time, mask."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name in options.streams:
        if name == AUDIO:
            assert sample.audio is not None and sample.audio_mask is not None
            arrays |= {AUDIO: sample.audio, f"{AUDIO}_mask": sample.audio_mask}
        elif options.pooled:
            arrays[name] = as_float16(sample.decode(name).mean(axis=(1, 2)))
        elif name in sample.scales and options.decode:
            arrays[name] = as_float16(sample.decode(name))
        else:
            arrays[name] = sample.features[name]
            if name in sample.scales:
                arrays[name + SCALE] = sample.scales[name]
    return arrays | {"time": sample.times, "mask": sample.mask}


def _wanted_members(options: ExportOptions) -> frozenset[str]:
    wanted = {"time.npy", "mask.npy", "json", "preview.jpg"}
    for name in options.streams:
        own = (AUDIO_MEMBER, AUDIO_MASK_MEMBER) if name == AUDIO else (f"{name}.npy",)
        wanted |= {*own, f"{name}{SCALE_MEMBER}"}
    return frozenset(wanted)


def _read(cache: FeatureCache, row: int, wanted: frozenset[str]) -> Sample:
    key = cache.index.column("key")[row].as_py()
    num_wanted = sum(size for name, _, size in cache.extents.members(row) if name in wanted)
    is_remote = not isinstance(cache.layout.root, Path)
    members: dict[str, memoryview]
    if is_remote or num_wanted >= MOST_OF_A_SAMPLE * cache.extents.num_bytes[row]:
        whole = cache.read_members(row)
        members = {name: data for name, data in whole.items() if name in wanted}
    else:
        members = peek(cache, key, names=wanted)
    streams = tuple(name for name in cache.streams if f"{name}.npy" in wanted)
    return Sample.from_members(key, members, streams=streams)


def _check_place(root: Place, cache: FeatureCache) -> None:
    if isinstance(root, Path) and root.is_file():
        raise UsageError(f"{root}: is a file; OUT must be a folder, new or of an unfinished export")
    if root == cache.layout.root:
        raise UsageError(f"{root} is the cache itself")
    check_apart(CacheLayout(root), [cache])


@contextlib.contextmanager
def _held(root: Place) -> Iterator[None]:
    # Two at once would mix their files; in an object store nothing can tell.
    if not isinstance(root, Path):
        yield
        return
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # of a file system without locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CacheHeld(
                    f"{root}: another export is at work here", hint="wait until it has ended"
                ) from error
        yield
    finally:
        os.close(lock)


def _check_files(root: Place) -> None:
    names = set(list_sizes(root))
    if isinstance(root, Path) and root.is_dir():
        names |= {entry.name for entry in root.iterdir()}
    if INFO in names:
        raise UsageError(
            f"{root} holds an export already", hint="name a new folder; or delete that one"
        )
    if CacheLayout(root).info.name in names:
        raise UsageError(f"{root} is a cache", hint="name a new folder for the export")
    # Files of these kinds may be anyone's, unless an export has begun here.
    ours = (".parquet", ".safetensors", ".npy", ".lance") if BEGUN in names else ()
    strange = [name for name in names - {".tmp", BEGUN} if not name.endswith(ours)]
    if strange:
        raise UsageError(
            f"{root}: holds other files, such as {min(strange)}", hint="name a new folder"
        )
    with storage_errors(root):
        scratch = scratch_for(root)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True, exist_ok=True)


def _size(root: Place, names: Sequence[str]) -> int:
    sizes = list_sizes(root)
    folders = [root / name for name in names if name not in sizes]
    inside = (
        entry.stat().st_size
        for folder in folders
        if isinstance(folder, Path)
        for entry in folder.rglob("*")
        if entry.is_file()
    )
    return sum(sizes.get(name, 0) for name in names) + sum(inside)


def describe(selection: Selection) -> Mapping[str, str]:
    """What files of an export say of themselves, as texts."""
    return {
        "reelcache.fingerprint": selection.cache.fingerprint,
        "reelcache.recipe": selection.cache.recipe.name,
        "reelcache.fps": repr(selection.cache.recipe.sampling.fps),
    }
