"""What is undone when a signal ends the process, which then unwinds no stack."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

UNDO_SECONDS = 3.0
_UNDO: list[Callable[[], object]] = []


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
