"""A worker process of a local run: Beam's own, which ends when its owner is gone.

python -m pipeline.worker OWNER_PID FOLDER_OF_PIDS
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from pathlib import Path

BEAM_WORKER = "apache_beam.runners.worker.sdk_worker_main"
LOOK_SECONDS = 1.0


def main() -> None:
    """Leave the pid where the owner finds it, watch the owner, work."""
    owner, pids = int(sys.argv[1]), Path(sys.argv[2])
    (pids / str(os.getpid())).touch()
    threading.Thread(target=_end_with, args=(owner,), daemon=True).start()
    sys.argv = [BEAM_WORKER]
    runpy.run_module(BEAM_WORKER, run_name="__main__", alter_sys=True)


def _end_with(owner: int) -> None:
    # The engine's connection also breaks then, but only after it was made.
    while True:
        try:
            os.kill(owner, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
