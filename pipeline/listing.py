"""List what lies behind a URL: one file, a folder (a prefix of a store), or what a glob matches."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pipeline.patience import patiently
from pipeline.signing import learn, redact, to_public, url_of
from pipeline.stores import open_store, scheme_of
from schemas.errors import SourceError

T = TypeVar("T")
_FLAT = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")
"""Object stores, which list what is in all folders at once."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file or a folder behind a URL."""

    uri: str
    is_folder: bool


def look_up(url: str) -> list[Found]:
    """The file or folder, or all that the glob matches; empty where there is nothing.

    SourceError: it cannot be looked at.
    """
    store, path = open_store(url)
    uri = learn(url)
    is_http = scheme_of(url) in ("http", "https")
    if is_http and url.endswith("/"):
        return [Found(to_public(url).rstrip("/"), is_folder=True)]
    if is_http and "*" in url:
        return _match(store, path, url)
    try:
        info = _ask(uri, lambda: store.info(path))
    except FileNotFoundError:
        return _match(store, path, url) if glob.has_magic(path) and not is_http else []
    return [Found(uri, is_folder=info["type"] == "directory")]


def walk(uri: str, *, is_media: Callable[[str], bool]) -> tuple[list[str], int]:
    """Uris of the media files below a folder, and how many others there are.

    What lies below a hidden folder or in a cache is left out. SourceError: it is a cache itself, or
    cannot be listed.
    """
    is_http = scheme_of(uri) in ("http", "https")
    store, root = open_store(uri + "/" if is_http else uri)
    root = root.rstrip("/")
    listed: list[str]
    if scheme_of(uri) in _FLAT:
        listed = _ask(uri, lambda: list(store.find(root)))
    else:
        tree = _tree(store, root + "/", uri=uri)
        listed = [path for path, is_folder in tree.items() if not is_folder]
    names = [path[len(root) :].lstrip("/") for path in listed if path.startswith(root)]
    caches = {name.removesuffix("cache.json") for name in names if _is_cache_json(name)}
    if "" in caches:
        raise SourceError(f"{uri} is a cache", hint="SOURCES come first, CACHE comes last")
    found, num_ignored = [], 0
    for name in sorted(names, key=_order):
        *folders, last = name.split("/")
        below = ("/".join(folders[:depth]) + "/" for depth in range(1, len(folders) + 1))
        if not last or any(f.startswith(".") for f in folders) or not caches.isdisjoint(below):
            continue
        if last.startswith(".") or not is_media(last):
            num_ignored += 1
        else:
            found.append(learn(f"{uri.rstrip('/')}/{name}"))
    return found, num_ignored


def read_remote(uri: str) -> bytes:
    """A whole file. FileNotFoundError. SourceError: it cannot be read."""
    store, path = open_store(url_of(uri))
    data: bytes = _ask(uri, lambda: store.cat_file(path))
    return data


def _is_cache_json(name: str) -> bool:
    return name == "cache.json" or name.endswith("/cache.json")


def _order(name: str) -> list[tuple[int, str]]:
    # As a local folder is walked: the files of a folder before those of the folders in it.
    *folders, last = name.split("/")
    return [*((1, folder) for folder in folders), (0, last)]


def _match(store: Any, path: str, url: str) -> list[Found]:
    from fsspec.utils import glob_translate

    uri = to_public(url)
    # What stands before the first folder with a wildcard is the same in URLs and in paths.
    root, root_url = _fixed(path), _fixed(url)
    if scheme_of(url) in _FLAT:
        listed: dict[str, Any] = _ask(uri, lambda: store.glob(path, detail=True))
        matches = {match: info["type"] == "directory" for match, info in listed.items()}
    else:
        depth = None if "**" in path else path.count("/", len(root)) + 1
        wanted = re.compile(glob_translate(path))
        tree = _tree(store, root, uri=uri, depth=depth)
        matches = {match: is_folder for match, is_folder in tree.items() if wanted.match(match)}
    return [
        Found(learn(root_url + match[len(root) :]), is_folder)
        for match, is_folder in sorted(matches.items())
    ]


def _tree(store: Any, root: str, *, uri: str, depth: int | None = None) -> dict[str, bool]:
    # Path -> whether it is a folder, of all below. fsspec's own walk leaves out what it cannot
    # list, and its on_error is not handed on to the folders below.
    found: dict[str, bool] = {}
    folders = [(root, 1)]
    while folders:
        folder, level = folders.pop()
        listed = _ask(uri, partial(store.ls, folder, detail=True))
        for entry in listed:
            path = str(entry["name"]).rstrip("/")
            if path in found or not path.startswith(root) or path == root.rstrip("/"):
                continue
            found[path] = is_folder = entry["type"] == "directory"
            if is_folder and (depth is None or level < depth):
                folders.append((str(entry["name"]), level + 1))
    return found


def _fixed(pattern: str) -> str:
    first = min((pattern.find(c) for c in "*?[" if c in pattern), default=len(pattern))
    return pattern[: pattern.rfind("/", 0, first) + 1]


def _ask(uri: str, work: Callable[[], T]) -> T:
    # FileNotFoundError is the caller's to understand.
    try:
        return patiently(work)
    except FileNotFoundError:
        raise FileNotFoundError(f"{uri}: no such file or folder") from None
    except OSError as error:
        reason = redact(error.strerror or str(error)) or type(error).__name__
        raise SourceError(
            f"{uri}: cannot be read: {reason}",
            hint="are the credentials there, and is a signed URL still valid?"
            if isinstance(error, PermissionError)
            else "try again later",
        ) from None
