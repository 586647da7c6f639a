"""Which packets have to be decoded for the wanted frames: a pure function of their times.

A run is a stretch of packets that is decoded by itself: it begins at a key frame and ends with the
last wanted frame before the next run. Nothing outside of runs reaches the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.packets import NO_TIME, PacketTable
from pipeline.sampling import SampleTimes, Window, choose_samples

DISPOSABLE_CODECS = frozenset({"h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4"})
"""Codecs whose decoders here leave out frames that no other frame refers to."""
RUN_CODECS = DISPOSABLE_CODECS | {"vp9", "av1"}
"""Codecs that can be entered at a key frame, and give one frame a packet."""
SEGMENT_PACKETS = 128
"""Runs are handed out in segments of at least so many packets."""


class NotSelectable(Exception):
    """The packets do not tell which frames the decoder will give out: decode all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Packets [first, stop) of the table, decoded by themselves."""

    first: int
    """The key frame."""
    stop: int
    first_sample: int
    stop_sample: int
    """Its samples: a range of `Schedule.samples`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What is decoded, and what for."""

    samples: SampleTimes
    ticks: npt.NDArray[np.int64]
    """(N,) times of all frames that are shown, increasing; `samples.ranks` index it."""
    seconds: npt.NDArray[np.float64]
    """(N,) the same in seconds."""
    runs: tuple[Run, ...]

    def segments(self) -> list[list[Run]]:
        """The runs in groups that are worth a process of their own."""
        groups: list[list[Run]] = []
        room = 0
        for run in self.runs:
            if room <= 0:
                groups.append([])
                room = SEGMENT_PACKETS
            groups[-1].append(run)
            room -= run.stop - run.first
        return groups


def check_packet_times(table: PacketTable) -> None:
    """NotSelectable: the packets do not tell the frames' times."""
    if table.container == "avi":
        raise NotSelectable("the container stores no times of display")
    if table.reading_failed or table.num_corrupt:
        raise NotSelectable("damaged packets")
    pts = np.frombuffer(table.pts, np.int64)
    if not len(pts) or (pts == NO_TIME).any():
        raise NotSelectable("packets without a time")
    shown = np.frombuffer(table.is_shown, np.bool_)
    if not shown.any():
        raise NotSelectable("no frame is shown")
    ordered = np.sort(pts[shown])  # np.unique imports numpy.ma, which takes longer than a file
    if (ordered[1:] == ordered[:-1]).any():
        raise NotSelectable("two packets have the same time")


def check_selectable(table: PacketTable, *, codec: str, is_intra_only: bool) -> None:
    """NotSelectable: the codec or the packets do not allow to choose before decoding."""
    if codec not in RUN_CODECS and not is_intra_only:
        raise NotSelectable(f"codec {codec}")
    check_packet_times(table)
    pts = np.frombuffer(table.pts, np.int64)
    shown = np.frombuffer(table.is_shown, np.bool_)
    is_key = np.frombuffer(table.is_key, np.bool_)
    if not is_key[0]:
        raise NotSelectable("the first packet is no key frame")
    first_gop = pts[: _next_key(is_key, 0)]
    if (first_gop[shown[: len(first_gop)]] < pts[0]).any():
        raise NotSelectable("frames ahead of the first key frame")


def choose_by_packets(
    table: PacketTable, window: Window
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], SampleTimes]:
    """(packets in the order of display, their seconds, the samples in the window)."""
    pts = np.frombuffer(table.pts, np.int64)
    shown = np.flatnonzero(np.frombuffer(table.is_shown, np.bool_))
    display_order = shown[np.argsort(pts[shown], kind="stable")]
    seconds = table.seconds(pts[display_order])
    duration = float(table.durations[int(display_order[-1])] * table.time_base)
    samples = choose_samples(seconds, duration_seconds=duration, window=window)
    return display_order, seconds, samples


def schedule_runs(table: PacketTable, window: Window) -> Schedule:
    """The runs for the samples in the window. NotSelectable: key frames are not in order."""
    pts = np.frombuffer(table.pts, np.int64)
    display_order, seconds, samples = choose_by_packets(table, window)
    ticks = pts[display_order]
    wanted = display_order[samples.ranks]  # packet of each sample
    runs: list[Run] = []
    keys = np.flatnonzero(np.frombuffer(table.is_key, np.bool_))
    gops = np.searchsorted(keys, wanted, side="right") - 1
    if (np.diff(gops) < 0).any():
        raise NotSelectable("key frames are not in the order of display")
    is_leading = pts[wanted] < pts[keys[gops]]
    begin = 0
    while begin < len(wanted):
        # One frame may be several samples, and leading frames belong to the run before their key.
        last_gop, end = int(gops[begin]), begin
        first_gop = last_gop - 1 if is_leading[begin] else last_gop
        while end < len(wanted) and (
            gops[end] == last_gop or (gops[end] == last_gop + 1 and is_leading[end])
        ):
            last_gop = int(gops[end])
            end += 1
        runs.append(
            Run(
                first=int(keys[first_gop]),
                stop=int(wanted[begin:end].max()) + 1,
                first_sample=begin,
                stop_sample=end,
            )
        )
        begin = end
    return Schedule(samples=samples, ticks=ticks, seconds=seconds, runs=tuple(runs))


def _next_key(is_key: npt.NDArray[np.bool_], index: int) -> int:
    later = np.flatnonzero(is_key[index + 1 :])
    return index + 1 + int(later[0]) if len(later) else len(is_key)
