"""How fast a stage is, and when it will be done."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.pace import Pace, rate_text


def told(pace: Pace, *points: tuple[float, int]) -> Pace:
    for now, count in points:
        pace.update(count, now=now)
    return pace


def test_nothing_is_known_at_first() -> None:
    assert told(Pace(), (0, 0), (50, 0)).rate(now=50) is None
    assert told(Pace(), (50, 3)).left_seconds(7, now=55) is None


def test_loading_is_not_in_the_rate() -> None:
    pace = Pace()
    for now in range(100):
        pace.update(0, now=now, working=False)
    pace.update(0, now=100.0, working=True)
    pace.update(10, now=105.0)
    assert pace.rate(now=105.0) == 2.0
    assert pace.left_seconds(40, now=105.0) == 20.0


def test_the_rate_is_that_of_the_last_minute() -> None:
    pace = told(Pace(), *((t, 10 * t) for t in range(1000)))
    pace = told(pace, *((1000 + t, 10_000 + t) for t in range(200)))
    assert pace.rate(now=1199.0) == pytest.approx(1.0)


def test_what_takes_minutes_has_a_rate_all_the_time() -> None:
    pace = told(Pace(), (0, 0))
    rates = []
    for now in range(1, 1000):
        pace.update(now // 95, now=now)
        rates.append(pace.rate(now=now))
    assert None not in rates[95:]
    assert min(rate for rate in rates if rate) > 1 / 200
    assert rates[-1] == pytest.approx(1 / 95, rel=0.6)


def test_a_stage_that_stands_still_slows_down() -> None:
    pace = told(Pace(), *((t, t) for t in range(100)))
    for now in (150, 1000):
        pace.update(99, now=now)
    assert pace.rate(now=1000) == pytest.approx(1 / (1000 - 98), rel=0.1)


@given(st.lists(st.tuples(st.floats(0.01, 500), st.integers(0, 50)), max_size=60))
def test_a_rate_is_positive_and_no_more_than_came(steps: list[tuple[float, int]]) -> None:
    pace, now, count = Pace(), 0.0, 0
    for seconds, more in steps:
        now, count = now + seconds, count + more
        pace.update(count, now=now)
        rate = pace.rate(now=now)
        assert rate is None or 0 < rate <= count / 0.001


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (1234.56, "1,234.6 clips/s"),
        (1.0, "1.0 clips/s"),
        (0.99, "59.4 clips/min"),
        (1 / 60, "1.0 clips/min"),
        (1 / 95, "95 s a clip"),
        (1 / 4000, "4,000 s a clip"),
    ],
)
def test_a_rate_is_told_in_the_unit_that_suits(rate: float, text: str) -> None:
    assert rate_text(rate, units="clips") == text


@given(st.floats(1e-7, 1e7))
def test_no_rate_is_told_as_nothing(rate: float) -> None:
    assert not re.match(r"0(\.0)?\b", rate_text(rate, units="clips"))
