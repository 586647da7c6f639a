"""Owner: a decoder process's end of the conversation with the process that started it.

Runs inside the decoder process only; the other end is `jail.Exchange`.
"""

from __future__ import annotations

import time
from typing import Any

from pipeline import messages
from pipeline.slots import SharedMemory

ALIVE_SECONDS = 1.0
LOOK_SECONDS = 0.05
"""How often a busy process looks whether its work is still wanted."""


class Cancelled(Exception):
    """The owner no longer wants the answer."""


class Owner:
    """The other end of the pipes."""

    def __init__(self, *, in_fd: int, out_fd: int, memory: SharedMemory) -> None:
        self._receiver = messages.Receiver(in_fd)
        self._out_fd = out_fd
        self.memory = memory
        self._said_alive = self._looked = 0.0
        self.free_slots: list[int] = []

    def next_request(self) -> dict[str, Any]:
        """Blocks. messages.PipeClosed: the owner is gone."""
        while True:
            request, _ = self._receiver.receive(timeout_seconds=None)
            if request["kind"] not in ("free", "cancel"):  # of a request that is answered
                self._said_alive = self._looked = time.monotonic()
                return request

    def answer(self, kind: str, payload: Any = (), **fields: Any) -> None:
        messages.send(self._out_fd, {"kind": kind, **fields}, payload)

    def alive(self) -> None:
        """To be called often: says that there is progress. Cancelled."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            while self._receiver.is_ready():
                self._listen()
        if now - self._said_alive > ALIVE_SECONDS:
            self._said_alive = now
            self.answer("alive")

    def take_slot(self) -> int:
        """A slot to write to; blocks until there is one. Cancelled."""
        while not self.free_slots:
            self._listen()
        return self.free_slots.pop()

    def _listen(self) -> None:
        message, _ = self._receiver.receive(timeout_seconds=None)
        if message["kind"] == "cancel":
            raise Cancelled
        self.free_slots.append(message["slot"])
