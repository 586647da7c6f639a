"""One run at a time on a cache, and a clean scratch folder for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.ending import undone_at_end
from pipeline.layout import CacheLayout
from pipeline.leasing import Holder, Lease
from pipeline.places import Place, list_sizes
from pipeline.run_folder import RunFolder
from pipeline.storage import storage_errors
from schemas.errors import CacheHeld, UsageError

OWNER = "owner.json"
"""In the scratch folder of a local cache: who holds it."""

REMOVE_TRIES = 5
"""A thread that is still at work may put a file where one was just deleted."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A cache that this run holds."""

    run_folder: RunFolder
    check: Callable[[], None]
    """CacheError: the lock has been lost, so nothing more may be written."""


@contextlib.contextmanager
def hold_cache(layout: CacheLayout) -> Iterator[Hold]:
    """Hold the cache's folder, made if need be, and give a folder for this run.

    A local lock goes with the process, however it ends; one in an object store expires. CacheHeld:
    another run holds the cache. UsageError: the folder holds something else. StorageError: it
    cannot be written.
    """
    check_folder(layout)
    root = layout.root
    locked = _flock(root, layout.scratch) if isinstance(root, Path) else _lease(root)
    with locked as check:
        # Whatever lies here is of a run that was killed.
        _remove(layout.scratch)
        with undone_at_end(lambda: _remove(layout.scratch)):
            try:
                with storage_errors(root):
                    run_folder = RunFolder.create(layout.scratch, place=str(root))
                    (layout.scratch / OWNER).write_bytes(Holder.this_process().to_json())
                yield Hold(run_folder, check)
            finally:
                _remove(layout.scratch)


def _remove(scratch: Path) -> None:
    for _ in range(REMOVE_TRIES):
        shutil.rmtree(scratch, ignore_errors=True)
        if not scratch.exists():
            return


@contextlib.contextmanager
def _flock(root: Path, scratch: Path) -> Iterator[Callable[[], None]]:
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with storage_errors(root):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CacheHeld(
                    f"{root}: another run is at work on this cache{_owner(scratch)}",
                    hint="wait until it has ended",
                ) from error
        yield lambda: None
    finally:
        os.close(lock)


@contextlib.contextmanager
def _lease(root: Place) -> Iterator[Callable[[], None]]:
    with Lease(root / ".lock", what=str(root)) as lease:
        yield lease.check


def _owner(scratch: Path) -> str:
    with contextlib.suppress(OSError):
        holder = Holder.from_json((scratch / OWNER).read_bytes())
        if holder is not None:
            return f": {holder}"
    return ""


def check_folder(layout: CacheLayout) -> None:
    """UsageError: the place of a cache holds something else. StorageError: it cannot be read."""
    root = layout.root
    with storage_errors(root):
        if isinstance(root, Path):
            if not root.exists():
                return
            if not root.is_dir():
                raise UsageError(
                    f"{root}: is a file; CACHE must be a folder, new or of an earlier run"
                )
            # A run that was killed may have made a folder and not yet its first file.
            names = {entry.name for entry in root.iterdir() if not _is_begun(entry, layout)}
        else:
            names = set(list_sizes(root))
        tables = layout.extensions(layout.plan) + layout.extensions(layout.probes)
    ours = tables or names <= {layout.scratch.name} or layout.info.name in names
    if not ours:
        raise UsageError(
            f"{root}: holds other files and is not a cache",
            hint="name a new folder for the cache",
        )


def _is_begun(entry: Path, layout: CacheLayout) -> bool:
    if entry == layout.look.parent:
        return layout.look.is_dir() and set(entry.iterdir()) == {layout.look}
    return entry in (layout.probes, layout.plan) and entry.is_dir() and not any(entry.iterdir())
