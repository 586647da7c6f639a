"""What is undone when a signal ends the process, which then unwinds no stack."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

UNDO_SECONDS = 3.0
GATE_SECONDS = 0.5
_UNDO: list[Callable[[], object]] = []
_GATE = threading.Lock()
"""Held while a folder is made, and from when the process ends on."""


@contextlib.contextmanager
def undone_at_end(undo: Callable[[], object]) -> Iterator[None]:
    """Within this context `undo` is called by `undo_all`, in a thread that nobody waits for long.

    The rest of the process is still at work meanwhile.
    """
    _UNDO.append(undo)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            _UNDO.remove(undo)


@contextlib.contextmanager
def not_while_ending() -> Iterator[None]:
    """Within this context, a moment, a folder is made that `undo_all` may remove.

    A thread that comes when the process ends goes no further, else it would be there again.
    """
    with _GATE:
        yield


def end_making() -> None:
    """From now on no thread enters `not_while_ending`; the process has to end."""
    # If this thread was interrupted within, it is held already, and stays so.
    _GATE.acquire(timeout=GATE_SECONDS)


def _open_gate() -> None:
    global _GATE
    _GATE = threading.Lock()


os.register_at_fork(after_in_child=_open_gate)


def leave_all() -> None:
    """Let `undo_all` undo nothing of what is pending."""
    _UNDO.clear()


def undo_all(*, within_seconds: float = UNDO_SECONDS) -> None:
    """Undo what is pending, the latest first, in so much time; errors are nobody's any more."""

    def work() -> None:
        for undo in reversed(_UNDO):
            with contextlib.suppress(Exception):
                undo()

    thread = threading.Thread(target=work, name="undo", daemon=True)
    thread.start()
    thread.join(within_seconds)
