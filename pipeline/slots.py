"""Shared memory between a decoder process and its owner: slots of one sampled frame each.

The memory has no name (memfd), so that a kill at any moment leaves nothing behind. The decoder
process fills a slot and says so; the owner copies it out and hands the slot back. When all slots
are full the decoder process waits: that is the bound on what is decoded ahead.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MEMORY_BYTES = 64 * 1024 * 1024
MIN_SLOTS = 4
MAX_SLOTS = 256
PREVIEW = ""
"""Name of the preview among the pictures of a frame."""

FrameArrays = dict[str, npt.NDArray[np.uint8]]
"""Stream, or PREVIEW -> (H, W, 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLayout:
    """Where the pictures of a frame lie in a slot."""

    offsets: dict[str, int]
    slot_bytes: int

    @classmethod
    def of(cls, most_bytes: Mapping[str, int]) -> SlotLayout:
        """`most_bytes` is picture -> the most bytes that it can have."""
        offsets: dict[str, int] = {}
        end = 0
        for name, size in most_bytes.items():
            offsets[name] = end
            end += -(-size // 64) * 64
        return cls(offsets=offsets, slot_bytes=max(end, 64))

    @property
    def num_slots(self) -> int:
        return min(max(MEMORY_BYTES // self.slot_bytes, MIN_SLOTS), MAX_SLOTS)

    @property
    def num_bytes(self) -> int:
        return self.num_slots * self.slot_bytes


class SharedMemory:
    """An anonymous file that two processes map."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None

    @classmethod
    def make(cls) -> SharedMemory:
        """New and empty; the owner's side."""
        if not hasattr(os, "memfd_create"):
            with tempfile.TemporaryFile() as file:
                return cls(os.dup(file.fileno()))
        fd = os.memfd_create("reelcache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # The other side must not be able to take memory away under us, nor to forbid us to add.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return cls(fd)

    def grow(self, num_bytes: int) -> None:
        """Make it at least so large; the owner's side."""
        if os.fstat(self.fd).st_size < num_bytes:
            os.ftruncate(self.fd, num_bytes)

    def view(self, offset: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """uint8 of the shape, in the shared memory. ValueError: outside of it."""
        size = math.prod(shape)
        if self._map is None or len(self._map) < offset + size:
            self._map = mmap.mmap(self.fd, 0)
        return np.frombuffer(self._map, np.uint8, count=size, offset=offset).reshape(shape)

    def close(self) -> None:
        """Closing twice is fine; views stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self._map is not None:
            with contextlib.suppress(BufferError):  # a view is still in use; it keeps the memory
                self._map.close()
            self._map = None


def write_slot(
    memory: SharedMemory, layout: SlotLayout, slot: int, pictures: FrameArrays
) -> dict[str, list[int]]:
    """Copy pictures into a slot; returns their shapes, JSON-ready."""
    for name, picture in pictures.items():
        offset = slot * layout.slot_bytes + layout.offsets[name]
        memory.view(offset, picture.shape)[...] = picture
    return {name: list(picture.shape) for name, picture in pictures.items()}


def read_slot(
    memory: SharedMemory, layout: SlotLayout, slot: int, shapes: Mapping[str, Any]
) -> FrameArrays:
    """Copies of the pictures in a slot. ValueError: shapes that do not fit."""
    if not 0 <= slot < layout.num_slots:
        raise ValueError(f"{slot = } of {layout.num_slots}")
    limits = [*sorted(layout.offsets.values()), layout.slot_bytes]
    pictures: FrameArrays = {}
    for name, shape in shapes.items():
        start = layout.offsets[name]
        room = limits[limits.index(start) + 1] - start
        if len(shape) != 3 or min(shape) < 1 or math.prod(shape) > room:
            raise ValueError(f"{name}: {shape = } does not fit into {room} bytes")
        offset = slot * layout.slot_bytes + start
        pictures[name] = memory.view(offset, tuple(shape)).copy()
    return pictures
