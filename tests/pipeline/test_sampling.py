"""The samplers against the rule in `schemas.timeline`, over random times, rates, spans, windows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipeline.sampling import (
    PictureClip,
    Sampled,
    SampledFrame,
    TimedFrame,
    TimesGoBack,
    Window,
    assemble_clips,
    last_duration,
    sample_any_order,
    sample_in_order,
)
from schemas.timeline import Grid, display_ranges, displayed_indices, num_clips

RATES = (0.5, 1.0, 2.0, 3.7, 12.5, 24000 / 1001, 30000 / 1001, 60.0)
TICKS = (1 / 90000, 1 / 30000, 1 / 1000, 1 / 600, 1001 / 30000, 1 / 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A video as the samplers see it; the picture of a frame is its number in order of time."""

    times: tuple[float, ...]
    last_own_duration: float
    fps: float
    start: float | None = None
    end: float | None = None

    @property
    def frames(self) -> list[TimedFrame]:
        last = len(self.times) - 1
        return [
            TimedFrame(
                seconds=time,
                duration_seconds=self.last_own_duration if number == last else 0.123,
                frame=number,
            )
            for number, time in enumerate(self.times)
        ]

    @property
    def grid(self) -> Grid:
        return Grid.of(
            first_seconds=self.times[0],
            fps=self.fps,
            start_seconds=self.start,
            end_seconds=self.end,
        )

    @property
    def end_seconds(self) -> float:
        """Where the video or its span ends."""
        interval = self.times[-1] - self.times[-2] if len(self.times) > 1 else 0.0
        end = self.times[-1] + last_duration(self.last_own_duration, interval, self.fps)
        return end if self.end is None else min(end, self.end)

    def window(self, *, first_k: int = 0, stop_k: int | None = None) -> Window:
        return Window(
            fps=self.fps,
            start_seconds=self.start,
            end_seconds=self.end,
            first_k=first_k,
            stop_k=stop_k,
        )

    def in_order(self, *, first_k: int = 0, stop_k: int | None = None) -> Sampled[int]:
        window = self.window(first_k=first_k, stop_k=stop_k)
        return sample_in_order(self.frames, window=window, convert=int)

    def any_order(
        self,
        *,
        first_k: int = 0,
        stop_k: int | None = None,
        order: Sequence[int] | None = None,
    ) -> Sampled[int]:
        frames = self.frames if order is None else [self.frames[number] for number in order]
        window = self.window(first_k=first_k, stop_k=stop_k)
        return sample_any_order(lambda: frames, window=window, convert=int)

    def expected(self) -> list[SampledFrame[int]]:
        """The samples by the reference functions, which see all times at once."""
        interval = self.times[-1] - self.times[-2] if len(self.times) > 1 else 0.0
        duration = last_duration(self.last_own_duration, interval, self.fps)
        ranges = display_ranges(self.times, last_duration_seconds=duration)
        return [
            SampledFrame(
                k=k,
                grid_seconds=self.grid.time(k),
                start_seconds=float(ranges[index, 0]),
                end_seconds=float(ranges[index, 1]),
                picture=int(index),
            )
            for k, index in enumerate(displayed_indices(self.times, self.grid))
        ]


@st.composite
def cases(draw: st.DrawFn, *, min_frames: int = 1, spans: bool = True) -> Case:
    """Times that do not go back, on a container's ticks; neighbours may be equal."""
    tick = draw(st.sampled_from(TICKS))
    fps = draw(st.sampled_from(RATES) | st.floats(0.1, 60.0))
    # Intervals from a fraction of the grid's to several of it.
    most = max(2, int(5 / fps / tick))
    intervals = draw(st.lists(st.integers(0, most), min_size=min_frames - 1, max_size=30))
    begin = draw(st.integers(-10 * most, 10 * most))
    times = tuple(tick * ticks for ticks in itertools.accumulate(intervals, initial=begin))
    start = end = None
    if spans:
        length = times[-1] - times[0]
        start = draw(st.none() | st.floats(times[0] - 1, times[-1] + length + 1))
        first = times[0] - 1 if start is None else start
        end = draw(st.none() | st.floats(0.001, length + 2).map(lambda d: first + d))
        # Ends where a frame or a grid time is are the interesting ones.
        end = draw(st.just(end) | st.sampled_from(times)) if end is not None else None
        assume(start is None or end is None or start < end)
    return Case(
        times=times,
        last_own_duration=draw(st.sampled_from((0.0, tick, 0.04))),
        fps=fps,
        start=start,
        end=end,
    )


def finish(samples: Sampled[int]) -> tuple[list[SampledFrame[int]], float]:
    """(all samples, where the last one ends)."""
    found = []
    while True:
        try:
            found.append(next(samples))
        except StopIteration as stop:
            return found, stop.value


def regular(fps: float, *, count: int, first: float = 0.0) -> tuple[float, ...]:
    return tuple(first + number / fps for number in range(count))


@given(cases())
def test_in_order_agrees_with_the_rule(case: Case) -> None:
    samples, _ = finish(case.in_order())
    assert samples == case.expected()


@given(cases(), st.randoms(use_true_random=False))
def test_any_order_agrees_with_the_rule(case: Case, random: object) -> None:
    assume(len(set(case.times)) == len(case.times))
    order = list(range(len(case.times)))
    random.shuffle(order)  # type: ignore[attr-defined]
    samples, _ = finish(case.any_order(order=order))
    assert samples == case.expected()


@given(cases())
@example(Case(times=(0.0, 0.95), last_own_duration=0.04, fps=1.0, end=1.0))
@example(Case(times=regular(25, count=248), last_own_duration=0.04, fps=1.0, end=10.0))
def test_both_end_with_the_video_or_the_span(case: Case) -> None:

    assume(case.expected())
    assert finish(case.any_order())[1] == case.end_seconds
    assert finish(case.in_order())[1] == case.end_seconds


@given(cases(), st.integers(1, 5))
def test_clips_tile_the_video(case: Case, frames_per_clip: int) -> None:
    clips = list(assemble_clips(case.in_order(), frames_per_clip=frames_per_clip))
    expected = case.expected()
    assert len(clips) == num_clips(len(expected), frames_per_clip)
    assert [clip.clip_index for clip in clips] == list(range(len(clips)))
    real = [sample for clip in clips for sample in clip.samples[: clip.num_frames]]
    assert real == expected
    for before, after in itertools.pairwise(clips):
        assert before.end_seconds == after.start_seconds
    for clip in clips:
        assert clip.start_seconds == clip.samples[0].grid_seconds
        assert clip.start_seconds < clip.end_seconds
    if clips:
        assert clips[0].start_seconds == case.grid.origin_seconds


@given(cases(), st.integers(1, 5))
def test_only_the_last_clip_is_filled(case: Case, frames_per_clip: int) -> None:
    clips = list(assemble_clips(case.in_order(), frames_per_clip=frames_per_clip))
    assume(clips)
    assert all(len(clip.samples) == frames_per_clip for clip in clips)
    assert all(clip.num_frames == frames_per_clip for clip in clips[:-1])
    last = clips[-1]
    assert last.num_frames == (len(case.expected()) - 1) % frames_per_clip + 1
    fill = last.samples[last.num_frames :]
    assert fill == [last.samples[last.num_frames - 1]] * (frames_per_clip - last.num_frames)


@given(cases(), st.integers(1, 4), st.data())
def test_a_piece_is_a_slice_of_the_whole(
    case: Case, frames_per_clip: int, data: st.DataObject
) -> None:
    whole = list(assemble_clips(case.in_order(), frames_per_clip=frames_per_clip))
    assume(whole)
    first = data.draw(st.integers(0, len(whole) - 1), label="first clip")
    stop = data.draw(st.integers(first + 1, len(whole)), label="stop clip")
    limits = {
        "first_k": first * frames_per_clip,
        "stop_k": None if stop == len(whole) else stop * frames_per_clip,
    }
    for samples in (case.in_order(**limits), case.any_order(**limits)):
        piece = list(assemble_clips(samples, frames_per_clip=frames_per_clip))
        assert piece == whole[first:stop]


@given(cases(spans=False), st.integers(1, 4), st.data())
def test_a_piece_that_promises_too_much_ends_with_the_video(
    case: Case, frames_per_clip: int, data: st.DataObject
) -> None:

    whole = list(assemble_clips(case.in_order(), frames_per_clip=frames_per_clip))
    stop = data.draw(st.integers(len(whole), len(whole) + 2), label="stop clip")
    for sample in (case.in_order, case.any_order):
        samples = sample(stop_k=stop * frames_per_clip)
        assert list(assemble_clips(samples, frames_per_clip=frames_per_clip)) == whole


@given(cases(min_frames=2))
def test_one_pass_keeps_one_frame(case: Case) -> None:
    """No picture is made of a frame that is not shown, none is made twice."""
    made: list[int] = []

    def convert(number: int) -> int:
        made.append(number)
        return number

    finish(sample_in_order(case.frames, window=case.window(), convert=convert))
    assert made == sorted({sample.picture for sample in case.expected()})


@pytest.mark.parametrize("late", [0.0, 0.9e-6, -1e-9])
def test_a_frame_just_after_the_grid_time_is_shown_then(late: float) -> None:
    case = Case(times=(0.0, 0.5 + late, 0.9), last_own_duration=0.1, fps=2.0)
    assert [sample.picture for sample in finish(case.in_order())[0]] == [0, 1]
    assert [sample.picture for sample in finish(case.any_order())[0]] == [0, 1]


def test_a_frame_clearly_after_the_grid_time_is_not_shown_then() -> None:
    case = Case(times=(0.0, 0.5 + 1.1e-6, 0.9), last_own_duration=0.1, fps=2.0)
    assert [sample.picture for sample in finish(case.in_order())[0]] == [0, 0]
    assert [sample.picture for sample in finish(case.any_order())[0]] == [0, 0]


def test_the_last_frame_just_before_a_grid_time_is_not_lost() -> None:
    case = Case(times=(0.0, 1 - 0.9e-6), last_own_duration=0.04, fps=1.0)
    assert [sample.picture for sample in finish(case.in_order())[0]] == [0, 1]
    assert [sample.picture for sample in finish(case.any_order())[0]] == [0, 1]


def test_of_frames_at_the_same_time_the_later_is_shown() -> None:
    case = Case(times=(0.0, 0.5, 0.5, 0.5, 0.7), last_own_duration=0.1, fps=2.0)
    samples, end = finish(case.in_order())
    assert [(s.picture, s.start_seconds, s.end_seconds) for s in samples] == [
        (0, 0.0, 0.5),
        (3, 0.5, 0.7),
    ]
    assert samples == finish(case.any_order())[0]
    assert end == pytest.approx(0.8)


def test_a_frozen_picture_is_sampled_again_and_again() -> None:
    case = Case(times=(0.0, 0.1, 3.0), last_own_duration=0.04, fps=1.0)
    samples, _ = finish(case.in_order())
    assert [sample.picture for sample in samples] == [0, 1, 1, 2]
    assert [sample.start_seconds for sample in samples] == [0.0, 0.1, 0.1, 3.0]


def test_never_index_times_average_rate() -> None:
    """29.97 frames a second, sampled at one: by and by the frame is no multiple of 30."""
    case = Case(times=regular(30000 / 1001, count=3000), last_own_duration=1001 / 30000, fps=1.0)
    shown = [sample.picture for sample in finish(case.in_order())[0]]
    assert shown == [k * 30000 // 1001 for k in range(101)]
    assert shown[34] == 1018


@pytest.mark.parametrize(
    ("own", "interval", "expected"), [(0.04, 0.5, 0.04), (0.0, 0.5, 0.5), (0.0, 0.0, 0.25)]
)
def test_how_long_the_last_frame_is_shown(own: float, interval: float, expected: float) -> None:
    assert last_duration(own, interval, 4.0) == expected


def test_a_span_begins_at_its_start_with_the_frame_then_on_display() -> None:
    case = Case(times=regular(10, count=50), last_own_duration=0.1, fps=1.0, start=1.25, end=3.3)
    samples, end = finish(case.in_order())
    assert [sample.grid_seconds for sample in samples] == [1.25, 2.25, 3.25]
    assert [sample.picture for sample in samples] == [12, 22, 32]
    assert end == 3.3


def test_a_span_that_begins_before_the_video_begins_with_it() -> None:
    case = Case(times=regular(10, count=20, first=5), last_own_duration=0.1, fps=1.0, start=1.0)
    assert [sample.grid_seconds for sample in finish(case.in_order())[0]] == [5.0, 6.0]


def test_the_end_of_a_span_is_not_in_it() -> None:
    case = Case(times=regular(10, count=50), last_own_duration=0.1, fps=1.0, end=2.0)
    assert [sample.grid_seconds for sample in finish(case.in_order())[0]] == [0.0, 1.0]
    assert [sample.grid_seconds for sample in finish(case.any_order())[0]] == [0.0, 1.0]


@given(cases(min_frames=2, spans=False), st.data())
def test_times_that_go_back_are_noticed(case: Case, data: st.DataObject) -> None:
    assume(case.times[0] < case.times[-1])
    where = data.draw(st.integers(1, len(case.times) - 1), label="where")
    assume(case.times[where - 1] < case.times[where])
    frames = [*case.frames[where:], *case.frames[:where]]
    with pytest.raises(TimesGoBack):
        finish(sample_in_order(frames, window=case.window(), convert=int))


def test_a_window_that_is_full_reads_no_further() -> None:
    def endless() -> object:
        for number in itertools.count():
            assert number < 1000, "read far beyond the window"
            yield TimedFrame(seconds=number / 25, duration_seconds=0.04, frame=number)

    window = Window(fps=2.0, first_k=4, stop_k=8)
    samples, end = finish(sample_in_order(endless(), window=window, convert=int))
    assert [sample.k for sample in samples] == [4, 5, 6, 7]
    assert end == 4.0


def test_no_frames_no_samples() -> None:
    window = Window(fps=2.0)
    assert finish(sample_in_order([], window=window, convert=int)) == ([], 0.0)
    assert finish(sample_any_order(list, window=window, convert=int)) == ([], 0.0)
    assert (
        list(assemble_clips(sample_in_order([], window=window, convert=int), frames_per_clip=4))
        == []
    )


def test_clips_are_given_out_as_soon_as_their_end_is_known() -> None:
    """One sample of look-ahead, so that a long video does not fill the memory."""
    taken: list[int] = []

    def samples() -> Sampled[int]:
        for k in range(20):
            taken.append(k)
            yield SampledFrame(
                k=k, grid_seconds=float(k), start_seconds=float(k), end_seconds=k + 1.0, picture=k
            )
        return 20.0

    clips = assemble_clips(samples(), frames_per_clip=4)
    first: PictureClip[int] = next(clips)
    assert taken == [0, 1, 2, 3, 4]
    assert [sample.k for sample in first.samples] == [0, 1, 2, 3]
    assert (first.start_seconds, first.end_seconds) == (0.0, 4.0)
    assert np.array_equal([clip.clip_index for clip in clips], [1, 2, 3, 4])


def every_frame(case: Case) -> list[SampledFrame[int]]:
    """Those displayed at some time from the span's start on, up to its end."""
    interval = case.times[-1] - case.times[-2] if len(case.times) > 1 else 0.0
    duration = last_duration(case.last_own_duration, interval, case.fps)
    origin, end = case.grid.origin_seconds, case.grid.end_seconds
    if not case.expected():
        return []
    last_before = max(i for i, time in enumerate(case.times) if time <= origin + 1e-6)
    ranges = display_ranges(case.times, last_duration_seconds=duration)
    wanted = [i for i in range(last_before, len(case.times)) if end is None or case.times[i] < end]
    return [
        SampledFrame(
            k=k,
            grid_seconds=max(case.times[i], origin),
            start_seconds=float(ranges[i, 0]),
            end_seconds=float(ranges[i, 1]),
            picture=i,
        )
        for k, i in enumerate(wanted)
    ]


@given(cases())
@example(Case(times=regular(25, count=50), last_own_duration=0.04, fps=2.0, start=0.5, end=1.0))
def test_every_frame_comes_once_in_either_order(case: Case) -> None:
    window = replace(case.window(), every_frame=True)
    in_order, end = finish(sample_in_order(case.frames, window=window, convert=int))
    assert in_order == every_frame(case)
    shuffled, end_of_shuffled = finish(
        sample_any_order(lambda: case.frames, window=window, convert=int)
    )
    assert shuffled == in_order
    if in_order:
        assert end == end_of_shuffled == case.end_seconds
