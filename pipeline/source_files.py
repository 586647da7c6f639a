"""The files of sources, here or in a store: path, size, time, digest; a copy on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pipeline.patience import LOCAL_ERRNOS, patiently
from pipeline.signing import redact, url_of
from pipeline.stores import open_store
from schemas.errors import StorageError, UsageError, VideoError

FileState = tuple[int, int]
"""(bytes, time of last change in ns, or a mark that is another one after a change)."""
NUM_LOOKERS = 32
"""Remote files that are looked at side by side."""
_MARKS = (
    *("generation", "ETag", "etag", "md5Hash", "Content-MD5", "ContentMD5", "checksum", "md5"),
    *("LastModified", "Last-Modified", "last_modified", "mtime", "modified", "updated", "created"),
)
"""What stores tell of a file's content, best first."""
SLOW_BYTES_PER_SECOND = 50e3
SLOW_START_SECONDS = 600.0
"""Fetching a file may take so long, and its bytes at `SLOW_BYTES_PER_SECOND`."""


def to_uri(path: str) -> str:
    """An absolute path, or a file:// URL where the name is not valid text."""
    absolute = os.path.abspath(path)  # noqa: PTH100 - symbolic links keep their own name
    try:
        absolute.encode("utf-8")
    except UnicodeEncodeError:
        return "file://" + urllib.parse.quote(os.fsencode(absolute))
    return absolute


def to_path(uri: str) -> Path:
    """The inverse of `to_uri`; takes any file:// URL."""
    if uri.startswith("file://"):
        return Path(os.fsdecode(urllib.parse.unquote_to_bytes(uri.removeprefix("file://"))))
    return Path(uri)


def is_remote(uri: str) -> bool:
    """Whether this is a URL of something else than a local file."""
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme.isalnum() and scheme != "file"


def size_and_time(uri: str) -> FileState:
    """The state of a regular file, or of one in a store.

    There the second number is the time's place: the first 63 bits of the sha256 of what the store
    tells of the content (generation, else ETag, else a digest, else its time); 0 where it tells
    nothing. VideoError: not_found, unreadable.
    """
    if is_remote(uri):
        return _remote_state(uri)
    path = to_path(uri)
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise VideoError("not_found", "no such file") from error
    except (OSError, ValueError) as error:
        raise VideoError("unreadable", getattr(error, "strerror", None) or str(error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise VideoError("unreadable", "not a regular file")
    return status.st_size, status.st_mtime_ns


def states_of(uris: Iterable[str]) -> dict[str, FileState | VideoError]:
    """The states of files, or why they have none; remote ones are looked at side by side."""
    wanted = list(dict.fromkeys(uris))
    remote = [uri for uri in wanted if is_remote(uri)]
    found: dict[str, FileState | VideoError] = {}
    if remote:
        with ThreadPoolExecutor(NUM_LOOKERS, thread_name_prefix="look") as lookers:
            found.update(zip(remote, lookers.map(_state_or_error, remote), strict=True))
    return {uri: found[uri] if uri in found else _state_or_error(uri) for uri in wanted}


def _state_or_error(uri: str) -> FileState | VideoError:
    try:
        return size_and_time(uri)
    except VideoError as error:
        return error


def _remote_state(uri: str) -> FileState:
    store, path = _open(uri)
    info: dict[str, Any] = _remotely(lambda: store.info(path))
    if info.get("type") == "directory":
        raise VideoError("unreadable", "not a file but a folder")
    size = info.get("size")
    if not isinstance(size, int):
        raise VideoError("unreadable", "the server does not tell its size")
    return size, change_mark(info)


def change_mark(info: Mapping[str, Any]) -> int:
    """A number below 2**63 for what a store tells of a file's content; 0: nothing."""
    for name in _MARKS:
        if info.get(name):
            digest = hashlib.sha256(f"{name}={info[name]}".encode()).digest()
            return int.from_bytes(digest[:8], "big") >> 1
    return 0


def content_sha256(uri: str) -> str:
    """sha256 of a whole local file. VideoError: not_found, unreadable."""
    try:
        with to_path(uri).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise VideoError("not_found", "no such file") from error
    except OSError as error:
        raise VideoError("unreadable", error.strerror or str(error)) from error


def is_readable(uri: str) -> bool:
    """Whether the first byte of a regular file can be read; whether a remote one is there."""
    try:
        size_and_time(uri)  # opening a pipe would wait for a writer
        if not is_remote(uri):
            with to_path(uri).open("rb") as file:
                file.read(1)
    except (OSError, ValueError, VideoError):
        return False
    return True


def check_unchanged(uri: str, state: FileState, *, cause: VideoError | None = None) -> None:
    """VideoError: source_changed since the file had this size and time; gone is not changed."""
    try:
        now = size_and_time(uri)
    except VideoError:
        return  # what is open is still whole
    if now != state:
        raise VideoError("source_changed", "while it was decoded") from cause


def fetch(
    uri: str, target: Path, *, num_bytes: int, check: Callable[[], None] = lambda: None
) -> None:
    """Copy a remote file to `target`, whole or not at all.

    `check` is called now and then, to raise what is to end it. VideoError: not_found, unreadable;
    source_changed where it has not `num_bytes`. StorageError: this machine's disk is full.
    """
    from fsspec.callbacks import Callback

    store, path = _open(uri)

    class Watched(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.deadline = time.monotonic() + SLOW_START_SECONDS
            self.deadline += num_bytes / SLOW_BYTES_PER_SECOND

        def relative_update(self, inc: int = 1) -> None:  # noqa: ARG002
            check()
            if time.monotonic() > self.deadline:
                raise TimeoutError(f"slower than {SLOW_BYTES_PER_SECOND / 1e3:.0f} kB a second")

    def copy() -> None:
        check()
        store.get_file(path, str(target), callback=Watched())
        size = target.stat().st_size
        if size != num_bytes:
            now = _remote_state(uri)[0]
            if now != num_bytes:
                raise VideoError("source_changed", f"planned {num_bytes} bytes, now {now}")
            raise OSError(f"{size} of {num_bytes} bytes came")

    try:
        _remotely(copy, what=target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            target.unlink(missing_ok=True)
        raise


def _open(uri: str) -> tuple[Any, str]:
    try:
        return open_store(url_of(uri))
    except UsageError as error:
        raise VideoError("unreadable", error.message) from None


def _remotely(work: Callable[[], Any], *, what: Path | None = None) -> Any:
    # Errors of libraries may hold the whole URL: neither their words nor they themselves go on.
    try:
        return patiently(work)
    except FileNotFoundError:
        raise VideoError("not_found", "no such file") from None
    except PermissionError:
        detail = "access is denied; a signed URL may have expired: give a new one"
        raise VideoError("unreadable", detail) from None
    except OSError as error:
        if what is not None and error.errno in LOCAL_ERRNOS:
            raise StorageError(
                f"{what}: a video cannot be fetched: {os.strerror(error.errno or 0)}",
                hint="free some space, set TMPDIR to another place, or lower --fetch-bytes; what is"
                " committed is kept, run again",
            ) from None
        detail = redact(error.strerror or str(error)) or type(error).__name__
        raise VideoError("unreadable", detail) from None
