"""The packets of a video, read without decoding: their times, key frames and what is amiss.

Runs inside the decoder process only. `read_packet_facts` is the probe's; `read_packet_table` is
what selective decoding is planned on.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.jailed.opening import check_duration, open_video, read_packets
from schemas.errors import VideoError

TRUNCATION_SECONDS = 0.5
"""Containers round durations and streams end a little apart; a cut file misses more than this."""
NO_TIME = -(2**63)
KEPT_BYTES = 8 * 1024 * 1024
"""A video of no more is read once: its packets are kept until they are decoded."""


@dataclass(slots=True, kw_only=True)
class PacketTable:
    """The packets of the chosen video stream in the order of decoding; 30 bytes each."""

    time_base: Fraction
    container: str
    """Name of the demuxer."""
    pts: array[int] = field(default_factory=lambda: array("q"))
    """In ticks of `time_base`; NO_TIME where there is none."""
    dts: array[int] = field(default_factory=lambda: array("q"))
    durations: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("I"))
    """Bytes."""
    is_key: bytearray = field(default_factory=bytearray)
    is_shown: bytearray = field(default_factory=bytearray)
    """0: the edit list hides the frame, which others may need."""
    num_corrupt: int = 0
    """Packets that the demuxer marked as damaged."""
    reading_failed: bool = False
    """Reading broke off before the end of the file."""
    kept: list[Any] | None = field(default_factory=list)
    """The packets themselves, where they are few; they belong to the open container."""

    def __len__(self) -> int:
        return len(self.pts)

    def add(self, packet: Any) -> None:
        self.pts.append(NO_TIME if packet.pts is None else packet.pts)
        self.dts.append(NO_TIME if packet.dts is None else packet.dts)
        self.durations.append(packet.duration or 0)
        self.sizes.append(packet.size)
        self.is_key.append(packet.is_keyframe)
        self.is_shown.append(not packet.is_discard)
        self.num_corrupt += packet.is_corrupt

    def keep(self, packet: Any, *, num_bytes: int) -> None:
        """Keep a packet while all of them, `num_bytes` so far, are few."""
        if self.kept is not None:
            self.kept.append(packet)
            if num_bytes > KEPT_BYTES:
                self.kept = None

    def ticks(self) -> npt.NDArray[np.int64]:
        """(N,) when each frame is due: pts, else dts, else NO_TIME."""
        pts = np.frombuffer(self.pts, np.int64)
        return np.where(pts == NO_TIME, np.frombuffer(self.dts, np.int64), pts)

    def seconds(self, ticks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """float64, rounded once, as `float(Fraction)` does."""
        return ticks * self.time_base.numerator / self.time_base.denominator


def read_packet_table(container: Any, stream: Any, *, alive: Callable[[], None]) -> PacketTable:
    """The packets of one stream to the end of the file. VideoError: out_of_memory.

    `alive` is called for every packet.
    """
    table = _empty_table(container, stream)
    num_bytes = 0
    for packet in _packets(container, table, stream):
        alive()
        table.add(packet)
        num_bytes += packet.size
        table.keep(packet, num_bytes=num_bytes)
    return table


def read_packet_facts(
    path: str, *, max_pixels: int, max_duration_seconds: float, alive: Callable[[], None]
) -> dict[str, Any]:
    """The facts of a `Probe` that are in headers and packets, JSON-ready.

    `alive` is called for every packet. VideoError: of `open_video`, no_frames, no_times,
    too_long.
    """
    with open_video(path, max_pixels=max_pixels) as (container, stream):
        table = _empty_table(container, stream)
        file_end_seconds = -float("inf")
        for packet in _packets(container, table):
            alive()
            if packet.stream_index == stream.index:
                table.add(packet)
            ticks = packet.dts if packet.pts is None else packet.pts
            if ticks is not None and packet.time_base is not None:
                end = (ticks + (packet.duration or 0)) * packet.time_base
                file_end_seconds = max(file_end_seconds, float(end))
        times = _Times.of(table)
        if times is None and any(table.is_shown):
            raise VideoError("no_times", f"none of {len(table)} packets has a time")
        if times is None:
            raise VideoError("no_frames", "the video stream holds no packet")
        check_duration(times.last - times.first, max_duration_seconds=max_duration_seconds)
        missing = _missing_seconds(container, stream, times, file_end_seconds)
        # AVI has no times of display, only the order of decoding, which B-frames make another one.
        reordered = container.format.name == "avi" and stream.codec_context.has_b_frames
        return {
            "container": container.format.name,
            "codec": stream.codec_context.name,
            "width": stream.width or 0,
            "height": stream.height or 0,
            "average_fps": float(stream.average_rate or 0),
            "num_packets": times.count,
            "first_seconds": times.first,
            "last_seconds": times.last,
            "duration_seconds": times.end - times.first,
            "has_audio": len(container.streams.audio) > 0,
            "times_go_back": bool(reordered or times.go_back),
            "truncated": missing > max(TRUNCATION_SECONDS, 2 * times.longest_interval),
        }


def _empty_table(container: Any, stream: Any) -> PacketTable:
    return PacketTable(time_base=stream.time_base or Fraction(1), container=container.format.name)


def _packets(container: Any, table: PacketTable, *streams: Any) -> Iterator[Any]:
    # Where reading breaks off, what was read counts, and the missing end shows as truncation.
    def damaged() -> None:
        table.reading_failed = True

    for packet in read_packets(container, *streams, damaged=damaged):
        if packet.size:
            yield packet


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """What the times of the frames that are shown tell."""

    count: int
    first: float
    last: float
    end: float
    longest_interval: float
    go_back: bool

    @classmethod
    def of(cls, table: PacketTable) -> _Times | None:
        ticks = table.ticks()
        timed = (ticks != NO_TIME) & np.frombuffer(table.is_shown, np.bool_)
        if not timed.any():
            return None
        seconds = table.seconds(ticks[timed])
        dts = np.frombuffer(table.dts, np.int64)[timed]
        dts = dts[dts != NO_TIME]
        ordered = np.sort(seconds)
        # Durations follow the order of decoding: only the last frame's own one counts.
        latest = np.flatnonzero(seconds == ordered[-1])[-1]
        duration = np.frombuffer(table.durations, np.int64)[timed][latest]
        return cls(
            count=len(seconds),
            first=float(ordered[0]),
            last=float(ordered[-1]),
            end=float(ordered[-1]) + float(int(duration) * table.time_base),
            # A video that shows one picture for long may end with one without a duration.
            longest_interval=float(np.diff(ordered).max(initial=0.0)),
            go_back=bool((np.diff(dts) < 0).any()),
        )


def _missing_seconds(container: Any, stream: Any, times: _Times, file_end_seconds: float) -> float:
    if stream.duration:
        start = float((stream.start_time or 0) * stream.time_base)
        promised = min(start, times.first) + float(stream.duration * stream.time_base)
        return promised - times.end
    if container.duration:
        # No duration of the stream itself (Matroska, FLV): another stream may be the longest. These
        # count the duration from zero, and not from the first frame.
        promised = min(container.start_time or 0, 0) / 1e6 + container.duration / 1e6
        return float(promised - file_end_seconds)
    return 0.0
