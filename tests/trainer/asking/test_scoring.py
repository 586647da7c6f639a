"""Scores beside small sums by hand, and their properties."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.asking.scoring import (
    AccuracyScore,
    GroundingScore,
    is_same_answer,
    normalise,
    parse_letter,
    parse_spans,
    temporal_iou,
    union,
    wilson,
)
from trainer.data.annotation import Span, span_text

TICKS = st.integers(0, 60)
SPANS = st.lists(st.tuples(TICKS, TICKS).map(lambda pair: (min(pair), max(pair))), max_size=5)


def scaled(spans: list[tuple[int, int]]) -> list[Span]:
    return [(start / 10, end / 10) for start, end in spans]


def on_ticks(spans: list[tuple[int, int]]) -> np.ndarray:
    ticks = np.zeros(60, dtype=bool)
    for start, end in spans:
        ticks[start:end] = True
    return ticks


@given(one=SPANS, other=SPANS)
def test_iou_is_that_of_counted_ticks(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    first, second = on_ticks(one), on_ticks(other)
    both, either = int((first & second).sum()), int((first | second).sum())
    found = temporal_iou(scaled(one), scaled(other))
    assert found == pytest.approx(both / either if either else 0.0, abs=1e-9)
    assert found == pytest.approx(temporal_iou(scaled(other), scaled(one)), abs=1e-12)
    merged = union(scaled(one))
    assert sum(end - start for start, end in merged) == pytest.approx(first.sum() / 10)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(merged))


@given(spans=SPANS.filter(bool))
def test_what_is_said_is_read(spans: list[tuple[int, int]]) -> None:
    said = span_text(scaled(spans))
    assert parse_spans(said) == tuple(scaled(spans))
    assert parse_spans(f"It is seen from {said}.", lenient=True) == tuple(scaled(spans))


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        ("2.0 to 5.5", [(2, 5.5)], [(2, 5.5)]),
        ("2 to 5.", [(2, 5)], [(2, 5)]),
        ("2.0 to 3.0, 4.0 to 5.5", [(2, 3), (4, 5.5)], [(2, 3), (4, 5.5)]),
        ("5.5 to 2.0", [], [(2, 5.5)]),
        ("From 2.0s to 5.5s.", [], [(2, 5.5)]),
        ("2 seconds - 5.5 seconds", [], [(2, 5.5)]),
        ("between 2 and 5.5 s", [], [(2, 5.5)]),
        ("0:02 to 1:05", [(2, 65)], [(2, 65)]),
        ("starts at 3.5 and it is over at 9", [], [(3.5, 9)]),
        ("starts at 3, then 4 and 5, last comes 6", [], [(4, 5)]),
        ("a red one", [], []),
        ("at 3.0", [], []),
        ("", [], []),
    ],
)
def test_spans_in_text(text: str, strict: list[Span], lenient: list[Span]) -> None:
    assert parse_spans(text) == tuple(strict)
    assert parse_spans(text, lenient=True) == tuple(lenient)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        (" (b)", None),
        ("(B)", "B"),
        ("B. a dog", "B"),
        ("B: the dog", "B"),
        ("a dog", "B"),
        ("The dog.", "B"),
        ("The answer is C", "C"),
        ("I think that it is (A) and not", "A"),
        ("A or B: the answer is B, option A", None),
        ("D", None),
        ("A cat", "A"),
        ("nothing", None),
        ("", None),
    ],
)
def test_a_letter_is_read(text: str, letter: str | None) -> None:
    assert parse_letter(text, ["a cat", "a dog", "two birds"]) == letter


def test_words_are_compared_without_articles() -> None:
    assert normalise("The Red, red ball!") == "red red ball"
    assert is_same_answer("A red ball.", "red ball")
    assert not is_same_answer("3.5", "35")
    assert not is_same_answer("", "red")


@given(n=st.integers(1, 400), share=st.floats(0, 1))
def test_wilson_solves_its_equation(n: int, share: float) -> None:
    k = round(n * share)
    low, high = wilson(k, n)
    assert 0 <= low <= k / n <= high <= 1
    for edge in (low, high):
        if 0 < edge < 1:
            assert abs(k / n - edge) == pytest.approx(
                1.96 * math.sqrt(edge * (1 - edge) / n), abs=1e-9
            )


def test_scores_by_hand() -> None:
    found = GroundingScore.of([1.0, 0.5, 0.31, 0.0, None])
    assert found.num_asked == 5
    assert found.recall == {"0.3": 0.6, "0.5": 0.4, "0.7": 0.2}
    assert found.mean_iou == pytest.approx(1.81 / 5)
    assert found.unparsable == 0.2
    accuracy = AccuracyScore.of([True, True, False, True])
    assert accuracy.accuracy == 0.75
    assert (round(accuracy.low, 4), round(accuracy.high, 4)) == (0.3006, 0.9544)
    assert wilson(0, 0) == (0.0, 1.0)
