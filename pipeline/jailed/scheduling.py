"""Which packets have to be decoded for the wanted frames: a pure function of their times.

A run is a stretch of packets that is decoded by itself: it begins at a key frame and ends with the
last due frame before the next run. Nothing outside of runs reaches the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.jailed.packets import NO_TIME, PacketTable
from pipeline.sampling import SampleTimes, Window, choose_samples
from schemas.timeline import TOLERANCE_SECONDS

DISPOSABLE_CODECS = frozenset({"h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4"})
"""Codecs whose decoders here leave out frames that no other frame refers to."""
INTRA_CODECS = frozenset(
    {"mjpeg", "prores", "dnxhd", "jpeg2000", "rawvideo", "huffyuv", "ffvhuff", "utvideo"}
)
"""Codecs of single pictures. Not all: some decoders leave in a damaged picture what was in memory,
which is another frame where others were decoded before (MagicYUV)."""
RUN_CODECS = DISPOSABLE_CODECS | INTRA_CODECS | {"vp9", "av1"}
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
    first_due: int
    stop_due: int
    """The frames it must give: a range of `Schedule.due`."""
    first_sample: int
    stop_sample: int
    """Its samples: a range of `Schedule.samples`, which may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What is decoded, and what for."""

    samples: SampleTimes
    ticks: npt.NDArray[np.int64]
    """(N,) times of all frames that are shown, increasing; `samples.ranks` index it."""
    seconds: npt.NDArray[np.float64]
    """(N,) the same in seconds."""
    due: npt.NDArray[np.int64]
    """(D,) ranks, increasing: the frames of the samples, and those that bound them in time."""
    runs: tuple[Run, ...]

    def segments(self) -> list[list[Run]]:
        """The runs in groups that are worth a process of their own; each has samples."""
        groups: list[list[Run]] = []
        room = 0
        for run in self.runs:
            has_samples = run.first_sample < run.stop_sample
            if not groups or (
                room <= 0 and has_samples and groups[-1][0].first_sample < run.first_sample
            ):
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


def check_selectable(table: PacketTable, *, codec: str) -> None:
    """NotSelectable: the codec or the packets do not allow to choose before decoding."""
    if codec not in RUN_CODECS:
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
    gops = np.cumsum(is_key) - 1
    shown_gops = gops[shown]
    if (np.diff(shown_gops[np.argsort(pts[shown])]) < 0).any():
        raise NotSelectable("GOPs are not displayed in the order of decoding")
    # A run leaves out the frames ahead of its key frame, so they had better be frames that nothing
    # else needs: those come first, and lie between two key frames.
    keys = pts[is_key]
    is_leading = pts < keys[gops]
    is_late = is_leading[1:] & ~is_leading[:-1] & ~is_key[:-1]
    if is_late.any() or (is_leading & (gops > 0) & (pts < keys[gops - 1])).any():
        raise NotSelectable("frames ahead of a key frame are not where they belong")


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
    """The runs for the samples in the window, of a selectable table.

    NotSelectable: there is no sample, and nothing to check on decoding.
    """
    pts = np.frombuffer(table.pts, np.int64)
    display_order, seconds, samples = choose_by_packets(table, window)
    ticks = pts[display_order]
    if not samples.ks:
        raise NotSelectable("no sample in the window")
    has_duration = table.durations[int(display_order[-1])] != 0
    keys = np.flatnonzero(np.frombuffer(table.is_key, np.bool_))
    sample_gops = np.searchsorted(keys, display_order[samples.ranks], side="right")
    due = _due_ranks(samples, sample_gops, seconds, has_duration=has_duration, window=window)
    packets = display_order[due]
    runs: list[Run] = []
    gops = np.searchsorted(keys, packets, side="right") - 1
    is_leading = pts[packets] < pts[keys[gops]]
    # One frame may be several samples, or none.
    first_sample = np.searchsorted(samples.ranks, due, side="left")
    stop_sample = np.searchsorted(samples.ranks, due, side="right")
    begin = 0
    while begin < len(due):
        # Leading frames belong to the run before their key.
        last_gop, end = int(gops[begin]), begin
        first_gop = last_gop - 1 if is_leading[begin] else last_gop
        while end < len(due) and (
            gops[end] == last_gop or (gops[end] == last_gop + 1 and is_leading[end])
        ):
            last_gop = int(gops[end])
            end += 1
        runs.append(
            Run(
                first=int(keys[first_gop]),
                stop=int(packets[begin:end].max()) + 1,
                first_due=begin,
                stop_due=end,
                first_sample=int(first_sample[begin]),
                stop_sample=int(stop_sample[end - 1]),
            )
        )
        begin = end
    return Schedule(samples=samples, ticks=ticks, seconds=seconds, due=due, runs=tuple(runs))


def _due_ranks(
    samples: SampleTimes,
    gops: npt.NDArray[np.int64],
    seconds: npt.NDArray[np.float64],
    *,
    has_duration: bool,
    window: Window,
) -> npt.NDArray[np.int64]:
    # A packet promises a frame, and a damaged one breaks it. So what decides about a time has to be
    # decoded: the frames of the samples; the first frame, from which the grid begins; the one that
    # shows where the video or the window ends; and where a GOP is left, the frame after the last
    # sample. Within a GOP the frames after a sample are looked at anyhow, but for disposable ones.
    last = len(seconds) - 1
    grid = window.grid(float(seconds[0]))
    closing = last
    if grid.end_seconds is not None:
        closing = min(closing, int(np.searchsorted(seconds, grid.end_seconds)))
    if window.stop_k is not None:
        stop = grid.time(window.stop_k) - TOLERANCE_SECONDS
        closing = min(closing, int(np.searchsorted(seconds, stop)))
    before = max(0, last - 1) if closing == last and not has_duration else closing
    is_last = np.append(gops[1:] != gops[:-1], [True])
    after = np.minimum(samples.ranks[is_last] + 1, last)
    ranks = (samples.ranks, after, [0, before, closing])
    ordered = np.sort(np.concatenate(ranks)).astype(np.int64)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def _next_key(is_key: npt.NDArray[np.bool_], index: int) -> int:
    later = np.flatnonzero(is_key[index + 1 :])
    return index + 1 + int(later[0]) if len(later) else len(is_key)
