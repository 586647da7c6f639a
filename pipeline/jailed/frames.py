"""Decode the frames of a video, in whole, and count what went wrong. Runs in the decoder process.

One thread, so that a damaged file gives the same frames every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av.error

from pipeline.jailed.opening import (
    check_pixels,
    open_video,
    pixel_limit,
    read_packets,
    sample_aspect,
)
from pipeline.sampling import TimedFrame
from schemas.errors import VideoError


@dataclass(slots=True)
class Tally:
    """What decoding met so far."""

    num_frames: int = 0
    num_errors: int = 0
    """Packets that did not decode."""
    num_corrupt: int = 0
    """Frames that the decoder gave out and marked as damaged."""
    sample_aspect: float = 1.0
    stores_display_times: bool = True
    """False for AVI: its times count the packets, which lie in the order of decoding."""

    @property
    def num_problems(self) -> int:
        return self.num_errors + self.num_corrupt

    def reset(self) -> None:
        """Count from zero."""
        self.num_frames = self.num_errors = self.num_corrupt = 0


def decode_frames(
    path: str,
    *,
    tally: Tally,
    max_pixels: int,
    max_duration_seconds: float,
    alive: Callable[[], None],
) -> Iterator[TimedFrame]:
    """All frames that can be decoded, as the decoder gives them out.

    `alive` is called for every packet. VideoError: of `open_video`, too_long, too_many_pixels,
    out_of_memory.
    """
    with open_video(path, max_pixels=max_pixels) as (container, stream):
        context = stream.codec_context
        context.thread_count = 1
        context.options = pixel_limit(max_pixels)
        tally.stores_display_times = container.format.name != "avi"
        tally.sample_aspect = sample_aspect(stream)
        first_seconds: float | None = None
        for frame in decode_stream(container, stream, tally=tally, alive=alive):
            ticks = frame.dts if frame.pts is None else frame.pts
            time_base = frame.time_base  # a new Fraction each time
            if ticks is None or time_base is None:
                tally.num_errors += 1
                continue
            seconds = _to_seconds(ticks, time_base)
            first_seconds = seconds if first_seconds is None else first_seconds
            if abs(seconds - first_seconds) > max_duration_seconds:
                detail = f"frames {seconds - first_seconds:.0f} s apart, limit"
                raise VideoError("too_long", f"{detail} {max_duration_seconds:.0f} s")
            check_pixels(frame.width, frame.height, max_pixels=max_pixels)
            tally.num_frames += 1
            tally.num_corrupt += frame.is_corrupt
            yield TimedFrame(
                seconds=seconds,
                duration_seconds=_to_seconds(frame.duration or 0, time_base),
                frame=frame,
            )


def decode_stream(
    container: Any, stream: Any, *, tally: Tally, alive: Callable[[], None]
) -> Iterator[Any]:
    """The frames of one stream; a packet that does not decode is counted.

    `alive` is called for every packet of the file. VideoError: out_of_memory.
    """

    def damaged() -> None:
        tally.num_errors += 1

    for packet in read_packets(container, damaged=damaged):
        alive()
        if packet.stream.index != stream.index:  # the packet's own index is 0 in the last ones
            continue
        try:
            frames = packet.decode()
        except MemoryError as error:
            raise VideoError("out_of_memory", "while decoding") from error
        except EOFError:
            return
        except av.error.FFmpegError:
            tally.num_errors += 1  # one packet is lost, the next may be whole
            continue
        yield from frames


def _to_seconds(ticks: int, time_base: Fraction) -> float:
    # Rounded once, as float(ticks * time_base), without the arithmetic of fractions.
    return ticks * time_base.numerator / time_base.denominator
