"""Places: files and folders of a cache, on this machine or in an object store, by one interface.

A place is a `pathlib.Path`, or a `UPath` of universal_pathlib for any URL that fsspec knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pipeline.local_files import is_remote, to_path
from schemas.errors import UsageError

if TYPE_CHECKING:
    from upath import UPath

    Place: TypeAlias = Path | UPath
else:
    Place = Any

T = TypeVar("T")
NUM_READERS = 32
"""Small remote files that are read at once."""
NUM_TRIES = 5
FIRST_PAUSE_SECONDS = 0.5
"""Before the second try; doubled each time, and up to as much again by chance."""
_ENDURING = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError)
"""Errors that another try does not mend."""


def to_place(text: str | os.PathLike[str]) -> Place:
    """A local path, a file:// URL, or a URL of an object store.

    UsageError: no file system for the URL's scheme is installed.
    """
    if not isinstance(text, str):
        return text if hasattr(text, "fs") else Path(text)  # type: ignore[return-value]
    if not is_remote(text):
        return to_path(text)
    from upath import UPath

    try:
        # A listing that is remembered would hide what other machines have written.
        place = UPath(text, use_listings_cache=False)
        place.fs  # noqa: B018 - opens it
    except (ImportError, ValueError) as error:
        scheme = text.partition("://")[0]
        extra = {"s3": "s3", "gs": "gcp", "gcs": "gcp"}.get(scheme)
        raise UsageError(
            f"{scheme}://: no file system for it: {error}",
            hint=f"pip install 'reelcache[{extra}]'" if extra else "see the packages of fsspec",
        ) from error
    return place


def is_local(place: Place) -> bool:
    """Whether a place is in this machine's file system."""
    return isinstance(place, Path)


def scratch_for(root: Place) -> Path:
    """Where temporary files for a cache lie on this machine.

    In the cache itself where that is local: then a rename publishes.
    """
    if isinstance(root, Path):
        return root / ".tmp"
    digest = hashlib.sha256(str(root).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"reelcache-{digest}"


def patiently(work: Callable[[], T]) -> T:
    """What `work` returns; OSErrors that may pass are met with pauses and further tries.

    The last error is raised as it is.
    """
    for number in range(NUM_TRIES):
        try:
            return work()
        except _ENDURING:
            raise
        except OSError:
            if number + 1 == NUM_TRIES:
                raise
        pause = FIRST_PAUSE_SECONDS * 2**number
        time.sleep(pause * (1 + random.random()))
    raise AssertionError


def read_bytes(place: Place) -> bytes:
    """The whole file. OSError."""
    return place.read_bytes() if is_local(place) else patiently(place.read_bytes)


def read_many(places: Sequence[Place]) -> Iterator[tuple[Place, bytes]]:
    """The whole files, in order; remote ones many at a time. OSError."""
    if all(is_local(place) for place in places):
        yield from ((place, read_bytes(place)) for place in places)
        return
    with ThreadPoolExecutor(NUM_READERS, thread_name_prefix="read") as readers:
        yield from zip(places, readers.map(read_bytes, places), strict=True)


def read_range(place: Place, view: memoryview, *, offset: int) -> int:
    """Fill `view` from a remote file, from `offset` on: how many bytes came. OSError."""
    assert not isinstance(place, Path)
    data = patiently(lambda: place.fs.cat_file(place.path, start=offset, end=offset + len(view)))
    view[: len(data)] = data
    return len(data)


def list_sizes(folder: Place) -> dict[str, int]:
    """Name -> bytes of the files in a folder, by one listing; empty where there is none."""
    try:
        if isinstance(folder, Path):
            with os.scandir(folder) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        listed = patiently(lambda: folder.fs.ls(folder.path, detail=True))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {
        str(entry["name"]).rstrip("/").rpartition("/")[2]: int(entry["size"] or 0)
        for entry in listed
        if entry["type"] == "file"
    }


def create(place: Place, data: bytes) -> bool:
    """Write a small file unless there is one: whether it was written. OSError.

    Of several processes at once one succeeds.
    """
    if isinstance(place, Path):
        try:
            with place.open("xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True
    try:
        patiently(lambda: place.fs.pipe_file(place.path, data, mode="create"))
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def local_copy(place: Place, *, scratch: Path) -> Iterator[Path]:
    """The file on this machine: itself, or a copy that is gone afterwards. OSError."""
    if isinstance(place, Path):
        yield place
        return
    scratch.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f"{place.name}.", dir=scratch)
    os.close(handle)
    copy = Path(name)
    try:
        patiently(lambda: place.fs.get_file(place.path, name))
        yield copy
    finally:
        copy.unlink(missing_ok=True)
