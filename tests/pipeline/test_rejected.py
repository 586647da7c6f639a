"""Rejected sources as they were given."""

from __future__ import annotations

import json

from pipeline.rejected import as_line, rejected_sources
from schemas.video import Probe, Source


def probe(source: Source, *, reason: str = "", video_id: str = "v") -> Probe:
    found = Probe(source=source, video_id=video_id)
    return found.rejected(reason, "d") if reason else found


def row(uri: str, *, video_id: str = "v", stage: str = "decode", reason: str = "crashed"):
    return {"uri": uri, "video_id": video_id, "stage": stage, "reason": reason, "detail": "d"}


def test_a_row_is_joined_with_its_source():
    spans = [Source(uri="/a", start_seconds=float(n), end_seconds=n + 1.0) for n in range(3)]
    probes = [probe(source, video_id=f"v{n}") for n, source in enumerate(spans)]
    probes.append(probe(Source(uri="/b", video_id="b"), reason="not_found", video_id="b"))
    rows = [
        row("/a", video_id="v2"),
        row("/b", video_id="b", stage="probe", reason="not_found"),
        row("/a", video_id="v0"),
    ]
    found = [source for source, _ in rejected_sources(probes, rows)]
    assert found == [spans[2], Source(uri="/b", video_id="b"), spans[0]]


def test_each_of_two_sources_of_one_video_is_found():
    sources = [Source(uri="/a"), Source(uri="/a", video_id="alias")]
    probes = [probe(source) for source in sources]
    assert [s for s, _ in rejected_sources(probes, [row("/a"), row("/a")])] == sources


def test_a_source_that_was_cached_since_is_not_found_by_an_old_row():
    probes = [probe(Source(uri="/a"), video_id="new")]
    assert rejected_sources(probes, [row("/a", video_id="old")]) == []


def test_a_line_holds_what_was_given_and_no_more():
    source = Source(uri="/\u00e4\n.mp4", start_seconds=0.1, extra={"label": [1, None]})
    assert json.loads(as_line(source)) == {"uri": "/\u00e4\n.mp4", "start": 0.1, "label": [1, None]}
    assert "\n" not in as_line(source)
    assert json.loads(as_line(Source(uri="/a", video_id="x"))) == {"uri": "/a", "id": "x"}
