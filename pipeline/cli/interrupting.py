"""End a run at once on Ctrl-C or SIGTERM, with a sentence on how to go on."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from pipeline.ending import end_making, undo_all

SHOW_CURSOR = "\x1b[?25h"
SENTENCE = "\nInterrupted. What is committed is kept: run the same command again to go on.\n"


@contextlib.contextmanager
def end_when_told() -> Iterator[None]:
    """Within this context SIGINT and SIGTERM end the process; no shard is ever half committed.

    An exception would not do: an engine catches it as an error of the video in hand, and waits for
    its threads. What is registered in `ending` is undone: worker processes, files that only this
    run needs, a lock. Decoder processes end when their owner is gone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        text = (SHOW_CURSOR if os.isatty(2) else "") + SENTENCE
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, text.encode())
            # Threads that still work stumble over what is undone; that is no news.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        end_making()
        undo_all()
        os._exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
