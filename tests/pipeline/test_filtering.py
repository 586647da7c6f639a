"""where_mask: a filter means what Python would mean by it, null is null, and nothing is run."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.filtering import where_mask
from schemas.errors import UsageError

TABLE = pa.table(
    {
        "static": [0.1, 0.95, None, 0.5],
        "truncated": [True, False, False, None],
        "uri": ["/a/cats/1.mp4", "it's", None, 'say "so"\n'],
        "n": pa.array([0, 2, -3, 2**62], pa.int64()),
        "members": [["a"], [], None, ["b"]],
    }
)


def kept(text: str) -> list[bool | None]:
    mask = where_mask(TABLE, text)
    assert mask.type == pa.bool_()
    return list(mask.to_pylist())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("static < 0.9", [True, False, None, True]),
        ("static < 0.9 and not truncated", [False, False, None, None]),
        ("truncated or static > 0.4", [True, True, None, True]),
        ("0.1 <= static <= 0.5", [True, False, None, True]),
        ("static is null", [False, False, True, False]),
        ("static is not null and static >= .5", [False, True, False, True]),
        ("not (n == 2)", [True, False, True, True]),
        ("n != -3", [True, True, False, True]),
        ("n in (0, 2)", [True, True, False, False]),
        ("n not in [0, 2]", [False, False, True, True]),
        ("n in ()", [False] * 4),
        ("'cats' in uri", [True, False, None, False]),
        ('uri == "it\'s"', [False, True, None, False]),
        ("uri in ('it\\'s', 'say \"so\"\\n')", [False, True, None, True]),
        ("n * 2 + 1 > 4 - -1", [False, False, False, True]),
        ("1 / n > 1e300", [True, False, False, False]),
        ("+n == 2", [False, True, False, False]),
        ("truncated == false", [False, True, True, None]),
        ("truncated", [True, False, False, None]),
        ("true", [True] * 4),
        ("False or 1 < 2", [True] * 4),
        ("truncated is None", [False, False, False, True]),
        ("(((n)) > 1)", [False, True, False, True]),
        ("  n > 1  ", [False, True, False, True]),
    ],
)
def test_keeps_the_rows(text: str, expected: list[bool | None]) -> None:
    assert kept(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stati < 1", "no column 'stati'; did you mean 'static'"),
        ("uri < 3", "uri is text and 3 is a number"),
        ("n == 'x'", "n is a number and 'x' is text"),
        ("n", "is a number, and has to be true or false"),
        ("not n", "n is a number, where true or false is needed"),
        ("n and true", "n is a number, where true or false is needed"),
        ("n + uri > 1", "uri is text, where a number is needed"),
        ("truncated > false", "have no order"),
        ("n = 3", "== compares"),
        ("static < 0.9 AND n > 1", "and, or, not are written small"),
        ("", "is no expression"),
        ("n >", "is no expression"),
        ("uri == None", "nothing equals null"),
        ("n is 3", "only `is null`"),
        ("members == 1", "holds lists"),
        ("uri in static", "static is a number, where text is needed"),
        ("static in uri", "static is a number, where text is needed"),
        ("uri in uri", "before `in` stands a text"),
        ("n ** 2 > 1", "is not understood"),
        ("n if truncated else n", "is not understood"),
        ("__import__('os').system('true')", "is not understood"),
        ("n.real > 1", "is not understood"),
        ("n[0] > 1", "is not understood"),
        ("(lambda: true)()", "is not understood"),
        ("f'{n}' == uri", "is not understood"),
        ("[1 for x in y] == 1", "is not understood"),
        ("(n := 3) > 1", "is not understood"),
        ("1j > n", "neither a number nor text"),
        ("b'x' == uri", "neither a number nor text"),
        ("n > " + "9" * 30, "out of range"),
        ("n > 0\x00", "is no expression"),
        ("'\ud800' == uri", "is no expression"),
        ("not " * 3000 + "truncated", "longer than"),
        ("(" * 1500 + "n > 1" + ")" * 1500, "is no expression"),
        ("n" + "+n" * 4000 + " > 1", "nested too deeply"),
    ],
)
def test_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        where_mask(TABLE, text)
    assert words in caught.value.message
    assert caught.value.hint


def test_a_table_without_rows() -> None:
    assert where_mask(TABLE.slice(0, 0), "static < 1 or true").to_pylist() == []
    assert where_mask(TABLE.slice(0, 0), "false").to_pylist() == []


def test_columns_in_several_chunks() -> None:
    table = pa.concat_tables([TABLE, TABLE])
    assert where_mask(table, "n == 2").to_pylist() == [False, True, False, False] * 2


numbers = st.one_of(st.integers(-9, 9).map(str), st.sampled_from(["a", "b", "0.5", "1e3"]))
sums = st.recursive(
    numbers,
    lambda one: st.tuples(one, st.sampled_from("+-*"), one).map(
        lambda t: f"({t[0]} {t[1]} {t[2]})"
    ),
    max_leaves=4,
)
comparisons = st.one_of(
    st.tuples(sums, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), sums).map(" ".join),
    st.sampled_from(["flag", "a in (1, 2, 3)", "'x' in text", "text not in ('x', 'yy')"]),
)
expressions = st.recursive(
    comparisons,
    lambda one: st.one_of(
        st.tuples(one, st.sampled_from(["and", "or"]), one).map(lambda t: f"({' '.join(t)})"),
        one.map(lambda text: f"not {text}"),
    ),
    max_leaves=8,
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "a": st.integers(-9, 9),
            "b": st.floats(-9, 9),
            "flag": st.booleans(),
            "text": st.text(alphabet="xyz", max_size=3),
        }
    ),
    min_size=1,
    max_size=5,
)


@given(text=expressions, values=rows)
def test_means_what_python_means(text: str, values: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(values)
    expected = [bool(eval(text, {}, row)) for row in values]
    assert where_mask(table, text).to_pylist() == expected


@given(text=st.text(max_size=40))
def test_any_text_is_an_answer_or_an_error_of_the_user(text: str) -> None:
    try:
        assert len(where_mask(TABLE, text)) == 4
    except UsageError as error:
        assert error.message


def test_nothing_is_null_that_could_be_told() -> None:
    assert kept("static > 2 and truncated") == [False] * 4
    assert kept("static is null or static < 2") == [True] * 4
