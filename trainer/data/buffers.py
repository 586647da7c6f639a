"""Buffers: memory of batches that is used again, so that no page is allocated or zeroed anew."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

K = TypeVar("K", bound=Hashable)

ALIGNMENT = 64
"""Bytes: a line of a processor's cache, and what vector instructions like best."""


class Buffers:
    """Memory for all arrays of one batch; grows to the largest batch that was ever made in it."""

    def __init__(self, *, pin_memory: bool = False) -> None:
        """`pin_memory`: page-locked, from where a GPU copies while the processor goes on."""
        self._pin_memory = pin_memory
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._taken, self._most = 0, 0

    @property
    def num_bytes(self) -> int:
        """That it holds."""
        return len(self._block)

    def take(self, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
        """A tensor of its own until `clear`, with whatever values; it begins at a multiple of 64.

        It aliases the buffer, and keeps what it aliases alive.
        """
        self._reserve(num_bytes := _aligned_size(shape, dtype))
        start = self._used
        self._used += num_bytes
        self._taken += num_bytes
        stop = start + math.prod(shape) * dtype.itemsize
        return self._block[start:stop].view(dtype).view(shape)

    def take_together(
        self, wanted: Mapping[K, tuple[tuple[int, ...], torch.dtype]]
    ) -> tuple[memoryview, dict[K, Tensor]]:
        """Tensors of these shapes and dtypes as of `take`, and the memory that they all lie in.

        `place_of` says where each begins there.
        """
        self._reserve(sum(_aligned_size(*one) for one in wanted.values()))
        tensors = {key: self.take(shape, dtype=dtype) for key, (shape, dtype) in wanted.items()}
        return memoryview(self._block.numpy()), tensors  # type: ignore[arg-type]

    def clear(self) -> None:
        """Begin anew: what is taken from now on overwrites what was taken before."""
        self._most = max(self._most, self._taken)
        if self._taken > self._used:  # in several blocks: the next time in one
            self._block = self._block[:0]
        self._used = self._taken = 0

    def _reserve(self, num_bytes: int) -> None:
        if self._used + num_bytes > len(self._block):
            size = max(num_bytes, self._most - self._taken)
            self._block = _allocate(size, pin_memory=self._pin_memory)
            self._used = 0


class BufferRing:
    """A fixed number of buffers that threads share."""

    def __init__(self, num_buffers: int, *, pin_memory: bool = False) -> None:
        """`pin_memory` as of Buffers."""
        self._free = [Buffers(pin_memory=pin_memory) for _ in range(num_buffers)]
        self._changed = threading.Condition()
        self._is_closed = False

    def acquire(self) -> Buffers | None:
        """A buffer that is free and clear, as soon as there is one; None once it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._is_closed)
            if self._is_closed:
                return None
            buffers = self._free.pop()  # the last one given back: caches may still hold it
        buffers.clear()
        return buffers

    def release(self, buffers: Buffers) -> None:
        """Give a buffer back; nobody may read or copy from it any more."""
        with self._changed:
            self._free.append(buffers)
            self._changed.notify()

    def close(self) -> None:
        """Nobody gets a buffer any more, nor waits for one."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def place_of(tensor: Tensor) -> int:
    """Where a tensor begins in the memory of `take_together`, in bytes."""
    return int(tensor.storage_offset()) * tensor.itemsize


def _allocate(num_bytes: int, *, pin_memory: bool) -> Tensor:
    if pin_memory:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    # By numpy, which asks the system for huge pages: copies into them are faster.
    array = np.empty(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -array.ctypes.data % ALIGNMENT
    return torch.from_numpy(array[start : start + num_bytes])


def aligned(num_bytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _aligned_size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return aligned(math.prod(shape) * dtype.itemsize)
