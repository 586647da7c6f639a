"""One run at a time on a cache, and a clean scratch folder for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from pipeline.layout import CacheLayout
from pipeline.run_folder import RunFolder
from pipeline.storage import storage_errors
from schemas.errors import CacheHeld, UsageError


@contextlib.contextmanager
def hold_cache(layout: CacheLayout) -> Iterator[RunFolder]:
    """Hold the cache's folder, made if need be, and give a folder for this run.

    The lock goes with the process, however it ends. CacheHeld: another run holds the cache.
    UsageError: the folder holds something else. StorageError: it cannot be written.
    """
    with storage_errors(layout.root):
        _check_folder(layout)
        layout.root.mkdir(parents=True, exist_ok=True)
        lock = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with storage_errors(layout.root):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CacheHeld(
                    f"{layout.root}: another run is at work on this cache",
                    hint="wait until it has ended",
                ) from error
            # Whatever lies here is of a run that was killed.
            shutil.rmtree(layout.scratch, ignore_errors=True)
            run_folder = RunFolder.create(layout.scratch)
        try:
            yield run_folder
        finally:
            shutil.rmtree(layout.scratch, ignore_errors=True)
    finally:
        os.close(lock)


def _check_folder(layout: CacheLayout) -> None:
    root = layout.root
    if not root.exists():
        return
    if not root.is_dir():
        raise UsageError(f"{root}: is a file; CACHE must be a folder, new or of an earlier run")
    entries = set(root.iterdir())
    tables = layout.extensions(layout.plan) + layout.extensions(layout.probes)
    ours = layout.info.exists() or tables or entries <= {layout.scratch}
    if not ours:
        raise UsageError(
            f"{root}: holds other files and is not a cache",
            hint="name a new folder for the cache",
        )
