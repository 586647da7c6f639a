"""What a run was bound by: a table of cases."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.bottleneck import find_bottleneck
from pipeline.measuring import Measured, StageTime, sum_of_workers


def worker(**seconds: float) -> Measured:
    """Stage -> seconds; `encode` is active for as long."""
    stages = {
        name: StageTime(num=1, seconds=value, active_seconds=value, longest_seconds=value)
        for name, value in seconds.items()
    }
    return Measured(counts=Counter(builders=1), stages=stages)


def found(
    *workers: Measured, run_seconds: float, num_cores: int | None = 8
) -> tuple[str, float, str]:
    measured = sum_of_workers(dict(enumerate(workers)))
    bottleneck = find_bottleneck(measured, run_seconds=run_seconds, num_cores=num_cores)
    if bottleneck is None:
        return "", 0.0, ""
    assert bottleneck.text.startswith(bottleneck.kind)
    assert f"{bottleneck.share:.0%}" in bottleneck.text
    return bottleneck.kind, bottleneck.share, bottleneck.text


@pytest.mark.parametrize(
    ("seconds", "run_seconds", "kind", "share"),
    [
        # Nothing, or too little, to tell of.
        ({}, 100, "", 0),
        ({"load": 5}, 100, "", 0),
        ({"probe": 0.2, "shard": 0.3}, 0.9, "", 0),
        # Where the run's time went.
        ({"probe": 1, "shard": 3, "load": 2}, 10, "start-up", 0.6),
        ({"probe": 60, "shard": 20}, 100, "probe", 0.6),
        ({"probe": 60}, 100, "probe", 0.6),
        ({"probe": 30, "shard": 30, "wait_encode": 28}, 100, "encode", 28 / 30),
        # Where a worker's time in shards went.
        ({"shard": 100, "wait_decode": 90, "encode": 17}, 110, "decode", 0.83),
        ({"shard": 100, "wait_decode": 41, "wait_encode": 39, "encode": 60}, 110, "decode", 0.4),
        ({"shard": 100, "wait_decode": 60, "encode": 90}, 110, "balanced", 0.9),
        ({"shard": 100, "wait_decode": 60, "encode": 75}, 110, "balanced", 0.75),
        ({"shard": 100, "wait_decode": 80, "fetch": 70, "encode": 10}, 110, "fetch", 0.9),
        ({"shard": 100, "wait_decode": 80, "fetch": 30, "encode": 10}, 110, "decode", 0.9),
        ({"shard": 100, "wait_encode": 85, "encode": 95}, 110, "encode", 0.85),
        ({"shard": 100, "wait_sound": 50, "wait_encode": 30, "encode": 40}, 110, "sound", 0.5),
        ({"shard": 100, "pack": 20, "publish": 30, "wait_hash": 5}, 110, "write", 0.55),
        ({"shard": 100, "wait_decode": 39, "wait_encode": 30, "encode": 40}, 110, "", 0),
        # Clocks that disagree a little.
        ({"shard": 100, "wait_encode": 101, "encode": 101}, 99, "encode", 1.0),
    ],
)
def test_one_worker(seconds: dict[str, float], run_seconds: float, kind: str, share: float) -> None:
    assert found(worker(**seconds), run_seconds=run_seconds)[:2] == (kind, pytest.approx(share))


def test_waits_of_all_workers_are_taken_together() -> None:
    one = worker(shard=100, wait_decode=90, encode=10)
    other = worker(shard=50, wait_encode=45, encode=50)
    assert found(one, other, run_seconds=110)[:2] == ("decode", pytest.approx(0.6))


def test_a_worker_that_had_little_to_do_is_no_start_up() -> None:
    busy = worker(shard=100, wait_decode=90, encode=10)
    idle = worker(shard=2, wait_decode=2)
    assert found(busy, *[idle] * 7, run_seconds=110)[0] == "decode"


def test_more_decoders_help_only_where_a_core_is_free() -> None:
    one = worker(shard=100, wait_decode=90, encode=10, decode=170, worker=15)
    full = found(one, run_seconds=110, num_cores=2)[2]
    free = found(one, run_seconds=110, num_cores=8)[2]
    unknown = found(one, run_seconds=110, num_cores=None)[2]
    assert "all cores are busy" in full
    assert "--decoders" not in full
    assert "--decoders" in free
    assert free == unknown


def test_loading_is_named_where_it_took_long() -> None:
    assert "9.0 s into loading encoders" in found(worker(load=9, shard=1), run_seconds=12)[2]
    assert "loading" not in found(worker(load=0.1, shard=1), run_seconds=12)[2]
