"""What a decoder process does for each kind of request. Runs inside the decoder process only."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from pipeline import messages
from pipeline.frames import Tally, decode_frames
from pipeline.opening import open_video
from pipeline.packets import PacketTable, read_packet_facts, read_packet_table
from pipeline.pixels import Converter, Pictures, most_preview_pixels
from pipeline.rereading import PacketReader
from pipeline.sampling import (
    Sampled,
    SampledFrame,
    TimesGoBack,
    Window,
    sample_any_order,
    sample_in_order,
)
from pipeline.scheduling import NotSelectable, Schedule, check_selectable, schedule_runs
from pipeline.selecting import FrameSelector, skips_disposable
from pipeline.slots import PREVIEW, SharedMemory, SlotLayout, write_slot
from schemas.errors import VideoError

ALIVE_SECONDS = 1.0
LOOK_SECONDS = 0.05
"""How often a busy process looks whether its work is still wanted."""
_MAX_TABLES = 2


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


def serve(owner: Owner, request: dict[str, Any]) -> None:
    """Answer one request. messages.PipeClosed: the owner is gone."""
    work: Callable[..., None] = {"probe": _probe, "decode": _decode}[request.pop("kind")]
    try:
        work(owner, **request)
    except messages.PipeClosed:
        raise
    except Cancelled:
        owner.answer("cancelled")
    except VideoError as error:
        owner.answer("reject", reason=error.reason, detail=error.detail)
    except MemoryError:
        owner.answer("reject", reason="out_of_memory", detail="limits.memory_bytes")
    except NotSelectable as error:
        owner.answer("start_again", order="all", why=str(error))
    except TimesGoBack:
        owner.answer("start_again", order="sorted", why="times go back")
    except Exception:  # reported as a bug by the owner, never as a reject
        owner.answer("bug", traceback=traceback.format_exc())


def _probe(owner: Owner, *, path: str, max_pixels: int, max_duration_seconds: float) -> None:
    facts = read_packet_facts(
        path,
        max_pixels=max_pixels,
        max_duration_seconds=max_duration_seconds,
        alive=owner.alive,
    )
    owner.answer("facts", facts=facts)


def slot_layout(sizes: dict[str, Any], *, preview_height: int | None) -> SlotLayout:
    """Of frames at the sizes, stream -> (width, height); both sides compute it."""
    most_bytes = {name: 3 * width * height for name, (width, height) in sizes.items()}
    if preview_height is not None:
        most_bytes[PREVIEW] = 3 * most_preview_pixels(preview_height)
    return SlotLayout.of(most_bytes)
