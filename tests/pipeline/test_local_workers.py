"""Workers of a local run that are killed: no run waits for the dead."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from pipeline import local_workers
from pipeline.launching import open_root
from pipeline.local_workers import LocalWorkers
from pipeline.options import RunOptions
from pipeline.run_folder import RunFolder
from schemas.errors import WorkerDied

pytestmark = pytest.mark.slow


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path)


def workers() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and "pipeline.worker" in (path.parent / "cmdline").read_text():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def note_and_wait(folder: str) -> Callable[[int], int]:
    # Made here, so that it is pickled by value: workers do not know this module.
    def work(number: int) -> int:
        import time
        from pathlib import Path

        (Path(folder) / str(number)).touch()
        time.sleep(60)
        return number

    return work


def kill_when(ready: Callable[[], bool], *, most: int, sign: int) -> threading.Thread:
    def look() -> None:
        deadline = time.monotonic() + 60
        while not (workers() and ready()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for pid in workers()[:most]:
            os.kill(pid, sign)

    thread = threading.Thread(target=look)
    thread.start()
    return thread


def run(run_folder: RunFolder, folder: Path) -> None:
    options = RunOptions(num_workers=2)
    with open_root(options, meeting=run_folder, stage="build", num_elements=8) as root:
        numbers = root | beam.Create(range(8)) | beam.Reshuffle()
        numbers | beam.Map(note_and_wait(str(folder)))


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("when", ["starting", "working"])
def test_a_worker_that_is_killed_ends_the_run_with_a_sentence(
    run_folder: RunFolder, tmp_path: Path, when: str, most: int
) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    killer = kill_when(
        lambda: when == "starting" or any(seen.iterdir()), most=most, sign=signal.SIGKILL
    )
    began = time.monotonic()
    with pytest.raises(WorkerDied, match=r"a worker process died \(SIGKILL, as the system does"):
        run(run_folder, seen)
    killer.join()
    assert time.monotonic() - began < 45
    assert workers() == []


def test_a_run_in_another_thread_ends_too(run_folder: RunFolder, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    killer = kill_when(lambda: any(seen.iterdir()), most=1, sign=signal.SIGTERM)
    caught: list[WorkerDied] = []

    def run_here() -> None:
        try:
            run(run_folder, seen)
        except WorkerDied as error:
            caught.append(error)

    thread = threading.Thread(target=run_here, daemon=True)
    thread.start()
    thread.join(60)
    killer.join()
    assert not thread.is_alive()
    assert "SIGTERM" in caught[0].message


def test_a_worker_that_cannot_start_says_why(
    run_folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_workers.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(WorkerDied, match="exit code 3: no such library"):
        run(run_folder, tmp_path)


@pytest.fixture
def hook() -> Iterator[Callable[..., object]]:
    before = threading.excepthook
    yield before
    assert threading.excepthook is before


def test_workers_that_end_well_are_no_news(
    run_folder: RunFolder, hook: Callable[..., object]
) -> None:
    with LocalWorkers(run_folder) as some:
        runner = FnApiRunner(some.environment())
        options = beam.options.pipeline_options.PipelineOptions(["--direct_num_workers=2"])
        with beam.Pipeline(runner=runner, options=options) as root:
            root | beam.Create(range(8)) | beam.Reshuffle() | beam.Map(str)
        assert some.death() is None
    assert workers() == []
