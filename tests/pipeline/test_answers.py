"""Fields of answers: what is nonsense is not taken for something."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.answers import Nonsense, flag, mapping, number, text, whole, wholes

READERS: tuple[Callable[[Any, str], Any], ...] = (whole, number, flag, text, wholes, mapping)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=JSON)
def test_a_field_is_read_as_what_it_is_or_not_at_all(value: Any) -> None:
    for read in READERS:
        try:
            assert json.dumps(read({"x": value}, "x")) == json.dumps(value)
        except Nonsense:
            continue
        except AssertionError:
            assert (read is number and type(value) is int) or read is text


@pytest.mark.parametrize("read", READERS)
def test_a_field_that_is_missing(read: Callable[[Any, str], Any]) -> None:
    with pytest.raises(Nonsense, match="x = None"):
        read({}, "x")


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (whole, True),
        (whole, 1.0),
        (whole, -1),
        (whole, 2**60),
        (whole, "1"),
        (number, float("nan")),
        (number, float("inf")),
        (number, 10**400),
        (number, True),
        (flag, 1),
        (text, b"x"),
        (wholes, [1, "2"]),
        (wholes, "12"),
        (mapping, [["a", 1]]),
    ],
)
def test_nonsense(read: Callable[[Any, str], Any], value: Any) -> None:
    with pytest.raises(Nonsense):
        read({"x": value}, "x")


def test_a_text_can_always_be_written() -> None:
    assert text({"x": "half \ud800 a pair"}, "x") == "half \\ud800 a pair"
    assert len(text({"x": "a" * 10**6}, "x")) == 20_000
