"""Alignment of two sequences of frame vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.aligning import LEAST_FRAMES, Sequence, align, count_distinct

LEAST = 0.6
seeds = st.integers(0, 10_000)


def sequence(vectors, *, start: float = 0.0, step: float = 0.5) -> Sequence:
    vectors = np.asarray(vectors, dtype=np.float32)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    times = start + step * np.arange(len(vectors))
    return Sequence(vectors=vectors, times=times, step_seconds=step)


def draw(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 64))


@given(seed=seeds, begin=st.integers(0, 14), count=st.integers(4, 10), start=st.floats(-99, 99))
def test_the_shift_of_a_cut_out_piece_is_found(seed, begin, count, start):
    whole = draw(seed, 24)
    noise = 0.2 * draw(seed + 1, count)
    found = align(
        sequence(whole[begin : begin + count] + noise, start=start),
        sequence(whole),
        least_score=LEAST,
    )
    assert found is not None
    assert (found.first_b, found.last_b) == (begin, begin + count - 1)
    assert (found.first_a, found.last_a) == (0, count - 1)
    assert found.rate == 1
    assert found.score > 0.9


@given(seed=seeds, shift=st.integers(-4, 4))
def test_it_does_not_matter_which_comes_first(seed, shift):
    whole = draw(seed, 20)
    a, b = sequence(whole[4:16]), sequence(whole[4 + shift : 14 + shift])
    found, turned = align(a, b, least_score=LEAST), align(b, a, least_score=LEAST)
    assert found is not None
    assert turned == found.turned


@given(
    seed=seeds,
    shift=st.integers(-4, 4),
    phase=st.floats(0, 0.5),
    moved=st.floats(-1e5, 1e5),
    cut=st.integers(1, 11),
    speed=st.sampled_from([1, 2]),
)
def test_where_the_clocks_begin_does_not_matter(seed, shift, phase, moved, cut, speed):
    whole = draw(seed, 32)
    a = sequence(whole[4:16] + 0.2 * draw(seed + 1, 12))
    a.times[cut:] += 2.0  # black clips are left out
    b = sequence(whole[4 + shift : 28 + shift : speed], start=phase)
    found = align(a, b, least_score=LEAST)
    again = align(replace(a, times=a.times + moved), b, least_score=LEAST)
    assert again == found
    turned = align(b, a, least_score=LEAST)
    assert turned == (None if found is None else found.turned)


def test_equal_frames_at_other_times_are_the_same_either_way():
    one = sequence(draw(9, 12))
    other = replace(one, times=one.times + np.where(np.arange(12) < 5, 0.0, 1.5))
    found, turned = align(one, other, least_score=0.3), align(other, one, least_score=0.3)
    assert found is not None
    assert turned == found.turned


def test_what_begins_as_the_other_ends_is_none_of_the_overlap():
    whole = draw(8, 20)
    a, b = sequence(whole[6:18]), sequence(whole[:13])
    found = align(a, b, least_score=LEAST)
    assert found is not None
    assert (found.first_a, found.last_a, found.first_b, found.last_b) == (0, 6, 6, 12)
    assert found.score > 0.999


@given(seed=seeds)
def test_twice_the_speed(seed):
    whole = draw(seed, 20)
    found = align(sequence(whole[::2]), sequence(whole), least_score=LEAST)
    assert found is not None
    assert found.rate == 2
    assert (found.first_a, found.last_a, found.first_b, found.last_b) == (0, 9, 0, 18)


@given(seed=seeds)
def test_strangers_have_nothing_in_common(seed):
    assert align(sequence(draw(seed, 12)), sequence(draw(seed + 1, 15)), least_score=LEAST) is None


def test_a_short_overlap_does_not_count():
    whole = draw(3, 24)
    a, b = sequence(whole[:12]), sequence(whole[8:20])  # a third
    assert align(a, b, least_score=LEAST) is None


def test_too_few_frames():
    whole = draw(4, LEAST_FRAMES - 1)
    assert align(sequence(whole), sequence(whole), least_score=LEAST) is None


def test_a_sample_between_two_is_like_one_of_them():
    smooth = np.repeat(draw(5, 12), 2, axis=0)  # twice as many samples as are kept
    found = align(sequence(smooth[1::2], start=0.25), sequence(smooth[::2]), least_score=LEAST)
    assert found is not None
    assert found.score > 0.999


def test_what_stands_still_is_one_distinct_frame():
    still = np.repeat(draw(6, 1), 10, axis=0)
    found = align(sequence(still), sequence(still), least_score=LEAST)
    assert found is not None
    assert found.num_distinct == 1
    assert count_distinct(sequence(draw(7, 8)).vectors, enough=5) == 5
