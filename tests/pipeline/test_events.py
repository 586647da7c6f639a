"""Tables of events beside a cache."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.events import list_kinds, read_events, read_made_by, write_events
from pipeline.layout import CacheLayout
from schemas.errors import CacheDamaged, UsageError
from schemas.event import Event

SECONDS = st.floats(min_value=-1e6, max_value=1e6)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def events(draw, kind="scene"):
    start, end = sorted((draw(SECONDS), draw(SECONDS)))
    score = draw(st.none() | st.floats(min_value=0, max_value=1))
    return Event(
        video_id=draw(TEXT),
        start_seconds=start,
        end_seconds=end,
        kind=kind,
        text=draw(TEXT),
        score=score,
    )


def event(video_id="v", start=0.0, end=1.0, kind="scene", text=""):
    return Event(video_id=video_id, start_seconds=start, end_seconds=end, kind=kind, text=text)


@pytest.fixture
def layout(tmp_path):
    return CacheLayout(tmp_path)


@given(written=st.lists(events(), max_size=8))
def test_what_is_written_is_read(tmp_path_factory, written):
    layout = CacheLayout(tmp_path_factory.mktemp("events"))
    write_events(layout, kind="scene", events=written, made_by={"by": "test"})
    read = [one for of_video in read_events(layout).values() for one in of_video]
    assert sorted(read, key=repr) == sorted(written, key=repr)


def test_events_are_by_video_and_in_order_of_time(layout):
    late, early, other = event(start=2, end=3), event(start=0, end=9), event("w")
    write_events(layout, kind="scene", events=[other, late, early], made_by={})
    said = event(start=1, end=2, kind="speech", text='he said "hi"\n')
    write_events(layout, kind="speech", events=[said], made_by={"threshold": 0.5})
    assert list_kinds(layout) == ["scene", "speech"]
    assert read_events(layout) == {"v": [early, said, late], "w": [other]}
    assert read_events(layout, kinds=["speech"]) == {"v": [said]}
    assert read_made_by(layout, kind="speech") == {"threshold": 0.5}
    assert read_made_by(layout, kind="transcript") == {}


def test_a_table_is_replaced_whole(layout):
    write_events(layout, kind="scene", events=[event("a"), event("b")], made_by={})
    write_events(layout, kind="scene", events=[event("b")], made_by={})
    assert list(read_events(layout)) == ["b"]


def test_a_kind_that_is_not_there_is_an_error(layout):
    assert read_events(layout) == {}
    with pytest.raises(UsageError, match="no events of the kind 'scene'"):
        read_events(layout, kinds=["scene"])


@pytest.mark.parametrize("kind", ["", "Scene", "a/b", "..", "x" * 33])
def test_a_kind_is_a_plain_word(layout, kind):
    with pytest.raises(UsageError, match="a kind of events"):
        write_events(layout, kind=kind, events=[], made_by={})


def test_events_of_another_kind_are_refused(layout):
    with pytest.raises(UsageError, match="'speech' in a table of 'scene'"):
        write_events(layout, kind="scene", events=[event(kind="speech")], made_by={})


def test_a_damaged_table_is_damage(layout):
    write_events(layout, kind="scene", events=[event()], made_by={})
    layout.events_of("scene").write_bytes(b"PAR1")
    with pytest.raises(CacheDamaged, match=r"scene\.parquet"):
        read_events(layout)


@pytest.mark.parametrize("times", [(2.0, 1.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_an_event_has_a_stretch_of_time(times):
    with pytest.raises(ValueError, match="must start before it ends"):
        event(start=times[0], end=times[1])


def test_events_travel_between_processes():
    assert pickle.loads(pickle.dumps(event())) == event()
