"""Reading trees of dataclasses from mappings, strictly."""

import datetime
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RecipeError
from schemas.settings import nearest, read_settings, set_field, to_mapping


@dataclass(frozen=True, kw_only=True)
class Leaf:
    ratio: float = 0.5
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True)
class Tree:
    count: int
    leaf: Leaf = field(default_factory=Leaf)
    names: tuple[str, ...] = ()
    limit: float | None = None
    leaves: dict[str, Leaf] = field(default_factory=dict)


LEAVES = st.builds(
    Leaf, ratio=st.floats(allow_nan=False), kind=st.sampled_from(["a", "b"])
)  # fmt: skip
TREES = st.builds(
    Tree,
    count=st.integers(),
    leaf=LEAVES,
    names=st.lists(st.text()).map(tuple),
    limit=st.none() | st.floats(allow_nan=False),
    leaves=st.dictionaries(st.text(), LEAVES, max_size=3),
)


@given(tree=TREES, drop=st.booleans())
def test_a_tree_survives_its_mapping(tree, drop):
    assert read_settings(Tree, to_mapping(tree, drop_defaults=drop)) == tree


def test_dropping_defaults_keeps_only_what_was_chosen():
    tree = Tree(count=0, leaf=Leaf(kind="b"), leaves={"x": Leaf()})
    assert to_mapping(tree, drop_defaults=True) == {
        "count": 0,
        "leaf": {"kind": "b"},
        "leaves": {"x": {}},
    }


def test_integers_are_read_as_floats_where_floats_are_meant():
    ratio = read_settings(Leaf, {"ratio": 1}).ratio
    assert (ratio, type(ratio)) == (1.0, float)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({}, "count: missing; it has no default"),
        ({"count": "1"}, "count = '1' must be a int"),
        ({"count": True}, "count = True must be a int"),
        ({"count": 1, "cuont": 1}, "cuont: unknown field; did you mean 'count'?"),
        ({"count": 1, "leaf": {"rato": 1}}, "leaf.rato: unknown field; did you mean 'ratio'?"),
        ({"count": 1, "leaf": {"kind": "c"}}, "leaf.kind = 'c' must be one of 'a', 'b'"),
        ({"count": 1, "leaf": []}, "leaf = [] must be a table"),
        ({"count": 1, "names": "ab"}, "names = 'ab' must be a list"),
        ({"count": 1, "names": ["a", 2]}, "names[1] = 2 must be a str"),
        ({"count": 1, "limit": "x"}, "limit = 'x' must be a float"),
        ({"count": 1, "leaves": {"x": 1}}, "leaves.x = 1 must be a table"),
        ({"count": 1, "leaves": {"x": {"kind": 1}}}, "leaves.x.kind = 1 must be one of 'a', 'b'"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(mapping, message):
    with pytest.raises(RecipeError) as caught:
        read_settings(Tree, mapping)
    assert str(caught.value) == message


def test_nearest_names_the_closest_word():
    assert nearest("sampel", ["sample", "clip"]) == "; did you mean 'sample'?"


def test_nearest_lists_all_words_where_none_is_close():
    assert nearest("zzz", ["sample", "clip"]) == "; known: clip, sample"


def test_nearest_says_nothing_where_there_are_no_words():
    assert nearest("zzz", []) == ""


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("leaf.ratio=2", {"leaf": {"ratio": 2}}),
        ("leaf.ratio = 0.25", {"leaf": {"ratio": 0.25}}),
        ("leaf.kind=b", {"leaf": {"ratio": 1, "kind": "b"}}),
        ('leaf.kind="b"', {"leaf": {"ratio": 1, "kind": "b"}}),
        ("flag=true", {"flag": True}),
        ("names=['a', 'b']", {"names": ["a", "b"]}),
        ("note=a=b", {"note": "a=b"}),
        ("new.table.field=1", {"new": {"table": {"field": 1}}}),
    ],
)
def test_an_override_sets_one_field(assignment, expected):
    before = {"leaf": {"ratio": 1}}
    assert set_field(before, assignment) == before | expected
    assert before == {"leaf": {"ratio": 1}}, "the mapping given is not changed"


@pytest.mark.parametrize("assignment", ["leaf.ratio", "=3", ""])
def test_an_override_needs_a_field_and_a_value(assignment):
    with pytest.raises(RecipeError, match="must be FIELD=VALUE"):
        set_field({}, assignment)


def test_an_override_cannot_go_below_a_value():
    with pytest.raises(RecipeError, match="ratio is not a table"):
        set_field({"leaf": {"ratio": 1}}, "leaf.ratio.deep=1")


def test_an_override_leaves_dates_for_the_check_of_types():

    day = datetime.date(2024, 1, 2)
    assert set_field({"day": day}, "x=1") == {"day": day, "x": 1}


def test_a_table_of_an_array_is_set_by_its_name_or_number():
    before = {"stages": [{"name": "a", "lr": {"lm": 1.0}}, {"name": "b"}]}
    after = set_field(before, "stages.a.lr.lm=0.5")
    assert after == {"stages": [{"name": "a", "lr": {"lm": 0.5}}, {"name": "b"}]}
    assert set_field(after, "stages.1.steps=3")["stages"][1] == {"name": "b", "steps": 3}
    assert before["stages"][0] == {"name": "a", "lr": {"lm": 1.0}}


@pytest.mark.parametrize(
    ("assignment", "words"),
    [("stages.c.steps=3", "c is not a table"), ("stages.steps=3", "stages is an array")],
)
def test_an_array_itself_is_not_set_into(assignment, words):
    with pytest.raises(RecipeError, match=words):
        set_field({"stages": [{"name": "a"}]}, assignment)
