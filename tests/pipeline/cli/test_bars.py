"""Bars of a terminal, and the count of what is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.bars import bar, print_bars, sparkline

NUMBERS = st.floats(-10, 10, allow_nan=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, ""), (1, "█" * 4), (0.5, "██"), (0.25, "█"), (0.28125, "█▏"), (1e-9, "▏"), (7, "█" * 4)],
)
def test_a_bar_is_as_long_as_its_share(value: float, text: str) -> None:
    assert bar(value, largest=1, width=4) == text
    assert bar(value, largest=1, width=4, filled=True) == f"{text:4}"


@given(NUMBERS, NUMBERS, st.integers(1, 50))
def test_a_bar_fits_its_width(value: float, largest: float, width: int) -> None:
    text = bar(value, largest=largest, width=width)
    assert len(text) <= width
    assert (text == "") == (value <= 0)


def test_a_line_of_bars_has_a_character_a_value() -> None:
    assert sparkline([0, 0.5, 1, None, 2, -1], low=0, high=1) == "▁▅█ █▁"
    assert sparkline([0, 1, 1, 1], low=0, high=1, width=2) == "▅█"
    assert sparkline([None, None, 1, 1], low=0, high=1, width=2) == " █"
    assert sparkline([], low=0, high=1) == ""


@given(st.lists(st.one_of(st.none(), NUMBERS), max_size=80), st.integers(1, 30))
def test_a_line_fits_its_width(values: list[float | None], width: int) -> None:
    assert len(sparkline(values, low=-1, high=1, width=width)) == min(width, len(values))


def test_bars_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_bars({"a": 1000, "long": 250})
    assert capsys.readouterr().out == f"  a     {'█' * 40} 1,000\n  long  {'█' * 10} 250\n"
