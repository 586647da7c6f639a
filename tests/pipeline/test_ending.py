"""What a signal's end undoes, in how much time."""

from __future__ import annotations

import threading
import time

from pipeline.ending import leave_all, undo_all, undone_at_end


def test_the_latest_is_undone_first_and_only_what_is_pending() -> None:
    told: list[str] = []
    with undone_at_end(lambda: told.append("outer")):
        with undone_at_end(lambda: told.append("over")):
            pass
        with undone_at_end(lambda: told.append("inner")):
            undo_all()
    assert told == ["inner", "outer"]
    undo_all()
    assert told == ["inner", "outer"]


def test_an_error_is_no_reason_to_undo_less() -> None:
    told: list[str] = []

    def fail() -> None:
        raise OSError

    with undone_at_end(lambda: told.append("outer")), undone_at_end(fail):
        undo_all()
    assert told == ["outer"]


def test_what_hangs_is_not_waited_for() -> None:
    stuck = threading.Event()
    with undone_at_end(stuck.wait):
        began = time.monotonic()
        undo_all(within_seconds=0.1)
        assert time.monotonic() - began < 2
    stuck.set()


def test_nothing_is_undone_of_what_others_still_need() -> None:
    told: list[str] = []
    with undone_at_end(lambda: told.append("undone")):
        leave_all()
        undo_all()
    assert told == []
