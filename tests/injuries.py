"""Faults put into a run from inside its process: ended, or out of disk, at the n-th operation.

Operations are what changes the cache's folder, in the order in which they happen: the same ones in
each run with one worker. What a run tells its owner every half second is not counted.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPERATIONS = ("replace", "fsync", "writev", "unlink", "mkdir", "rmdir", "open")
FILLING = ("fsync", "writev", "mkdir", "open")
"""Those that a full disk refuses; a rename needs no room."""


class Journal:
    """Lines of JSON that several processes add to one file."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, **fields: Any) -> None:
        os.write(self._fd, (json.dumps(fields) + "\n").encode())


class Operations:
    """Calls `strike(number, name, when)` around each operation on the cache."""

    def __init__(self, cache: Path, strike: Callable[[int, str, str], None]) -> None:
        self._cache = f"{cache.absolute()}/"
        self._strike = strike
        self._num = 0
        for name in OPERATIONS:
            setattr(os, name, self._around(name, getattr(os, name)))
        plain = io.open

        def open_file(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if not set(mode) & set("wxa") or not self._counts(file):
                return plain(file, mode, *args, **options)
            number = self._before("open")
            try:
                return plain(file, mode, *args, **options)
            finally:
                self._strike(number, "open", "after")

        io.open = open_file

    def _around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            reads = name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR)
            if reads or not self._counts(args[1] if name == "replace" else args[0]):
                return function(*args, **options)
            number = self._before(name)
            try:
                return function(*args, **options)
            finally:
                self._strike(number, name, "after")

        return call

    def _before(self, name: str) -> int:
        number = self._num
        self._num += 1
        self._strike(number, name, "before")
        return number

    def _counts(self, file: Any) -> bool:
        if isinstance(file, int):
            path = str(Path(f"/proc/self/fd/{file}").readlink())
        else:
            path = str(Path(os.fsdecode(file)).absolute())
        return path.startswith(self._cache) and "/.tmp/run-" not in path


def injure(
    cache: Path,
    journal: Journal,
    *,
    kill_at: int | None = None,
    kill_when: str = "after",
    full_at: int | None = None,
    count: bool = False,
    clock_seconds: float = 0.0,
) -> None:
    """Prepare this process, which is about to run.

    `kill_at` and `full_at` are numbers of operations; from the latter on nothing can be written.
    """
    _count_encodes(journal)
    if clock_seconds:
        now = time.time
        time.time = lambda: now() + clock_seconds
    if kill_at is None and full_at is None and not count:
        return

    def strike(number: int, name: str, when: str) -> None:
        if count and when == "before":
            journal.add(kind="operation", number=number, name=name)
        if number == kill_at and when == kill_when:
            os.killpg(0, signal.SIGKILL)
        if full_at is not None and number >= full_at and when == "before" and name in FILLING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    Operations(cache, strike)


def _count_encodes(journal: Journal) -> None:
    from pipeline import transforms
    from pipeline.encoding import StreamEncoders

    encode, build = StreamEncoders.encode, transforms.build_shard

    def encode_and_tell(self: Any, clips: Any) -> Any:
        journal.add(kind="encode", clips=len(clips))
        return encode(self, clips)

    def build_and_tell(spec: Any, **options: Any) -> Any:
        journal.add(kind="begin", shard=spec.name, clips=spec.num_clips)
        sidecar = build(spec, **options)
        journal.add(kind="end", shard=spec.name, clips=len(sidecar.samples))
        return sidecar

    StreamEncoders.encode = encode_and_tell  # type: ignore[method-assign]
    transforms.build_shard = build_and_tell
