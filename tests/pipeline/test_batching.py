"""EncodeAhead: the order of results, what is forgotten, and where errors come out."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pipeline.batching import EncodeAhead


class Encoders:
    """Clips are numbers; their features are their squares."""

    def __init__(self, batch_clips: int = 3, num_threads: int = 1) -> None:
        self.batch_clips, self.num_threads = batch_clips, num_threads
        self.batches: list[list[int]] = []
        self.fails_at: int | None = None
        self.gate: threading.Event | None = None

    def encode(self, clips: list[int]) -> list[int]:
        if self.gate is not None:
            assert self.gate.wait(10)
        self.batches.append(list(clips))
        if self.fails_at in clips:
            raise ZeroDivisionError
        return [clip * clip for clip in clips]


def ahead(encoders: Any, taken: list[Any]) -> EncodeAhead[str]:
    return EncodeAhead(encoders, take=lambda owner, clip, features: taken.append((owner, features)))


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("batch_clips", [1, 2, 3, 10])
def test_results_come_in_the_order_of_clips(num_threads: int, batch_clips: int) -> None:
    taken: list[Any] = []
    with ahead(Encoders(batch_clips, num_threads), taken) as encoding:
        for number in range(8):
            encoding.add("ab"[number // 4], number)  # type: ignore[arg-type]
        encoding.finish()
    assert taken == [("ab"[number // 4], number * number) for number in range(8)]


def test_what_is_gathered_can_be_forgotten() -> None:
    encoders, taken = Encoders(), []
    a, b, c = "first", "second", "third"
    with ahead(encoders, taken) as encoding:
        for number, owner in enumerate((a, a, b, b, c)):
            encoding.add(owner, number)  # type: ignore[arg-type]
        encoding.forget(b)
        encoding.finish()
    assert encoders.batches == [[0, 1, 2], [4]]
    assert taken == [(a, 0), (a, 1), (b, 4), (c, 16)]


def test_while_a_batch_is_encoded_the_next_is_gathered() -> None:
    encoders, taken = Encoders(), []
    encoders.gate = threading.Event()
    with ahead(encoders, taken) as encoding:
        for number in range(5):
            encoding.add("a", number)  # type: ignore[arg-type]
        assert taken == []
        encoders.gate.set()
        encoding.finish()
    assert len(taken) == 5


def test_an_error_comes_out_where_clips_are_added() -> None:
    encoders = Encoders()
    encoders.fails_at = 1
    with pytest.raises(ZeroDivisionError), ahead(encoders, []) as encoding:
        for number in range(9):
            encoding.add("a", number)  # type: ignore[arg-type]
    assert len(encoders.batches) <= 2


def test_leaving_early_does_not_wait_for_what_is_not_begun() -> None:
    encoders = Encoders(num_threads=2)
    with pytest.raises(KeyError), ahead(encoders, []) as encoding:
        encoding.add("a", 1)  # type: ignore[arg-type]
        raise KeyError
    assert encoders.batches == []
