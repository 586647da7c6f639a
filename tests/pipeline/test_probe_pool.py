"""Probing many sources in threads, each with a process that can be killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import probe_pool
from pipeline.jail import DecoderProcess
from pipeline.probe_pool import probe_all
from pipeline.probing import probe_source
from schemas.recipe import DecodeLimits
from schemas.video import Probe, Source

LIMITS = DecodeLimits()


def sources_in(folder: Path) -> list[Source]:
    return [Source(uri=str(path)) for path in sorted(folder.rglob("*.mp4"))]


def test_probes_are_those_of_one_process_in_the_order_of_the_sources(small_videos: Path) -> None:
    sources = [*sources_in(small_videos), Source(uri=str(small_videos / "gone.mp4"))]
    told: list[Probe] = []
    found = probe_all(sources, limits=LIMITS, num_processes=3, on_probe=told.append)
    with DecoderProcess(LIMITS) as process:
        assert found == [probe_source(s, limits=LIMITS, process=process) for s in sources]
    assert sorted(p.source.identity for p in told) == sorted(s.identity for s in sources)
    assert [p.reject.reason for p in found if p.reject] == ["not_a_video", "not_found"]


def test_nothing_to_probe() -> None:
    assert probe_all([], limits=LIMITS, num_processes=2) == []


def test_a_video_that_hangs_costs_itself(
    small_videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DecoderProcess.request

    def slow(self: DecoderProcess, message: dict[str, object], **more: float) -> object:
        if "second" in str(message["path"]):
            self._ensure()
            assert self.pid is not None
            os.kill(self.pid, signal.SIGSTOP)
        return real(self, message, **more)

    monkeypatch.setattr(DecoderProcess, "request", slow)
    limits = replace(LIMITS, stall_seconds=0.5)
    found = probe_all(sources_in(small_videos), limits=limits, num_processes=1)
    by_name = {Path(p.source.uri).name: p for p in found}
    assert by_name["first clip.mp4"].reject is None
    assert by_name["second.mp4"].reject.reason == "timed_out"


def test_an_error_of_one_thread_ends_all(
    small_videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Source, **_: object) -> Probe:
        raise RuntimeError(source.uri)

    monkeypatch.setattr(probe_pool, "probe_source", fail)
    with pytest.raises(RuntimeError, match=r"\.mp4"):
        probe_all(sources_in(small_videos), limits=LIMITS, num_processes=2)


def test_an_interrupt_ends_the_processes(
    small_videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, over = threading.Event(), threading.Event()

    def wait(source: Source, *, process: DecoderProcess, limits: DecodeLimits) -> Probe:
        process.spawn()
        entered.set()
        over.wait(20)
        return Probe(source=source)

    real_join = threading.Thread.join

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        if self.name == "probe" and entered.wait(20) and not over.is_set():
            over.set()
            raise KeyboardInterrupt
        real_join(self, timeout)

    monkeypatch.setattr(probe_pool, "probe_source", wait)
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        probe_all(sources_in(small_videos) * 50, limits=LIMITS, num_processes=2)
    deadline = time.monotonic() + 10
    while any(thread.name == "probe" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
