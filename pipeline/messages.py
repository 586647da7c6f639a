"""How a decoder process and its owner talk: a JSON header and raw bytes, over pipes.

Plain JSON, since the process that reads hostile video must not be able to hand over a pickle.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Sequence
from typing import Any

HEADER = struct.Struct("<IQ")
"""Bytes of JSON, bytes of payload."""
MAX_JSON_BYTES = 4 * 1024 * 1024
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024


class PipeClosed(Exception):
    """The other side is gone."""


class WaitedTooLong(Exception):
    """No byte came within the time limit."""


class Damaged(Exception):
    """What came is not a message."""


def send(
    fd: int,
    message: dict[str, Any],
    payload: Sequence[bytes | memoryview] = (),
    *,
    timeout_seconds: float | None = None,
) -> None:
    """Write one message to a pipe. PipeClosed, or WaitedTooLong for the other side to read."""
    text = json.dumps(message).encode()
    size = sum(memoryview(part).nbytes for part in payload)
    parts = [memoryview(HEADER.pack(len(text), size) + text)]
    parts += [memoryview(part).cast("B") for part in payload]
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    timeout_ms = None if timeout_seconds is None else timeout_seconds * 1000
    try:
        for part in parts:
            while part.nbytes:
                if not poll.poll(timeout_ms):
                    raise WaitedTooLong
                # So much never blocks once there is room.
                part = part[os.write(fd, part[: select.PIPE_BUF]) :]
    except BrokenPipeError as error:
        raise PipeClosed from error


class Receiver:
    """Reads messages from a pipe and counts the seconds spent on it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN | select.POLLHUP)
        self.waited_seconds = 0.0

    def is_ready(self) -> bool:
        """Whether a message has begun to come."""
        return bool(self._poll.poll(0))

    def receive(self, *, timeout_seconds: float | None) -> tuple[dict[str, Any], bytearray]:
        """(message, payload). PipeClosed, Damaged, or WaitedTooLong for the whole message."""
        began = time.monotonic()
        try:
            return self._receive(None if timeout_seconds is None else began + timeout_seconds)
        finally:
            # Reading too, or a flood of messages would take no time at all.
            self.waited_seconds += time.monotonic() - began

    def _receive(self, end: float | None) -> tuple[dict[str, Any], bytearray]:
        text_bytes, payload_bytes = HEADER.unpack(self._read(HEADER.size, end))
        if text_bytes > MAX_JSON_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
            raise Damaged(f"a message claims {text_bytes} + {payload_bytes} bytes")
        text = self._read(text_bytes, end)
        payload = self._read(payload_bytes, end)
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Damaged("a message is not JSON") from error
        if not isinstance(message, dict):
            raise Damaged("a message is not an object")
        return message, payload

    def _read(self, size: int, end: float | None) -> bytearray:
        # `end` is a reading of the clock.
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view.nbytes:
            timeout_ms = None if end is None else max(0.0, end - time.monotonic()) * 1000
            if not self._poll.poll(timeout_ms):
                raise WaitedTooLong
            count = os.readv(self._fd, [view])
            if count == 0:
                raise PipeClosed
            view = view[count:]
        return buffer
