"""Grid and displayed_indices against the rule of docs, written out as a loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.timeline import (
    TOLERANCE_SECONDS,
    Grid,
    clip_windows,
    display_ranges,
    displayed_indices,
    num_clips,
    windows_per_clip,
)

ORIGINS = st.sampled_from([0.0, -3.2, 0.083333, 1 / 3, 47721.858444, -47721.1, 1e7 + 1 / 7])
RATES = st.one_of(
    st.sampled_from([0.5, 1.0, 2.0, 4.0, 24.0, 30000 / 1001, 1 / 3, 12.5]),
    st.floats(min_value=0.2, max_value=60.0),
)
JITTER = st.sampled_from(
    [0.0, 0.0, 5e-7, -5e-7, 9e-7, -9e-7, 1e-6, -1e-6, 1.5e-6, -1.5e-6, 0.01, -0.01]
)


def grid_times(*, origin: float, fps: float, end: float | None, last: float) -> list[float]:
    times: list[float] = []
    while True:
        time = origin + len(times) / fps
        if time > last + 1e-6 or (end is not None and time >= end):
            return times
        times.append(time)


@st.composite
def videos(draw):
    """(times, grid): frames at, just before and just after grid times, and elsewhere."""
    first, fps = draw(ORIGINS), draw(RATES)
    steps = draw(st.lists(st.tuples(st.integers(0, 12), JITTER), min_size=0, max_size=30))
    others = draw(st.lists(st.floats(min_value=0.0, max_value=12 / fps), max_size=20))
    offsets = [k / fps + jitter for k, jitter in steps] + others
    times = sorted({first, *(first + offset for offset in offsets if offset > 0)})
    start = draw(st.none() | st.floats(min_value=-2.0, max_value=14.0).map(lambda s: first + s))
    end = draw(st.none() | st.floats(min_value=-2.0, max_value=14.0).map(lambda s: first + s))
    grid = Grid.of(first_seconds=first, fps=fps, start_seconds=start, end_seconds=end)
    return times, grid


@given(origin=ORIGINS, fps=RATES, length=st.floats(-1.0, 30.0), end=st.none() | st.floats(-1, 31))
def test_number_of_samples_is_the_number_of_grid_times_up_to_the_last_frame(
    origin, fps, length, end
):
    end = None if end is None else origin + end
    last = origin + length
    expected = grid_times(origin=origin, fps=fps, end=end, last=last)
    assert Grid(origin_seconds=origin, fps=fps, end_seconds=end).num_samples(last) == len(expected)


@given(origin=ORIGINS, fps=RATES, k=st.integers(0, 500_000), jitter=JITTER)
def test_last_frame_at_a_grid_time_is_a_sample_however_it_is_rounded(origin, fps, k, jitter):
    grid = Grid(origin_seconds=origin, fps=fps)
    last = grid.time(k) + jitter
    count = grid.num_samples(last)
    assert grid.time(count - 1) <= last + TOLERANCE_SECONDS < grid.time(count)


@given(video=videos())
def test_frame_displayed_is_the_latest_one_up_to_the_grid_time(video):
    times, grid = video
    expected = []
    for tick in grid_times(
        origin=grid.origin_seconds, fps=grid.fps, end=grid.end_seconds, last=times[-1]
    ):
        expected.append(max(i for i, time in enumerate(times) if time <= tick + 1e-6))
    assert displayed_indices(times, grid).tolist() == expected


@given(video=videos())
def test_no_frame_of_a_span_is_sampled_outside_it(video):
    times, grid = video
    for k, index in enumerate(displayed_indices(times, grid)):
        assert grid.end_seconds is None or grid.time(k) < grid.end_seconds
        shown_until = times[index + 1] if index + 1 < len(times) else np.inf
        assert times[index] <= grid.time(k) + TOLERANCE_SECONDS < shown_until


@pytest.mark.parametrize(
    ("late_seconds", "expected"), [(0.0, 1), (0.9e-6, 1), (1.5e-6, 0), (0.01, 0)]
)
@pytest.mark.parametrize("first", [0.0, 47721.0, -8.0])
def test_a_frame_up_to_a_microsecond_late_counts_as_on_time(late_seconds, expected, first):
    times = [first, first + 1.0 + late_seconds, first + 1.25]
    grid = Grid.of(first_seconds=first, fps=1.0)
    assert displayed_indices(times, grid)[1] == expected


@pytest.mark.parametrize("fps", [30000 / 1001, 24000 / 1001, 60.0, 25.0, 29.97])
@pytest.mark.parametrize("first", [0.0, 47721.858444])
def test_sampling_at_the_videos_own_rate_takes_every_frame_once(fps, first):
    times = np.round((first + np.arange(20_000) / fps) * 1e6) / 1e6
    indices = displayed_indices(times, Grid.of(first_seconds=times[0], fps=fps))
    assert np.array_equal(indices, np.arange(20_000))


def test_a_lower_rate_takes_the_frame_on_display_and_not_the_nearest():
    times = np.arange(26) / 25
    assert displayed_indices(times, Grid.of(first_seconds=0.0, fps=4.0)).tolist() == [
        0, 6, 12, 18, 25,
    ]  # fmt: skip


def test_a_frame_that_is_shown_long_is_sampled_again_and_again():
    grid = Grid.of(first_seconds=0.0, fps=2.0)
    assert displayed_indices([0.0, 0.1, 2.0], grid).tolist() == [0, 1, 1, 1, 2]


def test_the_grid_of_a_span_begins_at_its_start():
    grid = Grid.of(first_seconds=0.0, fps=1.0, start_seconds=0.75, end_seconds=2.75)
    times = np.arange(101) / 25
    assert [times[i] for i in displayed_indices(times, grid)] == [0.72, 1.72]


def test_a_span_that_begins_before_the_video_begins_with_it():
    assert Grid.of(first_seconds=5.0, fps=1.0, start_seconds=1.0).origin_seconds == 5.0


def test_the_end_of_a_span_is_excluded():
    grid = Grid.of(first_seconds=0.0, fps=1.0, end_seconds=2.0)
    assert displayed_indices([0.0, 1.0, 2.0, 3.0], grid).tolist() == [0, 1]


def test_a_span_beyond_the_video_has_no_sample():
    grid = Grid.of(first_seconds=0.0, fps=1.0, start_seconds=10.0)
    assert grid.num_samples(9.0) == 0
    assert displayed_indices([0.0, 9.0], grid).shape == (0,)


def test_no_frames_no_samples():
    indices = displayed_indices([], Grid.of(first_seconds=0.0, fps=1.0))
    assert indices.shape == (0,)
    assert indices.dtype == np.int64


@given(num_samples=st.integers(0, 10_000), frames_per_clip=st.integers(1, 64))
def test_clips_hold_all_samples_and_only_the_last_is_filled(num_samples, frames_per_clip):
    count = num_clips(num_samples, frames_per_clip)
    assert 0 <= count * frames_per_clip - num_samples < frames_per_clip


@given(video=videos(), last_duration=st.floats(0.001, 10.0))
def test_ranges_of_display_tile_the_video_without_gap_or_overlap(video, last_duration):
    times, _ = video
    ranges = display_ranges(times, last_duration_seconds=last_duration)
    assert ranges.shape == (len(times), 2)
    assert ranges.dtype == np.float64
    assert ranges[:, 0].tolist() == times
    assert np.array_equal(ranges[1:, 0], ranges[:-1, 1])
    assert ranges[-1, 1] == times[-1] + last_duration


def test_no_frames_no_ranges():
    assert display_ranges([], last_duration_seconds=1.0).shape == (0, 2)


@given(fps=RATES, frames_per_clip=st.integers(1, 64), num=st.integers(1, 200))
def test_windows_of_sound_belong_to_the_clip_in_which_they_begin(fps, frames_per_clip, num):
    sampling = {"fps": fps, "frames_per_clip": frames_per_clip}
    room = windows_per_clip(**sampling)
    seconds = frames_per_clip / fps
    windows = [clip_windows(index, **sampling) for index in range(num)]
    assert [k for some in windows for k in some] == list(range(windows[-1].stop))
    for index, some in enumerate(windows):
        assert len(some) <= room
        for k in some:
            assert index * seconds <= k * (1 + 2e-6)
            assert k <= (index + 1) * seconds * (1 + 2e-6)


@pytest.mark.parametrize(
    ("fps", "frames_per_clip", "room", "first_windows"),
    [
        (2.0, 4, 2, [range(2), range(2, 4), range(4, 6)]),
        (8.0, 4, 1, [range(1), range(1, 1), range(1, 2)]),
        (30000 / 1001, 30, 2, [range(2), range(2, 3), range(3, 4)]),
        (1 / 3, 1, 3, [range(3), range(3, 6), range(6, 9)]),
        (0.3, 3, 10, [range(10), range(10, 20), range(20, 30)]),
        (29.97, 2997, 100, [range(100), range(100, 200), range(200, 300)]),
        (2.0**-24, 1, 2**24, [range(2**24)]),
    ],
)
def test_windows_of_known_rates(fps, frames_per_clip, room, first_windows):
    sampling = {"fps": fps, "frames_per_clip": frames_per_clip}
    assert windows_per_clip(**sampling) == room
    assert [clip_windows(i, **sampling) for i in range(len(first_windows))] == first_windows
