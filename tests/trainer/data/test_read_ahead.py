"""read_ahead: order, bounds, errors and endings, whatever the pace of threads and caller."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.buffers import Buffers
from trainer.data.read_ahead import read_ahead

THREADS = pytest.mark.parametrize("num_threads", [0, 1, 2, 5])


def reading() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("read-ahead")]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    assert not reading()
    yield
    assert not reading()


def tensor_of(job: int, buffers: Buffers) -> torch.Tensor:
    return buffers.take((4,), dtype=torch.int64).fill_(job)


@THREADS
@pytest.mark.parametrize("depth", [1, 2, 7])
def test_results_come_in_the_order_of_the_jobs(num_threads: int, depth: int) -> None:
    seen = []
    with read_ahead(range(50), tensor_of, num_threads=num_threads, depth=depth) as results:
        for result in results:
            with result as tensor:
                seen.append(tensor.tolist())
    assert seen == [[job] * 4 for job in range(50)]


@THREADS
def test_no_jobs_are_no_results(num_threads: int) -> None:
    results = read_ahead([], tensor_of, num_threads=num_threads, depth=2)
    assert list(results) == []
    assert list(results) == [], "it stays at its end"
    results.close()


@settings(max_examples=40)
@given(
    num_threads=st.integers(0, 4),
    depth=st.integers(1, 5),
    held=st.integers(0, 4),
    paces=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12),
)
def test_any_pace_of_threads_and_caller(
    num_threads: int, depth: int, held: int, paces: list[tuple[int, int]]
) -> None:
    held = min(held, depth - 1)
    alive, most, lock = 0, 0, threading.Lock()

    def make(job: int, buffers: Buffers) -> torch.Tensor:
        nonlocal alive, most
        with lock:
            alive += 1
            most = max(most, alive)
        time.sleep(paces[job][0] / 2000)
        return tensor_of(job, buffers)

    kept = []

    def release_first() -> None:
        nonlocal alive
        job, result = kept.pop(0)
        assert result.value.tolist() == [job] * 4, "nobody wrote into what is held"
        with lock:
            alive -= 1
        result.release()

    with read_ahead(range(len(paces)), make, num_threads=num_threads, depth=depth) as results:
        for job, result in enumerate(results):
            kept.append((job, result))
            time.sleep(paces[job][1] / 2000)
            if len(kept) > held:
                release_first()
    assert job == len(paces) - 1 if paces else not kept
    while kept:
        release_first()
    assert most <= depth


@THREADS
def test_an_error_comes_at_its_place_and_ends_it(num_threads: int) -> None:
    def make(job: int, buffers: Buffers) -> int:
        if job == 3:
            raise KeyError("three")
        time.sleep(0.002 * (job % 2))
        return job

    seen = []
    results = read_ahead(itertools.count(), make, num_threads=num_threads, depth=4)
    with pytest.raises(KeyError, match="three"):
        for result in results:
            seen.append(result.value)
            result.release()
    assert seen == [0, 1, 2]
    assert not reading()
    assert list(results) == []


@THREADS
def test_an_error_of_the_jobs_comes_at_its_place(num_threads: int) -> None:
    def jobs() -> Iterator[int]:
        yield from range(2)
        raise ValueError("no more")

    seen = []
    with (
        pytest.raises(ValueError, match="no more"),
        read_ahead(jobs(), tensor_of, num_threads=num_threads, depth=3) as results,
    ):
        for result in results:
            seen.append(result.value[0].item())
            result.release()
    assert seen == [0, 1]


@THREADS
@pytest.mark.parametrize("num_taken", [0, 1, 3])
def test_closing_early_leaves_no_thread(num_threads: int, num_taken: int) -> None:
    results = read_ahead(itertools.count(), tensor_of, num_threads=num_threads, depth=4)
    taken = [next(results) for _ in range(num_taken)]
    results.close()
    results.close()
    assert not reading()
    assert [result.value[0].item() for result in taken] == list(range(num_taken))
    assert next(results, None) is None
    for result in taken:
        result.release()


def test_closing_waits_for_one_result_at_most() -> None:
    started = threading.Event()

    def make(job: int, buffers: Buffers) -> int:
        started.set()
        time.sleep(0.05)
        return job

    results = read_ahead(itertools.count(), make, num_threads=2, depth=10)
    started.wait(5)
    before = time.monotonic()
    results.close()
    assert time.monotonic() - before < 0.5


def test_threads_work_ahead_and_no_further_than_the_depth() -> None:
    made = []

    def make(job: int, buffers: Buffers) -> int:
        made.append(job)
        return job

    with read_ahead(itertools.count(), make, num_threads=2, depth=3) as results:
        deadline = time.monotonic() + 5
        while len(made) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert sorted(made) == [0, 1, 2]
        next(results).release()
        while len(made) < 4 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert sorted(made) == [0, 1, 2, 3]


def test_threads_make_side_by_side() -> None:
    together = threading.Barrier(2, timeout=5)

    def make(job: int, buffers: Buffers) -> int:
        together.wait()
        return job

    with read_ahead(range(4), make, num_threads=2, depth=2) as results:
        seen = []
        for result in results:
            with result as value:
                seen.append(value)
    assert seen == [0, 1, 2, 3]


@THREADS
def test_holding_all_results_is_a_mistake_and_no_deadlock(num_threads: int) -> None:
    with read_ahead(range(5), tensor_of, num_threads=num_threads, depth=2) as results:
        first, _ = next(results), next(results)
        with pytest.raises(RuntimeError, match="all 2 results are held"):
            next(results)
        first.release()
        first.release()
        assert next(results).value[0] == 2


@THREADS
def test_memory_is_used_again(num_threads: int) -> None:
    addresses = set()
    with read_ahead(range(40), tensor_of, num_threads=num_threads, depth=3) as results:
        for result in results:
            with result as tensor:
                addresses.add(tensor.data_ptr())
    assert len(addresses) <= 3
