"""Buffers and the ring of them."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import buffers as module
from trainer.data.buffers import BufferRing, Buffers, place_of


def fill(buffers: Buffers, sizes: list[int]) -> list[torch.Tensor]:
    buffers.clear()
    return [buffers.take((size,), dtype=torch.float16).fill_(n) for n, size in enumerate(sizes)]


@given(batches=st.lists(st.lists(st.integers(0, 500), max_size=5), max_size=6))
def test_what_is_taken_does_not_overlap_and_is_aligned(batches: list[list[int]]) -> None:
    buffers = Buffers()
    for sizes in batches:
        taken = fill(buffers, sizes)
        for number, (tensor, size) in enumerate(zip(taken, sizes, strict=True)):
            assert tensor.shape == (size,)
            assert tensor.data_ptr() % 64 == 0
            assert (tensor == number).all()


@given(sizes=st.lists(st.integers(1, 500), min_size=1, max_size=5), less=st.integers(1, 5))
def test_memory_is_not_allocated_again_once_it_has_grown(sizes: list[int], less: int) -> None:
    buffers = Buffers()
    fill(buffers, sizes)
    first = [tensor.data_ptr() for tensor in fill(buffers, sizes)]
    size = buffers.num_bytes
    fill(buffers, sizes[:less])
    assert [tensor.data_ptr() for tensor in fill(buffers, sizes)] == first
    assert buffers.num_bytes == size


def test_what_is_taken_together_lies_in_one_memory() -> None:
    buffers = Buffers()
    wanted = {"a": ((3,), torch.int8), "b": ((2, 2), torch.float32), "c": ((0, 4), torch.bool)}
    for _ in range(2):
        buffers.take((5,), dtype=torch.uint8)
        memory, tensors = buffers.take_together(wanted)
        for name, (shape, dtype) in wanted.items():
            assert (tensors[name].shape, tensors[name].dtype) == (shape, dtype)
        tensors["b"].copy_(torch.arange(4.0).view(2, 2))
        start = place_of(tensors["b"])
        assert memory[start : start + 16].cast("f").tolist() == [0, 1, 2, 3]
        memory[place_of(tensors["a"])] = 7
        assert tensors["a"][0] == 7
        buffers.clear()


def test_what_was_taken_outlives_a_buffer_that_grows() -> None:
    buffers = Buffers()
    (old,) = fill(buffers, [10])
    buffers.take((10_000,), dtype=torch.uint8).fill_(255)
    assert (old == 0).all()


def test_memory_is_pinned_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    empty = torch.empty

    def spy(*shape: int, pin_memory: bool = False, **options: object) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*shape, **options)

    monkeypatch.setattr(module.torch, "empty", spy)
    for pin_memory in (True, False):
        ring = BufferRing(1, pin_memory=pin_memory)
        asked.clear()
        ring.acquire().take((3,), dtype=torch.int8)
        assert any(asked) == pin_memory


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_memory_is_pinned() -> None:
    buffers = Buffers(pin_memory=True)
    _, tensors = buffers.take_together({"a": ((8,), torch.int8), "b": ((8,), torch.float16)})
    assert all(tensor.is_pinned() for tensor in tensors.values())


class TestRing:
    def test_a_buffer_is_waited_for(self) -> None:
        ring, got = BufferRing(2), []
        first, second = ring.acquire(), ring.acquire()
        assert first is not second
        thread = threading.Thread(target=lambda: got.append(ring.acquire()))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        ring.release(second)
        thread.join(5)
        assert got == [second]

    def test_a_buffer_comes_clear(self) -> None:
        ring = BufferRing(1)
        buffers = ring.acquire()
        first = buffers.take((100,), dtype=torch.int8).data_ptr()
        ring.release(buffers)
        assert ring.acquire().take((100,), dtype=torch.int8).data_ptr() == first

    def test_nobody_waits_once_it_is_closed(self) -> None:
        ring, got = BufferRing(1), []
        ring.acquire()
        threads = [threading.Thread(target=lambda: got.append(ring.acquire())) for _ in range(3)]
        for thread in threads:
            thread.start()
        ring.close()
        for thread in threads:
            thread.join(5)
        assert got == [None] * 3
        assert ring.acquire() is None
