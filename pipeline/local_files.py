"""Source URIs that are local files: path, size, time, digest."""

from __future__ import annotations

import hashlib
import os
import stat
import urllib.parse
from pathlib import Path

from schemas.errors import VideoError


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


def size_and_time(uri: str) -> tuple[int, int]:
    """(bytes, time of last change in ns) of a regular file.

    VideoError: not_found, unreadable.
    """
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


def content_sha256(uri: str) -> str:
    """sha256 of the whole file. VideoError: not_found, unreadable."""
    try:
        with to_path(uri).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise VideoError("not_found", "no such file") from error
    except OSError as error:
        raise VideoError("unreadable", error.strerror or str(error)) from error


def is_readable(uri: str) -> bool:
    """Whether the first byte of a regular file can be read."""
    try:
        size_and_time(uri)  # opening a pipe would wait for a writer
        with to_path(uri).open("rb") as file:
            file.read(1)
    except (OSError, ValueError, VideoError):
        return False
    return True


def check_unchanged(uri: str, state: tuple[int, int], *, cause: VideoError | None = None) -> None:
    """VideoError: source_changed since the file had this size and time; gone is not changed."""
    try:
        now = size_and_time(uri)
    except VideoError:
        return  # what is open is still whole
    if now != state:
        raise VideoError("source_changed", "while it was decoded") from cause
