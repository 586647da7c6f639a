"""Fetcher: the files of pieces on this machine; local ones where they lie, remote ones as copies.

Copies are made ahead in threads, in the order of the pieces, and deleted when no piece needs them.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

from pipeline.places import make_scratch
from pipeline.source_files import content_sha256, fetch, is_remote, size_and_time, to_path
from pipeline.storage import storage_errors
from schemas.errors import VideoError
from schemas.plan import Piece

FETCH_BYTES = 8_000_000_000
"""Fetched ahead and kept on disk, at most, if the run says nothing else."""
NUM_FETCHERS = 4
"""Files that are fetched at once."""
CLOSE_SECONDS = 5.0
_Key = tuple[str, str]


class _Closed(Exception):
    """Nobody wants the file any more."""


@dataclass(slots=True, eq=False)
class _Copy:
    """A remote file and its copy."""

    piece: Piece
    """The first of those that need it."""
    path: Path
    num_holders: int = 0
    state: Literal["waiting", "fetching", "ready", "failed"] = "waiting"
    error: BaseException | None = None


class Fetcher:
    """Gives each piece a local file; a context manager. Threads may share it."""

    def __init__(
        self,
        pieces: Sequence[Piece] = (),
        *,
        scratch: Path | None = None,
        most_bytes: int = FETCH_BYTES,
    ) -> None:
        """`pieces` are needed in this order, each until it is released.

        Copies lie in a folder of their own under `scratch`. What is fetched ahead and what is kept
        take at most `most_bytes`; a file that is needed at once is fetched whatever its size.
        """
        self._scratch = scratch
        self._most_bytes = most_bytes
        self._folder: Path | None = None
        self._copies: dict[_Key, _Copy] = {}
        self._needed: list[_Copy] = []
        self._changed = threading.Condition()
        self._closing = False
        self._threads: list[threading.Thread] = []
        for piece in pieces:
            self.hold(piece)

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete all copies; what is being fetched is given up."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def is_ready(self, piece: Piece) -> bool:
        """Whether `path` answers at once."""
        copy = self._copies.get(_key(piece))
        return copy is None or copy.state in ("ready", "failed")

    def path(self, piece: Piece) -> str:
        """Where the file of a piece lies. It waits for a remote one.

        VideoError: not_found, unreadable, source_changed. StorageError: the disk is full.
        """
        if not is_remote(piece.uri):
            return _checked(piece)
        with self._changed:
            copy = self._copies.get(_key(piece)) or self._hold(piece)
            self._needed.append(copy)
            self._changed.notify_all()
            self._changed.wait_for(lambda: copy.state in ("ready", "failed") or self._closing)
            self._needed.remove(copy)
            if copy.error is not None:
                raise copy.error
            if self._closing:
                raise VideoError("unreadable", "given up")
            return str(copy.path)

    def hold(self, piece: Piece) -> None:
        """Keep the file until it is released once more."""
        if is_remote(piece.uri):
            with self._changed:
                self._hold(piece)

    def release(self, piece: Piece) -> None:
        """A piece, or who held its file, is done with it."""
        with self._changed:
            copy = self._copies.get(_key(piece))
            if copy is None:
                return
            copy.num_holders -= 1
            if copy.num_holders <= 0:
                del self._copies[_key(piece)]
                if copy.state != "fetching":  # else the thread sees to it
                    copy.path.unlink(missing_ok=True)
                self._changed.notify_all()

    def _hold(self, piece: Piece) -> _Copy:
        copy = self._copies.get(_key(piece))
        if copy is None:
            path = self._own_folder() / f"{uuid.uuid4().hex}{_ending(piece.uri)}"
            copy = self._copies[_key(piece)] = _Copy(piece, path)
            self._add_thread()
        copy.num_holders += 1
        self._changed.notify_all()
        return copy

    def _own_folder(self) -> Path:
        if self._folder is None:
            where = self._scratch or Path(tempfile.gettempdir())
            with storage_errors(where):
                make_scratch(where)
                self._folder = Path(tempfile.mkdtemp(prefix="fetched-", dir=where))
        return self._folder

    def _add_thread(self) -> None:
        if len(self._threads) < NUM_FETCHERS:
            thread = threading.Thread(target=self._work, name="fetch", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _next(self) -> _Copy | None:
        for copy in self._needed:
            if copy.state == "waiting":
                return copy
        kept = [c for c in self._copies.values() if c.state in ("fetching", "ready")]
        num_bytes = sum(copy.piece.size_bytes for copy in kept)
        for copy in self._copies.values():
            if copy.state == "waiting":
                fits = num_bytes + copy.piece.size_bytes <= self._most_bytes
                return copy if fits or not kept else None
        return None

    def _work(self) -> None:
        # In a thread. Whatever goes wrong comes out where the file is asked for.
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._next() is not None)
                copy = None if self._closing else self._next()
                if copy is None:
                    return
                copy.state = "fetching"
            error: BaseException | None = None
            try:
                self._fetch(copy)
            except BaseException as caught:
                error = caught
            with self._changed:
                copy.error = error
                copy.state = "ready" if error is None else "failed"
                if error is not None or self._copies.get(_key(copy.piece)) is not copy:
                    copy.path.unlink(missing_ok=True)
                self._changed.notify_all()

    def _fetch(self, copy: _Copy) -> None:
        def check() -> None:
            if self._closing or copy.num_holders <= 0:
                raise _Closed

        piece = copy.piece
        fetch(piece.uri, copy.path, num_bytes=piece.size_bytes, check=check)
        _compare(piece, content_sha256(str(copy.path)))


@contextlib.contextmanager
def local_file(uri: str, *, num_bytes: int, scratch: Path | None) -> Iterator[Path]:
    """A source's file, or a copy of a remote one that is gone afterwards.

    VideoError: not_found, unreadable, source_changed. StorageError: the disk is full.
    """
    if not is_remote(uri):
        yield to_path(uri)
        return
    folder = scratch or Path(tempfile.gettempdir())
    with storage_errors(folder):
        make_scratch(folder)
        own = Path(tempfile.mkdtemp(prefix="fetched-", dir=folder))
    try:
        copy = own / f"video{_ending(uri)}"
        fetch(uri, copy, num_bytes=num_bytes)
        yield copy
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _ending(uri: str) -> str:
    # Some decoders look at it.
    ending = PurePath(uri.partition("?~")[0]).suffix
    return ending if re.fullmatch(r"\.[A-Za-z0-9]{1,8}", ending) else ""


def _key(piece: Piece) -> _Key:
    return piece.uri, piece.content_sha256


def _checked(piece: Piece) -> str:
    if size_and_time(piece.uri) != (piece.size_bytes, piece.mtime_ns):
        _compare(piece, content_sha256(piece.uri))
    return str(to_path(piece.uri))


def _compare(piece: Piece, found: str) -> None:
    if piece.content_sha256 != found:
        detail = f"planned {piece.content_sha256[:16]}, now {found[:16]}"
        raise VideoError("source_changed", detail)
