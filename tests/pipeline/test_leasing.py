"""A lock in an object store: one of many takes it, and it ends with its owner or by its expiry."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pipeline import leasing
from pipeline.ending import undo_all
from pipeline.leasing import Holder, Lease
from pipeline.places import list_sizes, to_place
from schemas.errors import CacheError, CacheHeld, UsageError

if TYPE_CHECKING:
    from pipeline.places import Place

_numbers = itertools.count()


@pytest.fixture
def folder() -> Place:
    return to_place(f"memory://leases-{next(_numbers)}/.lock")


def test_a_second_run_is_refused_and_told_who_holds_the_cache(folder: Place) -> None:
    with Lease(folder, what="mem"):
        match = r"mem: another run is at work on this cache: process \d+ on "
        with pytest.raises(UsageError, match=match) as caught, Lease(folder, what="mem"):
            pytest.fail("two runs at once")
        assert "if it was killed, its lock ends in 180 s" in caught.value.hint
    with Lease(folder, what="mem"):
        pass


def test_of_many_at_once_one_gets_it(folder: Place) -> None:
    barrier, tried = threading.Barrier(8), threading.Semaphore(0)

    def take(_: int) -> bool:
        barrier.wait()
        try:
            with Lease(folder, what="mem"):
                for _other in range(7):
                    assert tried.acquire(timeout=10)
                return True
        except UsageError:
            tried.release()
            return False

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(take, range(8))) == 1


def test_a_lock_of_a_killed_run_ends_by_itself(folder: Place) -> None:
    killed = Holder.this_process()
    (folder / "000000000.json").write_bytes(replace(killed, expires=time.time() - 1).to_json())
    with Lease(folder, what="mem"):
        assert "000000001.json" in list_sizes(folder)


def test_old_locks_do_not_pile_up(folder: Place) -> None:
    for _ in range(5):
        with Lease(folder, what="mem"):
            pass
    assert len(list_sizes(folder)) == 1


def test_what_is_no_lock_is_taken_over(folder: Place) -> None:
    (folder / "000000003.json").write_bytes(b"{}")
    with Lease(folder, what="mem"):
        assert "000000004.json" in list_sizes(folder)


def test_a_lock_is_renewed_while_it_is_held(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(leasing, "LEASE_SECONDS", 0.4)
    with Lease(folder, what="mem") as lease:
        time.sleep(0.8)
        lease.check()
        with pytest.raises(UsageError, match="another run"), Lease(folder, what="mem"):
            pytest.fail("two runs at once")


def test_a_lock_that_another_run_took_is_noticed(
    folder: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leasing, "RENEW_SECONDS", 0.05)
    with Lease(folder, what="mem") as lease:
        lease.check()
        (folder / "000000001.json").write_bytes(Holder.this_process().to_json())
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                lease.check()
            except CacheError as error:
                assert "another run has taken over the lock" in error.message
                return
            time.sleep(0.02)
        pytest.fail("not noticed")


def test_a_lock_that_goes_while_it_is_read_is_another_run_s(
    folder: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lease(folder, what="mem"):
        pass

    def gone(path: Place) -> bytes:
        raise FileNotFoundError

    monkeypatch.setattr(leasing, "read_bytes", gone)
    with pytest.raises(CacheHeld, match="another run"), Lease(folder, what="mem"):
        pytest.fail("the lock was another run's")


def test_a_lock_that_was_lost_during_sleep_is_noticed_before_anything_is_written(
    folder: Place,
) -> None:
    with Lease(folder, what="mem") as lease:
        (folder / "000000001.json").write_bytes(Holder.this_process().to_json())
        with pytest.raises(CacheError, match="another run has taken over the lock"):
            lease.check()
    # What the other run holds is as it was.
    assert list_sizes(folder).keys() == {"000000000.json", "000000001.json"}
    with pytest.raises(CacheHeld), Lease(folder, what="mem"):
        pytest.fail("two runs at once")


@pytest.mark.parametrize("by_seconds", [-1e8, 1e8])
def test_a_clock_that_jumps_while_a_lock_is_held_is_no_loss(
    folder: Place, monkeypatch: pytest.MonkeyPatch, by_seconds: float
) -> None:
    monkeypatch.setattr(leasing, "RENEW_SECONDS", 0.05)
    now = time.time
    with Lease(folder, what="mem") as lease:
        monkeypatch.setattr(time, "time", lambda: now() + by_seconds)
        time.sleep(0.3)
        lease.check()
        with pytest.raises(CacheHeld), Lease(folder, what="mem"):
            pytest.fail("two runs at once")


def test_a_killed_run_whose_clock_was_ahead_is_told_how_to_get_rid_of(folder: Place) -> None:
    ahead = replace(Holder.this_process(), expires=time.time() + 1e8)
    path = folder / "000000004.json"
    path.write_bytes(ahead.to_json())
    with pytest.raises(CacheHeld) as caught, Lease(folder, what="mem"):
        pytest.fail("it may still be at work")
    assert caught.value.hint.endswith(f"clock, which differs from the other's: delete {path}")
    path.unlink()
    with Lease(folder, what="mem"):
        pass


def test_a_lock_ends_with_a_run_that_a_signal_ends(folder: Place) -> None:
    with Lease(folder, what="mem"):
        undo_all()
        with Lease(folder, what="mem"):
            pass
