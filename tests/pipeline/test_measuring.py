"""Counts and times of one worker, and their sums."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter

import pytest

from pipeline.measuring import Measured, Measures, ShardDone, StageTime, sum_of_workers

SHARD = ShardDone(
    name="train-000012-9a057363",
    videos=14,
    clips=220,
    frames=870,
    bytes=512_040_000,
    seconds=31.24,
    rejects={"timed_out": 1},
)


class Clock:
    """Stands in for time.perf_counter."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def stage_of(
    num: int = 0, seconds: float = 0.0, active: float = 0.0, longest: float = 0.0
) -> StageTime:
    return StageTime(num=num, seconds=seconds, active_seconds=active, longest_seconds=longest)


def test_a_stage_has_a_number_a_sum_and_the_longest(clock: Clock) -> None:
    measures = Measures()
    for seconds in (1.0, 3.0, 2.0):
        with measures.timed("pack"):
            clock.now += seconds
        clock.now += 10
    assert measures.so_far().stages == {"pack": stage_of(3, 6.0, 6.0, 3.0)}


def test_threads_at_once_are_active_once(clock: Clock) -> None:
    measures = Measures()
    with measures.timed("encode"):
        clock.now += 1
        with measures.timed("encode"):
            clock.now += 2
        clock.now += 3
    assert measures.so_far().stage("encode") == stage_of(2, 8.0, 6.0, 6.0)


def test_what_is_still_at_work_is_active(clock: Clock) -> None:
    measures = Measures()
    with measures.timed("shard"):
        for passed in (5.0, 12.0):
            clock.now = 100 + passed
            assert measures.so_far().stage("shard") == stage_of(active=passed)
    assert measures.so_far().stage("shard") == stage_of(1, 12.0, 12.0, 12.0)


def test_what_fails_took_time_too(clock: Clock) -> None:
    measures = Measures()
    with pytest.raises(KeyError), measures.timed("publish"):
        clock.now += 4
        raise KeyError
    assert measures.so_far().stage("publish") == stage_of(1, 4.0, 4.0, 4.0)


def test_a_clock_of_its_own_is_read_as_it_goes_on() -> None:
    measures = Measures()
    for reading in (2.0, 2.5, 2.5, 2.0, 4.0):  # back where a reading was lost
        measures.reads("decode", reading)
    assert measures.so_far().stage("decode") == stage_of(5, 4.5, 4.5, 2.0)


@pytest.mark.parametrize("stage", ["decoding", ""])
def test_a_stage_that_is_not_listed_is_a_bug(stage: str) -> None:
    with pytest.raises(ValueError, match="stage"), Measures().timed(stage):
        pass
    with pytest.raises(ValueError, match="stage"):
        Measures().took(stage, 1.0)


def test_counts_from_many_threads_are_all_there() -> None:
    measures = Measures()

    def work() -> None:
        for _ in range(500):
            measures(done=1)
            with measures.timed("encode"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    measured = measures.so_far()
    assert measured.counts == {"done": 2000}
    assert measured.stage("encode").num == 2000
    assert measured.stage("encode").active_seconds <= measured.seconds("encode") + 1e-9


def test_a_committed_shard_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    measures = Measures()
    with caplog.at_level(logging.INFO):
        measures.shard_done(SHARD)
    measures.reject("not_a_video")
    measured = measures.so_far()
    assert measured.rejects == {"not_a_video": 1, "timed_out": 1}
    assert {name: measured.counts[name] for name in ("shards", "clips", "bytes", "rejects")} == {
        "shards": 1,
        "clips": 220,
        "bytes": 512_040_000,
        "rejects": 2,
    }
    assert caplog.messages == [SHARD.line()]


def test_the_line_of_a_shard() -> None:
    assert SHARD.line() == (
        "shard train-000012-9a057363 committed: 14 videos, 220 clips, 512.0 MB, 31.2 s,"
        " rejects 1 (timed_out)"
    )


def test_a_sum_adds_all_but_the_longest() -> None:
    one = Measured(counts=Counter(done=2), stages={"pack": stage_of(1, 2.0, 1.0, 2.0)})
    other = Measured(
        counts=Counter(done=1, frames=4),
        stages={"pack": stage_of(2, 1.0, 1.0, 0.75), "hash": stage_of(1, 1.0, 1.0, 1.0)},
    )
    total = sum_of_workers({11: one, 12: other})
    assert total.counts == {"done": 3, "frames": 4}
    assert total.stage("pack") == stage_of(3, 3.0, 2.0, 2.0)
    assert total.busiest_seconds == {"pack": 2.0, "hash": 1.0}
    assert total.seconds("pack", "hash", "publish") == 4.0


def test_what_was_summed_is_left_as_it_was() -> None:
    one, other = Measured(counts=Counter(done=2)), Measured(counts=Counter(done=1))
    assert (one + other).counts == {"done": 3}
    assert (one.counts, other.counts) == ({"done": 2}, {"done": 1})


def test_a_row_is_read_as_it_was_written(clock: Clock) -> None:
    measures = Measures()
    measures(done=3)
    with measures.timed("encode"):
        clock.now += 0.1
    measured = measures.so_far()
    assert Measured.from_row(json.loads(json.dumps(measured.to_row()))) == measured
