"""Ids and keys of videos; sources and their spans."""

import math
import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from schemas.errors import SourceError
from schemas.video import Probe, Source, key_stem, sample_key, video_id_of

SHA = "0123456789abcdef" * 4
IDS = st.text(min_size=1) | st.text(alphabet="aA-_. é/\n'\"", min_size=1, max_size=80)
PLAIN_IDS = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_-]{0,62}[A-Za-z0-9_]\Z")


@given(video_id=IDS)
@example("-")
@example("---a---")
@example(" ")
@example("a" * 65)
@example(".hidden")
@example("../../etc/passwd")
def test_a_key_is_an_identifier_of_at_most_64_characters(video_id):
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", key_stem(video_id))


@given(one=IDS, other=IDS)
@example("a b", "a-b")
@example("a.b", "a,b")
@example("a" * 64 + "x", "a" * 64 + "y")
@example("é", "è")
@example("-a", "a")
@example("a-", "a")
def test_ids_that_differ_have_keys_that_differ(one, other):
    assume(one != other)
    assert key_stem(one) != key_stem(other)


@given(video_id=PLAIN_IDS)
def test_an_id_that_is_an_identifier_is_its_own_key(video_id):
    assert key_stem(video_id) == video_id


@given(one=PLAIN_IDS, other=PLAIN_IDS, i=st.integers(0, 2_000_000), j=st.integers(0, 2_000_000))
@example("a", "a_000001", 1, 1)
@example("a", "a_1", 1_000_000, 0)
def test_keys_of_different_clips_differ(one, other, i, j):
    assume((one, i) != (other, j))
    assert sample_key(one, i) != sample_key(other, j)


def test_keys_of_a_video_are_in_order_of_its_clips():
    keys = [sample_key("abc", index) for index in range(0, 12_000, 7)]
    assert keys == sorted(keys)
    assert keys[1] == "abc_000007"


def test_without_an_id_equal_content_is_one_video():
    first, second = Source(uri="/a.mp4"), Source(uri="/b.mp4")
    assert video_id_of(first, SHA) == video_id_of(second, SHA) == "v0123456789abcdef"


def test_the_id_given_is_kept():
    assert video_id_of(Source(uri="/a", video_id="Mein Video.mp4", end_seconds=3), SHA) == (
        "Mein Video.mp4"
    )


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (1.5, 2.25, "v0123456789abcdef_1500000_2250000us"),
        (None, 2.0, "v0123456789abcdef__2000000us"),
        (0.000001, None, "v0123456789abcdef_1_us"),
        (-1.0, 1.0, "v0123456789abcdef_m1000000_1000000us"),
    ],
)
def test_a_span_without_an_id_is_a_video_of_its_own(start, end, expected):
    source = Source(uri="/a.mp4", start_seconds=start, end_seconds=end)
    assert video_id_of(source, SHA) == expected


@given(spans=st.lists(st.tuples(st.none() | st.integers(-9, 9), st.none() | st.integers(10, 99))))
def test_different_spans_have_different_ids_that_are_keys(spans):
    ids = {
        video_id_of(Source(uri="/a", start_seconds=start, end_seconds=end), SHA)
        for start, end in spans
    }
    assert len(ids) == len(set(spans))
    assert all(key_stem(video_id) == video_id for video_id in ids)


@pytest.mark.parametrize(
    ("start", "end"), [(2.0, 1.0), (1.0, 1.0), (math.nan, 2.0), (0.0, math.inf), (-math.inf, 0.0)]
)
def test_a_span_is_finite_and_begins_before_its_end(start, end):
    with pytest.raises(SourceError, match=r"/a\.mp4: span"):
        Source(uri="/a.mp4", start_seconds=start, end_seconds=end)


def test_an_empty_id_is_refused():
    with pytest.raises(SourceError, match="the id is empty"):
        Source(uri="/a.mp4", video_id="")


def test_identity_is_uri_id_and_span_and_not_the_other_columns():
    plain = Source(uri="/a", extra={"x": 1})
    assert plain.identity == Source(uri="/a").identity
    others = [
        Source(uri="/b"),
        Source(uri="/a", video_id="i"),
        Source(uri="/a", start_seconds=0.0),
        Source(uri="/a", end_seconds=9.0),
    ]
    assert len({plain.identity, *(other.identity for other in others)}) == 5
    assert sorted([other.identity for other in others])  # comparable whatever is missing


def test_a_rejected_probe_says_why_under_the_best_id_there_is():
    given_id = Probe(source=Source(uri="/a", video_id="mine")).rejected("not_found", "no such file")
    assert given_id.status == "rejected"
    assert given_id.reject is not None
    assert (given_id.reject.video_id, given_id.reject.stage) == ("mine", "probe")
    settled = Probe(source=Source(uri="/a"), video_id="v1").rejected("no_frames", "", stage="plan")
    assert settled.reject is not None
    assert (settled.reject.video_id, settled.reject.stage) == ("v1", "plan")
    assert Probe(source=Source(uri="/a")).status == "ok"
