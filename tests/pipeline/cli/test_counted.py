"""How much is done: a bar on a terminal, a line now and then elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from pipeline.cli import counted as module
from pipeline.cli.counted import counted


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def count(clock: SimpleNamespace, *, quiet: bool = False) -> None:
    with counted(4000, "copied", quiet=quiet) as tell:
        for _ in range(4):
            clock.seconds += 6
            tell(1000)


def test_a_line_every_ten_seconds(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    count(clock)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "2.0 kB of 4.0 kB copied, 12.0 s left",
        "4.0 kB of 4.0 kB copied, 0.0 s left",
    ]


def test_a_bar_on_a_terminal_that_is_gone_at_the_end(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    count(clock)
    shown = capsys.readouterr().err.split("\r\x1b[K")[1:]
    assert len(shown) == 5 and shown[-1] == ""
    assert shown[1] == "━" * 12 + " " * 12 + " 2.0 kB of 4.0 kB copied, 12.0 s left"


def test_nothing_when_quiet(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    count(clock, quiet=True)
    assert capsys.readouterr().err == ""


def test_of_nothing_all_is_done(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    with counted(0, "copied", quiet=False) as tell:
        clock.seconds += 60
        tell(0)
    assert capsys.readouterr().err == "0 bytes of 0 bytes copied, 0.0 s left\n"
