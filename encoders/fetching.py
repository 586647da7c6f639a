"""Fetch a file of weights from a URL, once a machine for as long as it stays the same."""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.errors import WeightsError


def is_url(where: str) -> bool:
    """Whether weights are named by a URL of an object store and not by a path."""
    return "://" in where and not where.startswith("file://")


def fetch_weights(url: str, *, encoder: str) -> Path:
    """A local copy of the file, under the user's cache folder. WeightsError.

    A copy is of one state of the file: of its ETag, or its time and size. Processes that fetch at
    once may each do so; the copy appears whole. A URL with a query is refused: where weights lie is
    written into plans, and a query may hold a secret.
    """
    if "?" in url:
        raise WeightsError(
            f"weights of {encoder}: {url.partition('?')[0]}?...: a URL with a query",
            hint="name the object by its own URL, such as gs://bucket/model.safetensors",
        )
    import fsspec

    with _said(url, encoder):
        fs, path = fsspec.url_to_fs(url)
        if fs.isdir(path):
            raise WeightsError(
                f"weights of {encoder}: {url}: is a folder",
                hint="name the file itself",
            )
        state = hashlib.sha256(f"{url} {_state_of(fs.info(path))}".encode()).hexdigest()
        copy = _folder() / state[:16] / url.rpartition("/")[2]
        if copy.is_file():
            return copy
        copy.parent.mkdir(parents=True, exist_ok=True)
        temporary = copy.with_name(f".{copy.name}.{uuid.uuid4().hex}")
        try:
            fs.get_file(path, str(temporary))
            temporary.replace(copy)
        finally:
            temporary.unlink(missing_ok=True)
    return copy


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "reelcache" / "weights"


def _state_of(facts: dict[str, Any]) -> str:
    for name in ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created"):
        if facts.get(name):
            return f"{facts[name]} {facts.get('size')}"
    return str(facts.get("size"))


@contextlib.contextmanager
def _said(url: str, encoder: str) -> Iterator[None]:
    try:
        yield
    except WeightsError:
        raise
    except FileNotFoundError as error:
        raise WeightsError(f"weights of {encoder}: no file {url}") from error
    except Exception as error:  # of many kinds, from several libraries
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise WeightsError(
            f"weights of {encoder}: {url}: cannot be read: {why}",
            hint="see that this machine may read it, and that its file system is installed:"
            " pip install 'reelcache[gcp]' or 'reelcache[s3]'",
        ) from error
