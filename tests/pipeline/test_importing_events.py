"""Events that people have: subtitles and tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cache import FeatureCache, open_cache
from pipeline.cli import call
from pipeline.events import read_events, read_maker, write_events
from pipeline.importing_events import _cues, add_imported, import_events
from schemas.errors import CacheDamaged, UsageError
from schemas.event import Event

SRT = """1
00:00:01,000 --> 00:00:02,500
<i>Hello</i>
world

2
00:00:03,250 --> 01:00:04,000
{\\an8}Again

3
00:00:05,000 --> 00:00:06,000

"""
VTT = """WEBVTT - a title

STYLE
::cue { color: red }

NOTE nobody says this

00:01.000 --> 00:02.500 align:start position:0%
<v Ann>Hello <00:01.500>world</v>

named
01:00:03.250 --> 01:00:04.000
Again
"""


@pytest.fixture
def cache(damaged_cache: Path) -> FeatureCache:
    """A whole one, that may be changed."""
    return open_cache(damaged_cache)


def second(cache: FeatureCache) -> str:
    (found,) = {one for uri, one in cache.aliases.items() if uri.endswith("second.mp4")}
    return found


def test_subtitles_are_read_without_their_marks() -> None:
    assert [row for _, row in _cues(SRT)] == [
        {"start": 1.0, "end": 2.5, "text": "Hello world"},
        {"start": 3.25, "end": 3604.0, "text": "Again"},
    ]
    assert [row for _, row in _cues(VTT)] == [
        {"start": 1.0, "end": 2.5, "text": "Hello world"},
        {"start": 3603.25, "end": 3604.0, "text": "Again"},
    ]
    assert list(_cues(SRT.replace("\n", "\r\n"))) == list(_cues(SRT))


@given(st.text(max_size=200))
def test_any_text_is_cues_or_none(text: str) -> None:
    for number, row in _cues(text):
        assert number >= 1
        assert row["text"] == row["text"].strip()


def test_subtitles_belong_to_the_video_of_their_name(cache: FeatureCache, tmp_path: Path) -> None:
    path = tmp_path / "second.srt"
    path.write_text(SRT, encoding="utf-8-sig")
    events = import_events(cache, path)
    assert {one.video_id for one in events} == {second(cache)}
    assert [one.kind for one in events] == ["caption", "caption"]
    (tmp_path / "elsewhere.vtt").write_text(VTT)
    with pytest.raises(UsageError, match="cue 1: no video 'elsewhere'"):
        import_events(cache, tmp_path / "elsewhere.vtt")
    named = import_events(cache, tmp_path / "elsewhere.vtt", kind="said", video=second(cache))
    assert [one.kind for one in named] == ["said", "said"]


def test_tables_say_video_and_kind(cache: FeatureCache, tmp_path: Path) -> None:
    rows = [
        {"video": "second.mp4", "start": 1, "end": 2.5, "text": "a, b", "kind": "goal"},
        {"video": second(cache), "start": 0.5, "end": 1, "text": "c", "kind": "", "score": 0.5},
    ]
    files = {
        "csv": 'video,start,end,text,kind,score\nsecond.mp4,1,2.5,"a, b",goal,\n'
        f"{second(cache)},0.5,1,c,,0.5\n",
        "tsv": "video\tstart\tend\ttext\tkind\tscore\nsecond.mp4\t1\t2.5\ta, b\tgoal\t\n"
        f"{second(cache)}\t0.5\t1\tc\t\t0.5\n",
        "jsonl": "\n".join(map(json.dumps, rows)) + "\n\n",
    }
    found = []
    for ending, text in files.items():
        (tmp_path / f"events.{ending}").write_text(text)
        found.append(import_events(cache, tmp_path / f"events.{ending}"))
    pq.write_table(pa.Table.from_pylist([*rows[::-1]]), tmp_path / "events.parquet")
    found.append(import_events(cache, tmp_path / "events.parquet")[::-1])
    assert all(one == found[0] for one in found)
    goal, caption = found[0]
    assert (goal.kind, goal.text, goal.start_seconds, goal.score) == ("goal", "a, b", 1.0, None)
    assert (caption.kind, caption.score) == ("caption", 0.5)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[" * 100_000, "cannot be read: it is nested too deep"),
        ('{"video": "second.mp4", "start": 0, "end": 1' + "0" * 400 + "}", "row 1: int too large"),
        ('{"video": "second.mp4", "start": 0, "end": 1, "text": "\\ud800"}', "row 1: .*surrogate"),
        ('{"video": "second.mp4", "start": 0, "end": 1, "score": 7}', "row 1: .*: score 7.0 must"),
    ],
)
def test_a_hostile_line_is_named(
    cache: FeatureCache, tmp_path: Path, line: str, problem: str
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError, match=problem):
        import_events(cache, path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("video,start\nsecond.mp4,1\n", "row 1: no column 'end'"),
        ("video,start,end\nsecond.mp4,2,1\n", "row 1: .*must start before it ends"),
        ("video,start,end\nsecond.mp4,x,1\n", "row 1: could not convert"),
        ("video,start,end\nsecond.mp4,0,nan\n", "row 1: "),
        ("video,start,end,kind\nsecond.mp4,0,1,A b\n", "row 1: .*kind"),
        ("video,start,end\nsecnd.mp4,0,1\n", "did you mean"),
    ],
)
def test_a_bad_row_is_named(cache: FeatureCache, tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "events.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=problem):
        import_events(cache, path)


def test_a_file_of_several_spans_is_not_guessed(odd_cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    with open_cache(odd_cache) as cache:
        (uri,) = {one for one in cache.aliases if one.endswith("/50.mp4")}
        for name in ("50.mp4", "50", uri):
            path.write_text(f"video,start,end\n{name},1.5,2\n")
            with pytest.raises(UsageError, match="may be one of 2 videos"):
                import_events(cache, path)


def test_a_file_that_is_no_table_is_refused(cache: FeatureCache, tmp_path: Path) -> None:
    for name, data in (("a.parquet", b"no"), ("a.jsonl", b"[1]\n"), ("a.srt", b"\xff\xfe1")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError, match="cannot be read"):
            import_events(cache, tmp_path / name)


def event(cache: FeatureCache, number: int, text: str) -> Event:
    return Event(
        video_id=list(cache.videos)[number],
        start_seconds=0.0,
        end_seconds=1.0,
        kind="caption",
        text=text,
    )


def test_a_later_import_replaces_those_of_its_videos(cache: FeatureCache) -> None:
    assert add_imported(cache, [event(cache, 0, "a"), event(cache, 1, "b")]) == {"caption": 2}
    add_imported(cache, [event(cache, 1, "c")])
    found = read_events(cache.layout, kinds=["caption"])
    assert [one.text for some in found.values() for one in some] == ["a", "c"]
    assert read_maker(cache.layout, kind="caption") == ({"by": "import"}, None)


def test_what_a_detector_made_is_not_written_over(cache: FeatureCache) -> None:
    write_events(cache.layout, kind="caption", events=[], made_by={"by": "whisper"})
    with pytest.raises(UsageError, match="made by whisper"):
        add_imported(cache, [event(cache, 0, "a")])


def test_a_table_that_does_not_say_its_maker_is_damaged(cache: FeatureCache) -> None:
    add_imported(cache, [event(cache, 0, "a")])
    path = Path(str(cache.layout.events_of("caption")))
    table = pq.read_table(path)
    for text in (b"{", b"3", b"[" * 100_000):
        pq.write_table(table.replace_schema_metadata({b"reelcache.made_by": text}), path)
        with pytest.raises(CacheDamaged, match="does not say what it was made by"):
            read_maker(cache.layout, kind="caption")


def test_events_outside_of_their_video_are_counted(
    cache: FeatureCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, root = tmp_path / "events.csv", str(cache.layout.root)
    path.write_text("video,start,end\nsecond.mp4,0,1\nsecond.mp4,2000,3000\n")  # milliseconds
    assert call(["events", root, "--import", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == "caption: 2 events of 1 video\n"
    assert "1 of 2 events outside" in err and "2000 to 3000" in err
    assert call(["events", root, "--import", str(path), "-q"]) == 0
    assert capsys.readouterr().err == ""
    assert call(["events", root, "--import", str(path), "--scenes"]) == 2
    assert "not both at once" in capsys.readouterr().err


def test_the_command_imports(
    cache: FeatureCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "second.srt").write_text(SRT)
    root = str(cache.layout.root)
    assert call(["events", root, "--import", str(tmp_path / "second.srt"), "--kind", "said"]) == 0
    assert capsys.readouterr().out == "said: 2 events of 1 video\n"
    assert call(["events", root, "--json"]) == 0
    (kind,) = json.loads(capsys.readouterr().out)["kinds"]
    assert (kind["kind"], kind["events"], kind["made_by"]) == ("said", 2, {"by": "import"})
