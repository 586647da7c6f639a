"""A worker process of a local run: Beam's own, which ends when its owner is gone.

python -m pipeline.worker OWNER_PID
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

BEAM_WORKER = "apache_beam.runners.worker.sdk_worker_main"
LOOK_SECONDS = 1.0


def main() -> None:
    """Watch the owner, work."""
    sys.stdout = sys.stderr = Chatter(sys.stderr)
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    sys.argv = [BEAM_WORKER]
    runpy.run_module(BEAM_WORKER, run_name="__main__", alter_sys=True)


class Chatter:
    """A text stream that loses what cannot be written, such as to a log on a full disk.

    The engine prints an error before it answers with it: were that to fail, the owner would wait
    for the answer for ever.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _end_with(owner: int) -> None:
    # The engine's connection also breaks then, but only after it was made.
    while _is_alive(owner):
        time.sleep(LOOK_SECONDS)
    os._exit(1)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A process that ended and was not yet waited for still has its number.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:
        return True  # no /proc on this system


if __name__ == "__main__":
    main()
