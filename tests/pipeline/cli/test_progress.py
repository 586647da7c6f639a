"""Lines of progress, as a log keeps them."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.cli import progress
from pipeline.cli.progress import Lines
from pipeline.measuring import Measured, StageTime


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def measured(*, encoding: float = 0.0, **counts: int) -> Measured:
    encode = StageTime(num=1, seconds=encoding, active_seconds=encoding, longest_seconds=encoding)
    return Measured(counts=Counter(counts), stages={"encode": encode})


def test_a_build_from_start_to_end(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("build", 100)

    def after(seconds: float, state: Measured) -> None:
        clock[0] += seconds
        lines.show(state)

    after(9, measured())  # too early for a line
    after(2, measured())
    after(10, measured(builders=1))
    after(10, measured(builders=1, shards_begun=1))
    for second in range(1, 41):
        after(1, measured(builders=1, shards_begun=1, done=2 * second, encoding=second / 4))
    clock[0] += 10
    lines.show(measured(builders=1, done=100), last=True)
    assert capsys.readouterr().err.splitlines() == [
        "build: starting: encoders load",
        "build: starting: encoders load",
        "build: the first is at work",
        "build: 20 of 100 clips, 2.0 clips/s, encoders 25% busy, 40.0 s left",
        "build: 40 of 100 clips, 2.0 clips/s, encoders 25% busy, 30.0 s left",
        "build: 60 of 100 clips, 2.0 clips/s, encoders 25% busy, 20.0 s left",
        "build: 80 of 100 clips, 2.0 clips/s, encoders 25% busy, 10.0 s left",
        "build: 100 of 100 clips, 1.2 clips/s, 1:21",
    ]


def test_a_slow_build_is_told_by_the_clip(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines("build", 10)
    for done in (0, 1, 2):
        lines.show(measured(builders=1, shards_begun=1, done=done))
        clock[0] += 100
    assert capsys.readouterr().err.splitlines() == [
        "build: 1 of 10 clips, 100 s a clip, 15:00 left",
        "build: 2 of 10 clips, 100 s a clip, encoders 0% busy, 13:20 left",
    ]


def test_probing_counts_sources(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines("probe", 50)
    lines.show(measured())
    clock[0] += 10
    lines.show(measured())
    clock[0] += 10
    lines.show(measured(probers=1, probed=5))
    clock[0] += 10
    lines.show(measured(probers=1, probed=10))
    lines.show(measured(probers=1, probed=50))  # all: the last line comes by itself
    assert capsys.readouterr().err.splitlines() == [
        "probe: starting",
        "probe: 5 of 50 sources",
        "probe: 10 of 50 sources, 30.0 sources/min, 1:20 left",
    ]
