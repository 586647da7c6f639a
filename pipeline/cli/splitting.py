"""Tell SOURCES from the CACHE where a command may go without one."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import PurePath

from pipeline.cli.run import cache_path
from pipeline.layout import CacheLayout
from pipeline.places import is_file, to_place
from pipeline.signing import to_public
from pipeline.source_files import is_remote, to_path
from schemas.errors import StorageError, UsageError


def split_arguments(paths: Sequence[str]) -> tuple[list[str], str | None]:
    """(SOURCES, CACHE), as the help says; no source: what the cache knows.

    UsageError: a last path that is not there but has the name of a video or a list. StorageError:
    it cannot be told what is there.
    """
    *sources, last = paths
    if last and last != "-" and _is_cache(last, is_alone=not sources):
        return sources, cache_path(last)
    return [*sources, last], None


def _is_cache(text: str, *, is_alone: bool) -> bool:
    if text.startswith(("http://", "https://")) or to_public(text) != text:
        return False  # no run can write there
    layout = CacheLayout(to_place(cache_path(text)))
    try:
        if _is_made(layout):
            return True
        if is_alone or glob.has_magic(text):
            return False
        is_there, is_empty = _look(text)
    except ValueError:
        return False  # not a path: whoever reads sources says so
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StorageError(f"{text}: cannot be read: {reason}", hint="who may read it?") from error
    from pipeline.sources import LIST_EXTENSIONS, MEDIA_EXTENSIONS

    ending = PurePath(text).suffix.lower()
    if not is_there and (ending.removeprefix(".") in MEDIA_EXTENSIONS or ending in LIST_EXTENSIONS):
        raise UsageError(
            f"{text}: no such file", hint="a CACHE is a folder, SOURCES come before it"
        )
    return is_empty or not is_there


def _look(text: str) -> tuple[bool, bool]:
    # Whether there is something, and whether it is a folder with nothing in it that shows.
    if is_remote(text):
        from pipeline.listing import look_up

        return bool(look_up(text)), False
    path = to_path(text).expanduser()
    shown = path.is_dir() and any(not one.name.startswith(".") for one in path.iterdir())
    return path.exists(), path.is_dir() and not shown


def _is_made(layout: CacheLayout) -> bool:
    if is_file(layout.info):
        return True
    return bool(layout.extensions(layout.plan) or layout.extensions(layout.probes))
