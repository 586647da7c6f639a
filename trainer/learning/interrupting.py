"""End a run when it is told to: the step in hand is finished and saved; told twice, at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
REPEAT_SECONDS = 1.0
"""A signal that comes sooner after the first is the same one, as a launcher passes it on."""


class Told:
    """Whether a signal has come."""

    number: int = 0
    """Of the signal; 0: none."""


@contextlib.contextmanager
def listening() -> Iterator[Told]:
    """Within this context SIGINT and SIGTERM are taken note of; a second one ends the process."""
    told = Told()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    first = 0.0

    def hear(number: int, _: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if told.number and now - first >= REPEAT_SECONDS:
            os._exit(128 + number)
        if not told.number:
            told.number, first = number, now

    before = {number: signal.signal(number, hear) for number in SIGNALS}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
