"""The loop of a watch: which sources a pass takes, errors that go away, and when it ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline import watching
from pipeline.arriving import Moment
from pipeline.layout import CacheLayout
from pipeline.report import RunReport
from pipeline.watching import PassReport, WatchSettings
from schemas.errors import (
    CacheDamaged,
    CacheHeld,
    DeviceError,
    FingerprintMismatch,
    NothingUsable,
    RecipeError,
    ReelcacheError,
    SourceError,
    StorageError,
    TooManyRejects,
    WeightsError,
    WorkerDied,
)
from schemas.video import Source

START = 1_000_000.0
SETTLE = 10.0
REPORT = RunReport(
    videos=1,
    clips=2,
    frames=8,
    shards=1,
    bytes=100,
    missing=0,
    sources=1,
    rejected=0,
    retryable=0,
    skipped=0,
    seconds=0.5,
    fingerprint="f",
    cache="c",
    rejects=(),
)


class World:
    """A folder, a clock that only `sleep` moves, and a run that is noted and may fail."""

    def __init__(self, folder: Path) -> None:
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        self.layout = CacheLayout(folder / "cache")
        self.seconds = 0.0
        self.runs: list[list[str]] = []
        self.errors: list[BaseException | None] = []
        """Of the next runs."""
        self.events: dict[int, Callable[[], Any]] = {}
        """Pass -> what happens after it."""
        self.told: list[PassReport] = []
        self.pauses: list[float] = []
        self.run_seconds = 0.0

    def file(self, name: str, *, written: float = -100.0, text: str = "x") -> Path:
        path = self.inbox / name
        path.write_text(text)
        os.utime(path, (START + written, START + written))
        return path

    def run(self, sources: Sequence[Source]) -> RunReport:
        self.runs.append(sorted(Path(source.uri).name for source in sources))
        self.seconds += self.run_seconds
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return REPORT

    def watch(self, *arguments: str, **settings: Any) -> PassReport:
        def tell(report: PassReport) -> None:
            self.told.append(report)
            self.events.get(report.number, lambda: None)()

        def sleep(seconds: float) -> None:
            self.pauses.append(seconds)
            self.seconds += seconds

        settings = {"interval_seconds": 5.0, "settle_seconds": SETTLE, "num_passes": 6} | settings
        return watching.watch(
            arguments or [str(self.inbox)],
            layout=self.layout,
            run=self.run,
            settings=WatchSettings(**settings),
            tell=tell,
            sleep=sleep,
            now=lambda: Moment(steady=self.seconds, wall=START + self.seconds),
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_only_a_difference_is_a_run(world: World) -> None:
    world.file("a.mp4")
    world.events[3] = lambda: world.file("b.mp4")
    last = world.watch()
    assert world.runs == [["a.mp4"], ["a.mp4", "b.mp4"]]
    assert [report.new for report in world.told] == [1, 0, 0, 1, 0, 0]
    assert last.run is None
    assert not world.layout.root.exists()


def test_a_file_that_is_being_written_is_left_for_a_later_pass(world: World) -> None:
    world.events[1] = lambda: world.file("a.mp4", written=1)
    world.events[3] = lambda: world.file("a.mp4", written=12, text="xx")
    world.watch(num_passes=7)
    assert [(r.seen, r.waiting, r.new) for r in world.told] == [
        (0, 0, 0),
        (1, 1, 0),
        (1, 1, 0),
        (1, 1, 0),
        (1, 1, 0),
        (1, 0, 1),
        (1, 0, 0),
    ]


def test_a_file_that_changed_is_taken_again(world: World) -> None:
    world.file("a.mp4")
    world.events[2] = lambda: world.file("a.mp4", written=-50)
    world.watch()
    assert world.runs == [["a.mp4"], ["a.mp4"]]


def test_a_file_that_went_is_no_error_and_no_work(world: World) -> None:
    path = world.file("a.mp4")
    world.file("b.mp4")
    world.events[1] = path.unlink
    world.events[3] = lambda: world.file("a.mp4")
    last = world.watch()
    assert world.runs == [["a.mp4", "b.mp4"]]
    assert (last.error, last.complaints) == (None, ())


def test_a_listed_file_is_waited_for(world: World, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text(f"{world.inbox / 'a.mp4'}\n{world.inbox / 'b.mp4'}\n")
    os.utime(listed, (START - 50, START - 50))
    world.file("a.mp4")
    world.events[2] = lambda: world.file("b.mp4")
    world.watch(str(listed))
    assert [report.absent for report in world.told] == [1, 1, 0, 0, 0, 0]
    assert world.runs == [["a.mp4"], ["a.mp4", "b.mp4"]]


def test_latency_is_from_the_arrival_to_the_commit(world: World) -> None:
    world.run_seconds = 2.0
    world.events[1] = lambda: world.file("a.mp4", written=2)
    world.watch()
    (report,) = [report for report in world.told if report.new]
    # Written at 2, first seen at 5, whole at 15, committed at 17.
    assert report.latencies_seconds == (15.0,)
    assert report.to_json()["latency_seconds"] == {"median": 15.0, "max": 15.0}


def test_a_limit_takes_what_came_first(world: World) -> None:
    for number in range(5):
        world.file(f"{number}.mp4", written=-100 - number)
    last = world.watch(limit=2, once=True, num_passes=None)
    assert [report.new for report in world.told] == [2, 2, 1]
    assert [report.left for report in world.told] == [3, 1, 0]
    assert [len(names) for names in world.runs] == [2, 4, 5]
    assert world.pauses == [0.0, 0.0]
    assert last.next_seconds is None


def test_once_ends_when_all_that_is_there_is_done(world: World) -> None:
    world.file("a.mp4")
    world.file("b.mp4", written=-1)
    world.watch(once=True, num_passes=None)
    assert world.runs == [["a.mp4"], ["a.mp4", "b.mp4"]]
    assert [report.waiting for report in world.told] == [1, 1, 0]


@pytest.mark.parametrize(
    "error",
    [
        StorageError("c: cannot be written: No space left on device"),
        CacheHeld("c: another run is at work on this cache"),
        WorkerDied("a worker process died"),
        OSError(errno.ENOSPC, "No space left on device", "c"),
    ],
)
def test_an_error_that_goes_away_is_told_and_tried_again(world: World, error: Exception) -> None:
    world.file("a.mp4")
    world.errors = [error, error, error]
    world.watch()
    assert [report.error is None for report in world.told] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]
    assert world.runs == [["a.mp4"]] * 4
    assert world.pauses == [10.0, 20.0, 40.0, 5.0, 5.0]
    assert world.told[0].latencies_seconds == ()
    assert len(world.told[3].latencies_seconds) == 1


def test_pauses_grow_to_a_limit() -> None:
    settings = WatchSettings(interval_seconds=30.0)
    assert [settings.pause_seconds(n) for n in (0, 1, 2, 5, 1000)] == [30, 60, 120, 600, 600]
    assert WatchSettings(interval_seconds=3600.0).pause_seconds(3) == 3600


@pytest.mark.parametrize(
    "error",
    [
        FingerprintMismatch("made by another recipe"),
        CacheDamaged("a tar is gone"),
        WeightsError("no such weights"),
        RecipeError("unknown field"),
        DeviceError("no GPU"),
        TooManyRejects("9 of 10"),
        ZeroDivisionError("a bug"),
    ],
)
def test_an_error_that_stays_ends_the_watch(world: World, error: Exception) -> None:
    world.file("a.mp4")
    world.errors = [error]
    with pytest.raises(type(error)):
        world.watch()
    assert world.runs == [["a.mp4"]]


def test_a_place_that_may_not_be_written_is_told_at_once(world: World) -> None:
    def failure(number: int) -> ReelcacheError:
        error = StorageError("c: cannot be written")
        error.__cause__ = OSError(number, os.strerror(number))
        return error

    world.file("a.mp4")
    world.errors = [failure(errno.EACCES)]
    with pytest.raises(StorageError):
        world.watch()
    world.errors = [failure(errno.ENOSPC), failure(errno.EROFS)]
    world.watch()
    assert len(world.runs) == 4


def test_nothing_usable_so_far_is_told_and_waits_for_more(world: World) -> None:
    world.file("a.mp4")
    world.errors = [NothingUsable("none of 1 sources is usable")]
    world.events[2] = lambda: world.file("b.mp4")
    world.watch()
    assert world.runs == [["a.mp4"], ["a.mp4", "b.mp4"]]
    assert isinstance(world.told[0].error, NothingUsable)
    assert world.pauses == [5.0] * 5


def test_sources_that_are_not_there_at_the_start_are_a_mistake(world: World) -> None:
    with pytest.raises(SourceError, match="no such file or folder"):
        world.watch(str(world.inbox / "typo"))


def test_a_folder_that_is_gone_for_a_while_is_told_and_waited_for(world: World) -> None:
    world.file("a.mp4")
    away = world.inbox.with_name("away")
    world.events[2] = lambda: world.inbox.rename(away)
    world.events[4] = lambda: (away.rename(world.inbox), world.file("b.mp4"))
    world.watch()
    assert [len(report.complaints) for report in world.told] == [0, 0, 1, 1, 0, 0]
    assert world.pauses == [5.0, 5.0, 10.0, 20.0, 5.0]
    assert world.runs == [["a.mp4"], ["a.mp4", "b.mp4"]]
    told = world.told[2].to_json()
    assert told["complaints"][0]["kind"] == "SourceError"
    assert (told["seen"], told["videos"], told["error"]) == (0, None, None)


def test_what_is_left_is_told_after_a_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.file("a.mp4")
    world.errors = [StorageError("full")]
    monkeypatch.setattr(watching, "num_clips_left", lambda layout: 7)
    world.watch(num_passes=2)
    assert [report.clips_left for report in world.told] == [7, 0]


def test_a_plan_that_cannot_be_read_leaves_an_unknown_number(tmp_path: Path) -> None:
    layout = CacheLayout(tmp_path)
    assert watching.num_clips_left(layout) == 0
    layout.plan.mkdir()
    (layout.plan / "000000.parquet").write_text("no table")
    assert watching.num_clips_left(layout) is None
