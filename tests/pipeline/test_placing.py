"""Placing sound on windows, without files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.placing import (
    HELD_WINDOWS,
    JITTER_SECONDS,
    PlacedSound,
    TimedSound,
    drop_leaps,
    place_sound,
)


@st.composite
def placed_sounds(draw: st.DrawFn) -> list[PlacedSound]:
    """Sounds of any place; every sample's value is the number of its sound."""
    places = draw(st.lists(st.tuples(st.integers(-60, 300), st.integers(0, 40)), max_size=12))
    return [
        PlacedSound(position=position, samples=np.full(length, number + 1, np.float32))
        for number, (position, length) in enumerate(places)
    ]


@given(placed_sounds(), st.integers(0, 12), st.integers(0, 12), st.integers(1, 20))
def test_all_sound_is_where_it_belongs(
    sounds: list[PlacedSound], first: int, num: int, rate: int
) -> None:
    windows = range(first, first + num)
    line = np.zeros(1000, np.float32)
    touched = np.zeros(1000, bool)
    for sound in sounds:
        place = np.arange(len(sound.samples)) + sound.position
        line[place[place >= 0]] = sound.samples[place >= 0]
        touched[place[place >= 0]] = True
    got = list(place_sound(iter(sounds), windows=windows, rate=rate, num_held=None))
    assert [window.index for window in got] == list(windows)
    for window in got:
        part = slice(window.index * rate, (window.index + 1) * rate)
        assert window.samples.dtype == np.float32
        np.testing.assert_array_equal(window.samples, line[part])
        assert window.heard == touched[part].any()


@given(placed_sounds(), st.integers(0, 12), st.integers(0, 12), st.integers(1, 20))
def test_held_windows_are_enough_for_sound_that_goes_back_a_little(
    sounds: list[PlacedSound], first: int, num: int, rate: int
) -> None:
    """Streaming gives the same as holding all, while no sound is further behind than is held."""
    windows = range(first, first + num)
    latest, kept = -(10**9), []
    for sound in sounds:
        if sound.position // rate > latest - 4:
            kept.append(sound)
            latest = max(latest, sound.position // rate)
    streamed = list(place_sound(iter(kept), windows=windows, rate=rate, num_held=4))
    held = list(place_sound(iter(kept), windows=windows, rate=rate, num_held=None))
    assert len(streamed) == num
    for one, other in zip(streamed, held, strict=True):
        assert (one.index, one.heard) == (other.index, other.heard)
        np.testing.assert_array_equal(one.samples, other.samples)


@given(placed_sounds(), st.integers(0, 12), st.integers(0, 12), st.integers(1, 20))
def test_streamed_windows_are_a_slice_of_all(
    sounds: list[PlacedSound], first: int, num: int, rate: int
) -> None:
    whole = list(place_sound(iter(sounds), windows=range(25), rate=rate, num_held=3))
    windows = range(first, first + num)
    part = list(place_sound(iter(sounds), windows=windows, rate=rate, num_held=3))
    for one, other in zip(part, whole[first : first + num], strict=True):
        assert (one.index, one.heard) == (other.index, other.heard)
        np.testing.assert_array_equal(one.samples, other.samples)


def test_windows_are_given_out_while_sound_comes() -> None:
    """Memory: no more than the held windows wait, and nothing is read past the last."""
    read = 0

    def endless() -> Iterator[PlacedSound]:
        nonlocal read
        for read in itertools.count():
            yield PlacedSound(position=read * 10, samples=np.ones(10, np.float32))

    windows = place_sound(endless(), windows=range(1000), rate=10, num_held=HELD_WINDOWS)
    for window in windows:
        assert window.heard
        assert read - window.index <= HELD_WINDOWS
    assert read == 999 + HELD_WINDOWS


def test_a_place_years_away_costs_nothing() -> None:
    far = [PlacedSound(position=n * 10**15, samples=np.ones(5, np.float32)) for n in (-1, 1)]
    for num_held in (None, HELD_WINDOWS):
        got = list(place_sound(iter(far), windows=range(3), rate=16000, num_held=num_held))
        assert [window.heard for window in got] == [False] * 3


def timed(*seconds: float) -> list[TimedSound]:
    return [TimedSound(seconds=time, duration_seconds=1, frame=None) for time in seconds]


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ((0, 1, 2), (0, 1, 2)),
        ((0, 1, 1e9, 2, 3), (0, 1, 2, 3)),
        ((1e9, 0, 1), (0, 1)),
        ((0, 1, 100, 101), (0, 1, 100, 101)),
        ((0, 1, 100), (0, 1, 100)),
        ((0, 1, 5, 2, 3), (0, 1, 5, 2, 3)),
        ((20, 21, 0, 1), (20, 21, 0, 1)),
        ((), ()),
    ],
)
def test_one_damaged_time_is_not_believed(
    times: tuple[float, ...], kept: tuple[float, ...]
) -> None:
    num_dropped = 0

    def dropped() -> None:
        nonlocal num_dropped
        num_dropped += 1

    got = [sound.seconds for sound in drop_leaps(timed(*times), dropped=dropped)]
    assert got == list(kept)
    assert num_dropped == len(times) - len(kept)


def test_a_lost_frame_is_longer_than_jitter() -> None:
    assert JITTER_SECONDS < 0.02  # Opus
