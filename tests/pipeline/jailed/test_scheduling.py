"""Runs, segments and due frames over random tables of packets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.jailed import scheduling
from pipeline.jailed.packets import NO_TIME, PacketTable
from pipeline.jailed.scheduling import NotSelectable, Schedule, check_selectable, schedule_runs
from pipeline.sampling import SampledFrame, TimedFrame, Window, choose_samples, sample_in_order

RATES = (0.5, 1.0, 2.0, 3.7, 12.5, 30000 / 1001, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Video:
    """A table of packets, and what the standards say of them."""

    table: PacketTable
    gops: tuple[int, ...]
    """Of each packet, counted from 0."""
    is_leading: tuple[bool, ...]

    @property
    def keys(self) -> list[int]:
        return [number for number, key in enumerate(self.table.is_key) if key]

    @property
    def display_order(self) -> list[int]:
        shown = (n for n in range(len(self.table)) if self.table.is_shown[n])
        return sorted(shown, key=lambda n: self.table.pts[n])

    def needed(self, packet: int) -> range:
        """Packets from which a frame may be made: from a key frame on up to its own."""
        gop = self.gops[packet] - self.is_leading[packet]
        return range(self.keys[gop], packet + 1)

    def frames(self) -> list[TimedFrame]:
        """All that are shown, as decoding all gives them; the picture is the packet's number."""
        time_base = self.table.time_base
        return [
            TimedFrame(
                seconds=float(self.table.pts[n] * time_base),
                duration_seconds=float(self.table.durations[n] * time_base),
                frame=n,
            )
            for n in self.display_order
        ]


@st.composite
def videos(draw: st.DrawFn) -> Video:
    """GOPs open and closed, frames in any order within, hidden ones, times of any rate."""
    time_base = draw(st.sampled_from([Fraction(1, 90000), Fraction(1, 25)]))
    longest = draw(st.sampled_from([1, 3, int(2 / time_base)]))
    sizes = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), min_size=1, max_size=6))
    num_hidden = draw(st.sampled_from([0, 0, 1, 5]))
    random = Random(draw(st.integers(0, 2**32)))  # shrinks badly, and is quick
    table = PacketTable(time_base=time_base, container="mov")
    gops: list[int] = []
    leading: list[bool] = []
    pts: list[int] = []
    now = random.randint(-200, 200)
    for gop, (num_leading, num_trailing) in enumerate(sizes):
        num_before = num_leading if gop else 0
        times = []
        for _ in range(num_before + 1 + num_trailing):
            now += random.randint(1, longest)
            times.append(now)
        before, key, after = times[:num_before], times[num_before], times[num_before + 1 :]
        random.shuffle(before)
        random.shuffle(after)
        pts += [key, *before, *after]
        gops += [gop] * len(times)
        leading += [False] + [True] * num_before + [False] * num_trailing
    hidden = random.sample(range(len(pts)), min(num_hidden, len(pts) - 1))
    lasting = random.randint(0, longest)
    for number, time in enumerate(pts):
        table.pts.append(time)
        table.dts.append(NO_TIME)
        table.durations.append(lasting)
        table.sizes.append(1)
        table.is_key.append(number == 0 or gops[number] != gops[number - 1])
        table.is_shown.append(number not in hidden)
    return Video(table=table, gops=tuple(gops), is_leading=tuple(leading))


@st.composite
def windows(draw: st.DrawFn) -> Window:
    first_k = draw(st.just(0) | st.integers(0, 6))
    start = draw(st.none() | st.floats(-3, 5))
    return Window(
        fps=draw(st.sampled_from(RATES)),
        start_seconds=start,
        end_seconds=draw(st.none() | st.floats(0.01, 8)) if start is None else start + 1.5,
        first_k=first_k,
        stop_k=draw(st.none() | st.integers(first_k + 1, first_k + 8)),
    )


def scheduled(video: Video, window: Window) -> Schedule:
    check_selectable(video.table, codec="h264")
    try:
        return schedule_runs(video.table, window)
    except NotSelectable as error:
        assert str(error) == "no sample in the window"
        assert collect(video.frames(), window)[0] == []
        assume(False)
        raise


def collect(frames: list[TimedFrame], window: Window) -> tuple[list[SampledFrame[int]], float]:
    sampled = sample_in_order(frames, window=window, convert=int)
    samples = []
    while True:
        try:
            samples.append(next(sampled))
        except StopIteration as stop:
            return samples, stop.value


@given(videos(), windows())
def test_runs_hold_what_their_frames_are_made_from_and_nothing_after(
    video: Video, window: Window
) -> None:
    schedule = scheduled(video, window)
    for run in schedule.runs:
        assert video.table.is_key[run.first]
        due = [video.display_order[rank] for rank in schedule.due[run.first_due : run.stop_due]]
        for packet in due:
            needed = video.needed(packet)
            assert run.first <= needed.start
            assert needed.stop <= run.stop
        assert max(due) == run.stop - 1
        assert any(video.needed(packet).start == run.first for packet in due)
    for before, after in itertools.pairwise(schedule.runs):
        assert before.stop <= after.first
        assert before.stop_due == after.first_due
        assert before.stop_sample == after.first_sample
    assert (schedule.runs[0].first_due, schedule.runs[0].first_sample) == (0, 0)
    last = schedule.runs[-1]
    assert (last.stop_due, last.stop_sample) == (len(schedule.due), len(schedule.samples.ks))
    assert (np.diff(schedule.due) > 0).all()
    for run in schedule.runs:
        ranks = schedule.samples.ranks[run.first_sample : run.stop_sample]
        assert set(ranks) <= set(schedule.due[run.first_due : run.stop_due])


@given(videos(), windows(), st.integers(1, 20), st.integers(1, 4))
def test_segments_are_all_runs_in_order_and_each_has_samples(
    video: Video, window: Window, least: int, num_parts: int
) -> None:
    schedule = scheduled(video, window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduling, "SEGMENT_PACKETS", least)
        segments = schedule.segments()
    assert list(itertools.chain(*segments)) == list(schedule.runs)
    for segment in segments:
        assert segment[0].first_sample < segment[-1].stop_sample
    for segment in segments[:-1]:
        assert sum(run.stop - run.first for run in segment) >= least
    parts = [segments[part::num_parts] for part in range(num_parts)]
    ks = [
        range(run.first_sample, run.stop_sample)
        for run in itertools.chain(*itertools.chain(*parts))
    ]
    assert sorted(itertools.chain(*ks)) == list(range(len(schedule.samples.ks)))


@given(videos(), windows())
def test_samples_are_those_of_decoding_all(video: Video, window: Window) -> None:
    schedule = scheduled(video, window)
    frames = video.frames()
    expected, end_seconds = collect(frames, window)
    samples = schedule.samples
    packets = [video.display_order[rank] for rank in samples.ranks]
    assert list(samples.ks) == [sample.k for sample in expected]
    assert packets == [sample.picture for sample in expected]
    assert samples.grid_seconds.tolist() == [sample.grid_seconds for sample in expected]
    assert samples.display_seconds.tolist() == [[s.start_seconds, s.end_seconds] for s in expected]
    assert samples.end_seconds == end_seconds
    times = np.array([frame.seconds for frame in frames])
    assert schedule.seconds.tolist() == times.tolist()
    chosen = choose_samples(times, duration_seconds=frames[-1].duration_seconds, window=window)
    assert samples.ranks.tolist() == chosen.ranks.tolist()


@given(videos(), windows())
def test_no_frame_that_is_not_due_decides_about_a_time(video: Video, window: Window) -> None:
    """Frames may be missing where a file is damaged: if the due ones come, nothing changes.

    But for the end of display of a sample that is not the last one of its GOP.
    """
    schedule = scheduled(video, window)
    frames = video.frames()
    left = [frames[rank] for rank in schedule.due]
    found, end = collect(left, window)
    expected, expected_end = collect(frames, window)
    assert end == expected_end
    gops = [video.gops[sample.picture] for sample in expected]
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        is_last = i + 1 == len(gops) or gops[i] != gops[i + 1]
        assert one == (other if is_last else replace(other, end_seconds=one.end_seconds))


@pytest.mark.parametrize("first", [Window(fps=1, stop_k=2), Window(fps=1, end_seconds=1.5)])
def test_nothing_beyond_a_window_is_due(first: Window) -> None:
    """But for the one frame that shows that the video goes on."""
    table = table_of(list(range(100)), keys={0, 40, 80})
    end = 50 if first.stop_k else 38
    assert schedule_runs(table, first).due.tolist() == [0, 25, 26, end]
    later = Window(fps=1, first_k=2)
    assert schedule_runs(table, later).due.tolist() == [0, 50, 75, 76, 99]
    assert [(r.first, r.stop) for r in schedule_runs(table, later).runs] == [
        *((0, 1), (40, 77), (80, 100))
    ]


def table_of(pts: list[int], *, keys: set[int], hidden: set[int] | None = None) -> PacketTable:
    table = PacketTable(time_base=Fraction(1, 25), container="matroska,webm")
    for number, time in enumerate(pts):
        table.pts.append(time)
        table.dts.append(number)
        table.durations.append(1)
        table.sizes.append(1)
        table.is_key.append(number in keys)
        table.is_shown.append(number not in (hidden or set()))
    return table


@pytest.mark.parametrize(
    ("pts", "keys", "hidden", "why"),
    [
        ([], set(), set(), "packets without a time"),
        ([0, NO_TIME], {0}, set(), "packets without a time"),
        ([0, 1, 2], {1}, set(), "the first packet is no key frame"),
        ([0, 1], {0}, {0, 1}, "no frame is shown"),
        ([2, 0, 1, 3], {0}, set(), "frames ahead of the first key frame"),
        ([0, 1, 1, 2], {0}, set(), "two packets have the same time"),
        ([0, 1, 9, 3, 4], {0, 3}, set(), "GOPs are not displayed in the order of decoding"),
        ([5, 6, 7, 1, 2], {0, 3}, set(), "GOPs are not displayed in the order of decoding"),
        ([0, 3, 1, 8, 9, 6], {0, 3}, set(), "ahead of a key frame"),
        ([0, 3, 1, 8, -99, 9], {0, 3}, {4}, "ahead of a key frame"),
    ],
)
def test_tables_that_cannot_be_trusted(
    pts: list[int], keys: set[int], hidden: set[int], why: str
) -> None:
    with pytest.raises(NotSelectable, match=why):
        check_selectable(table_of(pts, keys=keys, hidden=hidden), codec="h264")


@pytest.mark.parametrize(
    ("pts", "keys", "hidden"),
    [
        ([0], {0}, set()),
        ([0, 2, 1, 5, 3, 4, 7, 6], {0, 3}, set()),
        ([2, 0, 1, 3], {0}, {1, 2}),  # an edit list hides what is ahead
        ([0, 2, 1, 3], {0}, {0, 2}),
    ],
)
def test_tables_that_can_be_trusted(pts: list[int], keys: set[int], hidden: set[int]) -> None:
    check_selectable(table_of(pts, keys=keys, hidden=hidden), codec="h264")


def test_damage_and_codecs_and_containers_that_cannot_be_selected() -> None:
    table = table_of([0, 1], keys={0})
    with pytest.raises(NotSelectable, match="codec vp8"):
        check_selectable(table, codec="vp8")
    table.num_corrupt = 1
    with pytest.raises(NotSelectable, match="damaged packets"):
        check_selectable(table, codec="h264")
    table.num_corrupt, table.reading_failed = 0, True
    with pytest.raises(NotSelectable, match="damaged packets"):
        check_selectable(table, codec="h264")
    table.reading_failed, table.container = False, "avi"
    with pytest.raises(NotSelectable, match="no times of display"):
        check_selectable(table, codec="h264")
