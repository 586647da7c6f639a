"""Places: files and folders of a cache, on this machine or in an object store, by one interface.

A place is a `pathlib.Path`, or a `UPath` of universal_pathlib for any URL that fsspec knows.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from pipeline.ending import not_while_ending
from pipeline.patience import patiently
from pipeline.signing import to_public
from pipeline.source_files import is_remote, to_path
from pipeline.stores import no_store, quiet_path, scheme_of
from schemas.errors import UsageError

if TYPE_CHECKING:
    from upath import UPath

    Place: TypeAlias = Path | UPath
else:
    Place = Any

HEAD_BYTES = 2**16
NUM_READERS = 32
"""Small remote files that are read at once."""


def to_place(text: str | os.PathLike[str]) -> Place:
    """A local path, a file:// URL, or a URL of an object store.

    UsageError: no file system for the URL's scheme is installed.
    """
    if not isinstance(text, str):
        return text if hasattr(text, "fs") else Path(text)  # type: ignore[return-value]
    if not is_remote(text):
        return to_path(text)
    scheme = scheme_of(text)
    if to_public(text) != text:
        raise UsageError(
            f"{to_public(text)}: a cache is named without user, password and signature",
            hint="credentials come from the environment or from files of the store's own tools",
        )
    try:
        return quiet_path(text)  # type: ignore[no-any-return]
    except (ImportError, ValueError, TypeError) as error:
        raise no_store(scheme, error) from None


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


def make_scratch(folder: Path) -> None:
    """Make a folder for temporary files, unless the process ends and removes them. OSError."""
    with not_while_ending():
        folder.mkdir(parents=True, exist_ok=True)


def read_bytes(place: Place) -> bytes:
    """The whole file. OSError."""
    if isinstance(place, Path):
        return place.read_bytes()
    data: bytes = patiently(lambda: place.fs.cat_file(place.path))
    return data


def size_of(place: Place) -> int:
    """Bytes of a file. OSError."""
    if isinstance(place, Path):
        return place.stat().st_size
    info: dict[str, Any] = patiently(lambda: place.fs.info(place.path))
    if info["type"] == "directory":
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    return int(info["size"])


def is_file(place: Place) -> bool:
    """Whether there is such a file. OSError: it cannot be told."""
    if isinstance(place, Path):
        return place.is_file()
    try:
        return size_of(place) >= 0
    except (FileNotFoundError, IsADirectoryError):
        return False


def open_file(place: Place) -> IO[bytes]:
    """A file open for reading; of a remote one only what is read is fetched. OSError."""
    if isinstance(place, Path):
        return place.open("rb")
    # Small blocks: heads of members, and what lies between is skipped.
    file: IO[bytes] = patiently(lambda: place.fs.open(place.path, "rb", block_size=HEAD_BYTES))
    return file


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

    Of several processes at once one succeeds. UsageError: the store cannot do so.
    """
    if isinstance(place, Path):
        try:
            with place.open("xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True
    if not _create_remotely(place, data):
        # A try before may have got through though its answer did not.
        return read_bytes(place) == data
    if _create_remotely(place, data):
        raise UsageError(
            f"{place}: this store writes a file again that is only to be created, so two runs on"
            " one cache could not be kept apart",
            hint="keep the cache on a disk or in S3, Google Cloud Storage or Azure, and copy it",
        )
    return True


def _create_remotely(place: UPath, data: bytes) -> bool:
    try:
        patiently(lambda: place.fs.pipe_file(place.path, data, mode="create"))
    except FileExistsError:
        return False
    except (TypeError, NotImplementedError, ValueError) as error:
        raise UsageError(
            f"{place}: its file system cannot create a file only where there is none: {error}",
            hint="is the package of the file system up to date?",
        ) from None
    except OSError as error:
        if "precondition" not in str(error).replace("-", "").lower():
            raise
        return False  # the store's own words for it
    return True


@contextlib.contextmanager
def local_copy(place: Place, *, scratch: Path) -> Iterator[Path]:
    """The file on this machine: itself, or a copy that is gone afterwards. OSError."""
    if isinstance(place, Path):
        yield place
        return
    make_scratch(scratch)
    handle, name = tempfile.mkstemp(prefix=f"{place.name}.", dir=scratch)
    os.close(handle)
    copy = Path(name)
    try:
        patiently(lambda: place.fs.get_file(place.path, name))
        yield copy
    finally:
        copy.unlink(missing_ok=True)
