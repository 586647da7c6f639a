"""Read the packets of a video, no pixels: its first and last time and whether it is all there.

Runs inside the decoder process only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from pipeline.opening import open_video, read_packets
from schemas.errors import VideoError

TRUNCATION_SECONDS = 0.5
"""Containers round durations and streams end a little apart; a cut file misses more than this."""


def read_packet_facts(
    path: str, *, max_pixels: int, max_duration_seconds: float, alive: Callable[[], None]
) -> dict[str, Any]:
    """The facts of a `Probe` that are in headers and packets, JSON-ready.

    `alive` is called for every packet. VideoError: of `open_video`, no_frames, no_times,
    too_long.
    """
    with open_video(path, max_pixels=max_pixels) as (container, stream):
        times: list[float] = []
        num_timeless = 0
        # AVI has no times of display, only the order of decoding, which B-frames make another one.
        times_go_back = container.format.name == "avi" and stream.codec_context.has_b_frames
        last_dts: int | None = None
        max_seconds, last_duration = -float("inf"), 0.0
        file_end_seconds = -float("inf")
        # Where reading breaks off, what was read counts, and the missing end shows as truncation.
        for packet in read_packets(container, damaged=lambda: None):
            alive()
            if not packet.size:
                continue
            ticks = packet.dts if packet.pts is None else packet.pts
            if ticks is None or packet.time_base is None:
                num_timeless += packet.stream_index == stream.index
                continue
            begin = float(ticks * packet.time_base)
            duration = float((packet.duration or 0) * packet.time_base)
            file_end_seconds = max(file_end_seconds, begin + duration)
            if packet.stream_index == stream.index and not packet.is_discard:
                # Durations follow the order of decoding: only the last frame's own one counts.
                if begin >= max_seconds:
                    max_seconds, last_duration = begin, duration
                times.append(begin)
                if packet.dts is not None:
                    times_go_back |= last_dts is not None and packet.dts < last_dts
                    last_dts = packet.dts
        if not times and num_timeless:
            raise VideoError("no_times", f"none of {num_timeless} packets has a time")
        if not times:
            raise VideoError("no_frames", "the video stream holds no packet")
        first, last = min(times), max(times)
        if last - first > max_duration_seconds:
            detail = f"{last - first:.0f} s is more than {max_duration_seconds:.0f} s"
            raise VideoError("too_long", detail)
        end = last + last_duration
        missing = _missing_seconds(container, stream, first, end, file_end_seconds)
        return {
            "container": container.format.name,
            "codec": stream.codec_context.name,
            "width": stream.width or 0,
            "height": stream.height or 0,
            "average_fps": float(stream.average_rate or 0),
            "num_packets": len(times),
            "first_seconds": first,
            "last_seconds": last,
            "duration_seconds": end - first,
            "has_audio": len(container.streams.audio) > 0,
            "times_go_back": bool(times_go_back),
            "truncated": missing > max(TRUNCATION_SECONDS, 2 * _longest_interval(times)),
        }


def _missing_seconds(
    container: Any, stream: Any, first: float, end_seconds: float, file_end_seconds: float
) -> float:
    if stream.duration:
        start = float((stream.start_time or 0) * stream.time_base)
        promised = min(start, first) + float(stream.duration * stream.time_base)
        return promised - end_seconds
    if container.duration:
        # No duration of the stream itself (Matroska, FLV): another stream may be the longest. These
        # count the duration from zero, and not from the first frame.
        promised = min(container.start_time or 0, 0) / 1e6 + container.duration / 1e6
        return float(promised - file_end_seconds)
    return 0.0


def _longest_interval(times: list[float]) -> float:
    # A video that shows one picture for long may end with one that has no duration of its own.
    ordered = sorted(times)
    pairs = itertools.pairwise(ordered)
    return max((after - before for before, after in pairs), default=0.0)
