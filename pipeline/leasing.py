"""Lease: a lock in an object store, with an owner and an expiry.

A lock is the newest of numbered files, each written by one owner only. To take it is to create the
next number, in which one of many succeeds; what another run has written is never overwritten.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace
from types import TracebackType

from pipeline.ending import undone_at_end
from pipeline.patience import patiently
from pipeline.places import Place, create, list_sizes, read_bytes
from pipeline.storage import delete, storage_errors
from schemas.errors import CacheError, CacheHeld, UsageError

LEASE_SECONDS = 180.0
"""How long a run that died holds the lock. Clocks of machines may differ by a part of it."""
RENEW_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What a lock says of who holds it."""

    host: str
    pid: int
    since: float
    expires: float
    """Both in seconds since 1970."""

    @classmethod
    def this_process(cls) -> Holder:
        now = time.time()
        return cls(
            host=socket.gethostname(), pid=os.getpid(), since=now, expires=now + LEASE_SECONDS
        )

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, since {since}"

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Holder | None:
        """None: not what `to_json` wrote."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError):
            return None


class Lease:
    """Holds a lock in `folder` and renews it in a thread; a context manager."""

    def __init__(self, folder: Place, *, what: str) -> None:
        """`what` is held, as errors name it."""
        self._folder = folder
        self._what = what
        self._holder = Holder.this_process()
        self._number = -1
        self._renewed = 0.0
        """By a clock that nobody sets."""
        self._lost = ""
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._undoing = contextlib.ExitStack()

    def __enter__(self) -> Lease:
        """CacheHeld: another run holds it. StorageError."""
        with storage_errors(self._folder):
            last = self._newest()
            try:
                held_by = Holder.from_json(read_bytes(self._path(last))) if last >= 0 else None
            except FileNotFoundError:  # deleted by a run that has just taken the next one
                raise self._refusal(None) from None
            if held_by is not None and held_by.expires > time.time():
                raise self._refusal(held_by, path=self._path(last))
            self._number = last + 1
            self._holder = Holder.this_process()
            self._renewed = time.monotonic()
            if not create(self._path(self._number), self._holder.to_json()):
                raise self._refusal(None)
            for number in range(last, max(-1, last - 8), -1):
                delete(self._path(number))
        self._renewing.start()
        self._undoing.enter_context(undone_at_end(self._release))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undoing.close()
        self._release()

    def _release(self) -> None:
        self._ended.set()
        self._renewing.join()
        if not self._lost:
            with contextlib.suppress(OSError, UsageError):
                self._write(replace(self._holder, expires=0.0))

    def check(self) -> None:
        """CacheError: the lock is another run's by now. StorageError."""
        if not self._lost:
            with storage_errors(self._folder):  # the thread that renews may have slept for hours
                self._look()
        if self._lost:
            raise CacheError(
                f"{self._what}: {self._lost}", hint="run again; what is committed is kept"
            )

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                self._look()
                if self._lost:
                    return
                self._holder = replace(self._holder, expires=time.time() + LEASE_SECONDS)
                self._write(self._holder)
                self._renewed = time.monotonic()
            except OSError as error:
                if time.monotonic() - self._renewed > LEASE_SECONDS:
                    self._lost = f"the lock could not be renewed: {error}"
                    return

    def _look(self) -> None:
        if self._newest() > self._number:
            self._lost = "another run has taken over the lock"

    def _newest(self) -> int:
        numbers = [name.removesuffix(".json") for name in list_sizes(self._folder)]
        return max((int(number) for number in numbers if number.isdecimal()), default=-1)

    def _path(self, number: int) -> Place:
        return self._folder / f"{number:09d}.json"

    def _write(self, holder: Holder) -> None:
        path = self._path(self._number)
        patiently(lambda: path.write_bytes(holder.to_json()))

    def _refusal(self, holder: Holder | None, *, path: Place | None = None) -> CacheHeld:
        who = f": {holder}" if holder is not None else ""
        hint = "wait until it has ended"
        if holder is not None:
            left = holder.expires - time.time()
            hint += f"; if it was killed, its lock ends in {left:.0f} s"
            if left > LEASE_SECONDS + 1:
                hint += f" by this machine's clock, which differs from the other's: delete {path}"
        return CacheHeld(f"{self._what}: another run is at work on this cache{who}", hint=hint)
