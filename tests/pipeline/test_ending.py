"""What a signal's end undoes, in how much time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

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


BUSY = """
import contextlib, os, signal, sys, threading, time
from pathlib import Path
from pipeline.cli.interrupting import end_when_told
from pipeline.ending import undone_at_end
from pipeline.locking import _remove
from pipeline.storage import temporary_file
from schemas.errors import StorageError
scratch = Path(sys.argv[1])
at_work = threading.Barrier(5)

def work():
    is_first = True
    while True:
        with contextlib.suppress(OSError, StorageError), temporary_file(scratch, name="a") as path:
            path.write_bytes(b"some")
            if is_first:
                is_first = False
                at_work.wait()

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
removed = undone_at_end(lambda: _remove(scratch))
with end_when_told(), undone_at_end(lambda: time.sleep(0.3)), removed:
    at_work.wait()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""


def test_threads_that_are_still_at_work_put_nothing_where_it_was_removed(tmp_path: Path) -> None:
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", BUSY, str(tmp_path / ".tmp")], cwd=root, check=False, timeout=60
    )
    assert done.returncode == 130
    assert list(tmp_path.iterdir()) == []
