"""The decoder process: reads requests from stdin, answers on stdout, touches nothing else.

It is started by `pipeline.jail` and may be killed at any moment. Requests and answers are
`pipeline.messages`; what runs here is `packets`, `frames`, `sampling` and `pixels`.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

ALIVE_SECONDS = 1.0
MAX_OPEN_FILES = 128
MAX_LOG_BYTES = 1024 * 1024

Answer = Callable[..., None]


def main() -> None:
    """Serve requests until stdin closes."""
    owner = os.getppid()
    # Native libraries may print: only messages go to the real stdout.
    out = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(owner,), daemon=True).start()
    _limit(int(sys.argv[1]))

    import av  # noqa: F401 - everything heavy is loaded before the first request is timed
    import numpy as np  # noqa: F401
    from PIL import Image  # noqa: F401

    from pipeline import messages

    receiver = messages.Receiver(0)

    def answer(message: dict[str, Any], payload: Any = ()) -> None:
        messages.send(out, message, payload)

    answer({"kind": "ready"})
    while True:
        try:
            request, _ = receiver.receive(timeout_seconds=None)
            _serve(request, answer)
        except messages.PipeClosed:
            return


def _serve(request: dict[str, Any], answer: Answer) -> None:
    from pipeline.messages import PipeClosed
    from pipeline.sampling import TimesGoBack
    from schemas.errors import VideoError

    work: Callable[..., None] = _probe if request.pop("kind") == "probe" else _decode
    try:
        work(answer, **request)
    except PipeClosed:
        raise
    except VideoError as error:
        answer({"kind": "reject", "reason": error.reason, "detail": error.detail})
    except MemoryError:
        answer({"kind": "reject", "reason": "out_of_memory", "detail": "limits.memory_bytes"})
    except TimesGoBack:
        answer({"kind": "times_go_back"})
    except Exception:  # reported as a bug by the owner, never as a reject
        answer({"kind": "bug", "traceback": traceback.format_exc()})


def _probe(answer: Answer, *, path: str, max_pixels: int, max_duration_seconds: float) -> None:
    from pipeline.packets import read_packet_facts

    facts = read_packet_facts(
        path,
        max_pixels=max_pixels,
        max_duration_seconds=max_duration_seconds,
        alive=_heartbeat(answer),
    )
    answer({"kind": "facts", "facts": facts})


def _decode(
    answer: Answer,
    *,
    path: str,
    max_pixels: int,
    max_duration_seconds: float,
    window: dict[str, Any],
    frames_per_clip: int,
    sizes: dict[str, tuple[int, int]],
    preview_height: int | None,
    in_order: bool,
) -> None:
    from pipeline.frames import Tally, decode_frames
    from pipeline.pixels import Converter, Pictures, join_pictures
    from pipeline.sampling import Window, assemble_clips, sample_any_order, sample_in_order

    tally = Tally()
    known_problems: int | None = None
    alive = _heartbeat(answer)
    wanted = Window(**window)
    converter = Converter(sizes=sizes, preview_height=preview_height)

    def decode() -> Iterator[Any]:
        nonlocal tally
        tally = Tally()  # of the last pass: it is the one whose frames are kept
        return decode_frames(
            path,
            tally=tally,
            max_pixels=max_pixels,
            max_duration_seconds=max_duration_seconds,
            alive=alive,
        )

    def convert(frame: Any) -> Pictures:
        nonlocal known_problems
        if known_problems is None:
            # Damage ahead of a later piece of a video is that of the pieces before.
            known_problems = tally.num_problems if wanted.first_k else 0
        return converter.convert(frame, sample_aspect=tally.sample_aspect)

    samples = (
        sample_in_order(decode(), window=wanted, convert=convert)
        if in_order
        else sample_any_order(
            decode,
            window=wanted,
            convert=convert,
            in_display_order=lambda: not tally.stores_display_times,
        )
    )
    for clip in assemble_clips(samples, frames_per_clip=frames_per_clip):
        pictures = [sample.picture for sample in clip.samples]
        arrays = join_pictures(pictures)
        # Out of order, all is decoded before the first clip: damage is that of the video.
        before = known_problems if in_order else 0
        answer(
            {
                "kind": "clip",
                "clip_index": clip.clip_index,
                "num_frames": clip.num_frames,
                "start_seconds": clip.start_seconds,
                "end_seconds": clip.end_seconds,
                "times": [[s.start_seconds, s.end_seconds] for s in clip.samples],
                "shapes": {name: frames[0].shape for name, frames in arrays.items()},
                "corrupt": tally.num_problems > (before or 0),
                "shape": asdict(pictures[0].shape),
            },
            [frame.data for frames in arrays.values() for frame in frames],
        )
        known_problems = tally.num_problems
    answer(
        {
            "kind": "done",
            "num_frames_decoded": tally.num_frames,
            "num_decode_errors": tally.num_errors,
            "corrupt": tally.num_problems > 0,
        }
    )


def _heartbeat(answer: Answer) -> Callable[[], None]:
    last = time.monotonic()

    def alive() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > ALIVE_SECONDS:
            last = now
            answer({"kind": "alive"})

    return alive


def _limit(memory_bytes: int) -> None:
    for kind, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, MAX_LOG_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def _end_with(owner: int) -> None:
    # An owner that was killed closes the pipes, but a process busy in native code never reads.
    while os.getppid() == owner:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()
