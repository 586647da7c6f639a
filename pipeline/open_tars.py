"""OpenTars: the tars of a cache, each opened when it is first read from."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.layout import CacheLayout
from pipeline.places import Place, read_range
from schemas.errors import CacheDamaged

MAX_OPEN_TARS = 64
MAX_VIEWS = 1024
"""That one `read_into` fills; IOV_MAX of Linux."""


class OpenTars:
    """The tars of a cache; those that were not read from for longest are closed.

    Threads may share it, and other processes may be sent it: they open the tars anew.
    """

    def __init__(self, layout: CacheLayout, *, hint: str) -> None:
        """`hint` is what its errors say."""
        self._layout, self._hint = layout, hint
        self._tars: OrderedDict[str, _Tar] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._tars)

    def read_into(self, shard: str, views: Sequence[memoryview], *, offset: int) -> int:
        """Fill bytes of memory one after another from `offset` of a tar on: how many bytes came.

        Fewer than there is room for: the tar ends there. At most MAX_VIEWS views. CacheDamaged: it
        cannot be read.
        """
        try:
            tar = self._open(shard)  # held, so that no other thread's eviction closes it
            return tar.read_into(views, offset=offset)
        except OSError as error:
            raise CacheDamaged(
                f"{self._layout.tar(shard)}: cannot be read: {error.strerror or error}",
                hint=self._hint,
            ) from error

    def close(self) -> None:
        """Close them; reading again opens them again."""
        with self._lock:
            self._tars.clear()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tars": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_lock": threading.Lock()})

    def _open(self, shard: str) -> _Tar:
        with self._lock:
            if shard in self._tars:
                self._tars.move_to_end(shard)
                return self._tars[shard]
            tar = self._tars[shard] = _Tar(self._layout.tar(shard))
            if len(self._tars) > MAX_OPEN_TARS:
                self._tars.popitem(last=False)
            return tar


class _Tar:
    """A tar to read from; a local one is open, and closed when nobody reads from it any more."""

    def __init__(self, path: Place) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if isinstance(path, Path) else -1

    def read_into(self, views: Sequence[memoryview], *, offset: int) -> int:
        """As of `OpenTars.read_into`. OSError."""
        if self._fd < 0:
            return self._fetch_into(views, offset=offset)
        wanted = sum(map(len, views))  # they are of bytes
        done = os.preadv(self._fd, views, offset)
        while done < wanted:  # the end of the tar, or more than one call reads: 2 GiB
            count = os.preadv(self._fd, _after(views, done), offset + done)
            if count == 0:
                break
            done += count
        return done

    def _fetch_into(self, views: Sequence[memoryview], *, offset: int) -> int:
        if len(views) == 1:
            return read_range(self._path, views[0], offset=offset)
        whole = memoryview(bytearray(sum(view.nbytes for view in views)))
        count, start = read_range(self._path, whole, offset=offset), 0
        for view in views:
            view[:] = whole[start : start + view.nbytes]
            start += view.nbytes
        return count

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._fd)


def _after(views: Sequence[memoryview], num_bytes: int) -> list[memoryview]:
    rest = []
    for view in views:
        if num_bytes < view.nbytes:
            rest.append(view[num_bytes:])
        num_bytes = max(0, num_bytes - view.nbytes)
    return rest
