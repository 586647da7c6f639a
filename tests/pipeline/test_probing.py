"""Probe: what is told of a source, and when a source is probed again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.jail import DecoderProcess
from pipeline.layout import CacheLayout
from pipeline.probing import probe_source, read_probes, select_unprobed, write_probes
from schemas.errors import VideoError
from schemas.recipe import DecodeLimits
from schemas.video import Probe, Source

if TYPE_CHECKING:
    from tests.clips import ClipShelf


@pytest.fixture(scope="module")
def process() -> Iterator[DecoderProcess]:
    with DecoderProcess(DecodeLimits()) as process:
        yield process


def probe(process: DecoderProcess, path: Path, **fields: object) -> Probe:
    source = Source(uri=str(path), **fields)  # type: ignore[arg-type]
    return probe_source(source, limits=DecodeLimits(), process=process)


def test_facts_of_an_ordinary_video(clips: ClipShelf, process: DecoderProcess) -> None:
    clip = clips["with_audio.mp4"]
    found = probe(process, clip.path)
    assert found.status == "ok"
    assert found.content_sha256 == hashlib.sha256(clip.path.read_bytes()).hexdigest()
    assert found.video_id == f"v{found.content_sha256[:16]}"
    assert (found.codec, found.has_audio, found.truncated) == ("h264", True, False)
    assert found.num_packets == len(clip.times)
    assert found.first_seconds == pytest.approx(float(clip.times[0]), abs=2e-6)
    assert found.last_seconds == pytest.approx(float(clip.times[-1]), abs=2e-6)


@pytest.mark.parametrize(
    ("start", "end", "ok"),
    [
        (None, None, True),
        (0.0, 0.1, True),
        (4.9, None, True),
        (None, 0.0, False),
        (-3.0, 0.01, True),
        (-3.0, -1.0, False),
        (5.5, None, False),
        (100.0, 200.0, False),
    ],
)
def test_a_span_must_hold_a_frame(
    clips: ClipShelf, process: DecoderProcess, start: float | None, end: float | None, ok: bool
) -> None:
    path = clips["25.mp4"].path
    found = probe(process, path, start_seconds=start, end_seconds=end)
    reason = found.reject.reason if found.reject else None
    assert reason == (None if ok else "span_outside")


@pytest.mark.parametrize(
    ("data", "reason"), [(b"", "empty_file"), (b"text", "not_a_video"), (None, "not_found")]
)
def test_a_bad_file_is_a_row_with_a_reason(
    process: DecoderProcess, tmp_path: Path, data: bytes | None, reason: str
) -> None:
    path = tmp_path / "a.mp4"
    if data is not None:
        path.write_bytes(data)
    found = probe(process, path, video_id="mine")
    assert found.reject is not None
    assert (found.reject.reason, found.reject.video_id) == (reason, "mine")


def test_folders_and_pipes_are_not_read(process: DecoderProcess, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.mp4")
    for path in (tmp_path, tmp_path / "fifo.mp4"):
        found = probe(process, path)
        assert found.reject is not None
        assert found.reject.reason == "unreadable"


def test_only_new_and_changed_sources_are_probed_again(
    clips: ClipShelf, process: DecoderProcess, tmp_path: Path
) -> None:
    path, missing = tmp_path / "a.mp4", tmp_path / "missing.mp4"
    path.write_bytes(clips["one_frame.mp4"].path.read_bytes())
    known = [probe(process, path), probe(process, missing)]
    sources = [one.source for one in known]
    assert select_unprobed(sources, known) == []
    with_id = Source(uri=str(path), video_id="x")
    assert select_unprobed([*sources, with_id], known) == [with_id]
    os.utime(path, (1, 1))
    missing.write_bytes(b"x")
    assert select_unprobed(sources, known) == sources


def test_the_newest_probe_counts(process: DecoderProcess, tmp_path: Path) -> None:
    layout = CacheLayout(tmp_path / "cache")
    path = tmp_path / "a.mp4"
    old = probe(process, path)
    write_probes([old], layout)
    path.write_bytes(b"text")
    new = probe(process, path)
    write_probes([new], layout)
    assert read_probes(layout) == [new] != [old]
    assert len(layout.extensions(layout.probes)) == 2


def test_a_process_that_is_killed_once_costs_nothing(
    clips: ClipShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DecoderProcess(DecodeLimits()) as process:
        request, pids = process.request, []

        def request_and_kill(*args: Any, **kwargs: Any) -> Any:
            answers = request(*args, **kwargs)
            if not pids:
                process.spawn()
                assert process.pid is not None
                pids.append(process.pid)
                raise VideoError("crashed", "signal SIGKILL")
            return answers

        monkeypatch.setattr(process, "request", request_and_kill)
        assert probe(process, clips["25.mp4"].path).status == "ok"
        assert pids
