"""Write samples into a tar: headers and arrays go to the file in one system call, without a copy.

The bytes are a function of the samples only: USTAR, uncompressed, mtime 0, fixed owner. The digest
is taken in a thread while the next sample is made.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import tarfile
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.measuring import Measures
from pipeline.places import Place
from pipeline.storage import storage_errors
from schemas.sample import MemberData, Sample

BLOCK = tarfile.BLOCKSIZE
END_OF_TAR = bytes(2 * BLOCK)
JPEG_QUALITY = 80
_ZEROS = bytes(BLOCK)
_MAX_UNHASHED = 64 << 20  # bytes that the digest may lag behind; also what is kept in memory
_MAX_PIECES = 512  # IOV_MAX is 1024 on Linux


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Where a sample lies in its tar."""

    offset: int
    num_bytes: int
    members: dict[str, tuple[int, int]]
    """Member name without the key -> (offset of its data, bytes)."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A position that a `TarWriter` can go back to."""

    offset: int
    digest: Any


class TarWriter:
    """Writes samples into a new file; a context manager. StorageError from every method."""

    def __init__(
        self, path: Path, *, place: Place | None = None, measures: Measures | None = None
    ) -> None:
        """A new tar at `path`; errors name `place`, such as the cache."""
        self._measures = measures or Measures()
        self._place = place or path
        with storage_errors(self._place):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._offset = 0
        self._digest = hashlib.sha256()
        self._hashing: deque[tuple[Future[None], int]] = deque()
        self._unhashed = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sha256")

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True)
        os.close(self._fd)

    def add(self, sample: Sample) -> Extent:
        """Append a sample. Its arrays may not be changed before `mark` or `finish` returns."""
        pieces: list[MemberData] = []
        members: dict[str, tuple[int, int]] = {}
        position = self._offset
        for name, data in sample.to_members():
            size = sum(len(part) for part in data)
            pieces.append(_member_header(f"{sample.key}.{name}", size))
            pieces += data
            members[name] = (position + BLOCK, size)
            padding = -size % BLOCK
            if padding:
                pieces.append(_ZEROS[:padding])
            position += BLOCK + size + padding
        place = Extent(offset=self._offset, num_bytes=position - self._offset, members=members)
        self._write(pieces)
        return place

    def append(self, samples: MemberData) -> int:
        """Append whole samples as they lie in another tar: the offset of the first one.

        The bytes may not be changed before `mark` or `finish` returns.
        """
        offset = self._offset
        self._write([samples])
        return offset

    def mark(self) -> Mark:
        """The position after the last sample."""
        self._wait()
        return Mark(self._offset, self._digest.copy())

    def go_back(self, mark: Mark) -> None:
        """Forget everything that was added after `mark`."""
        self._wait()
        os.ftruncate(self._fd, mark.offset)
        os.lseek(self._fd, mark.offset, os.SEEK_SET)
        self._offset, self._digest = mark.offset, mark.digest.copy()

    def finish(self) -> tuple[str, int]:
        """End the tar and flush it to disk: (sha256, bytes)."""
        self._write([END_OF_TAR])
        with storage_errors(self._place), self._measures.timed("publish"):
            os.fsync(self._fd)  # meanwhile the last samples are hashed
        self._wait()
        return self._digest.hexdigest(), self._offset

    def _write(self, pieces: Sequence[MemberData]) -> None:
        size = sum(len(piece) for piece in pieces)
        self._hashing.append((self._thread.submit(self._hash, pieces), size))
        self._unhashed += size
        for start in range(0, len(pieces), _MAX_PIECES):
            with storage_errors(self._place):
                self._offset += _write_all(self._fd, pieces[start : start + _MAX_PIECES])
        self._wait(most=_MAX_UNHASHED)

    def _hash(self, pieces: Sequence[MemberData]) -> None:
        with self._measures.timed("hash"):
            for piece in pieces:
                self._digest.update(piece)

    def _wait(self, *, most: int = 0) -> None:
        """Until at most so many bytes are not hashed."""
        if self._unhashed <= most:
            return
        with self._measures.timed("wait_hash"):
            while self._unhashed > most:
                hashing, size = self._hashing.popleft()
                hashing.result()
                self._unhashed -= size


def encode_preview(pictures_THWC: npt.NDArray[np.uint8]) -> bytes:
    """(T, H, W, 3) uint8 -> JPEG of the frames side by side."""
    from PIL import Image

    buffer = io.BytesIO()
    strip = np.concatenate(list(pictures_THWC), axis=1)
    Image.fromarray(strip).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def _write_all(fd: int, pieces: Sequence[MemberData]) -> int:
    total = sum(len(piece) for piece in pieces)
    written = os.writev(fd, pieces)
    if written == total:
        return total
    # Rare: a full disk raises at the next call, a very large sample needs several.
    rest = memoryview(b"".join(pieces))[written:]
    while rest:
        rest = rest[os.write(fd, rest) :]
    return total


def _member_header(name: str, size: int) -> bytes:
    header = bytearray(_blank_header(size))
    encoded = name.encode("ascii")
    if len(encoded) > 100:
        raise ValueError(f"member name {name!r} is longer than 100 characters")
    header[: len(encoded)] = encoded
    checksum = sum(header)
    header[148:156] = b"%06o\0 " % checksum
    return bytes(header)


@functools.lru_cache(maxsize=1024)
def _blank_header(size: int) -> bytes:
    info = tarfile.TarInfo("")
    info.size = size
    info.mode = 0o644
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    header[148:156] = b" " * 8  # the checksum counts its own field as spaces
    return bytes(header)
