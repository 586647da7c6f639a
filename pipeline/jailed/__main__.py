"""The decoder process: reads requests from stdin, answers on stdout, touches nothing else.

It is started by `pipeline.jail` and may be killed at any moment. Requests and answers are
`pipeline.messages`, pictures go through `pipeline.slots`; what it does is in `serving`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

from pipeline.jailed.confining import filter_calls, limit_resources


def main() -> None:
    """Serve requests until stdin closes. Arguments: bytes of memory, fd of shared memory."""
    parent = os.getppid()
    # Native libraries may print: only messages go to the real stdout.
    out = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    memory_bytes, shared_fd = map(int, sys.argv[1:3])
    allow_programs = "--allow-programs" in sys.argv
    limit_resources(memory_bytes=memory_bytes)

    # Everything heavy is loaded before the first request is timed.
    from pipeline import messages
    from pipeline.jailed.owner import Owner
    from pipeline.jailed.scheduling import NotSelectable
    from pipeline.jailed.serving import serve
    from pipeline.slots import SharedMemory

    if allow_programs:
        from pipeline.jailed.ffmpeg_frames import ffmpeg_program

        with contextlib.suppress(NotSelectable):
            ffmpeg_program()
    owner = Owner(in_fd=0, out_fd=out, memory=SharedMemory(shared_fd))
    # Last, since loading libraries needs what the filter takes away.
    unfiltered = filter_calls(allow_programs=allow_programs)
    owner.answer("ready", unfiltered=unfiltered)
    while True:
        try:
            serve(owner, owner.next_request())
        except messages.PipeClosed:
            return


def _end_with(parent: int) -> None:
    # A parent that was killed closes the pipes, but a process busy in native code never reads.
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()
