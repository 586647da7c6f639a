"""What owner and workers tell each other when an engine is between them."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import engine_meeting as module
from pipeline.engine_meeting import EngineMeeting, ReportedError
from pipeline.measuring import Measured
from pipeline.places import Place, to_place
from pipeline.run_folder import read_source_file
from schemas import errors
from schemas.errors import ReelcacheError, StorageError
from schemas.video import Probe, Source

ROOT = Path(module.__file__).parents[1]


@pytest.fixture(params=["local", "remote"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "local":
        yield tmp_path / "run-1"
        return
    folder = to_place("memory://meeting/.tmp/run-1")
    yield folder
    with contextlib.suppress(FileNotFoundError):
        folder.fs.rm("/meeting", recursive=True)


@pytest.fixture
def meeting(place: Place) -> EngineMeeting:
    return EngineMeeting(place, cache="gs://bucket/cache")


def error_of(meeting: EngineMeeting, error: Exception) -> Exception:
    with pytest.raises(ReportedError) as caught, meeting.reported_errors():
        raise error
    return caught.value


def test_sources_are_read_from_the_file_that_a_job_names(meeting: EngineMeeting) -> None:
    sources = [Source(uri='gs://b/it\'s "é"\n.mp4', extra={"a": [1]}), Source(uri="gs://b/2.mp4")]
    meeting.write_sources(sources)
    assert list(read_source_file(meeting.sources_file)) == sources


def test_probes_of_all_workers_are_read_and_repeated_ones_once(meeting: EngineMeeting) -> None:
    probes = [Probe(source=Source(uri=f"gs://b/{n}\u2028.mp4")) for n in range(4)]
    assert meeting.read_probes() == []
    for some in (probes[:2], probes[1:], probes[:1]):
        meeting.write_probes(some)
    found = sorted(meeting.read_probes(), key=lambda probe: probe.source.uri)
    assert found == probes


def test_it_can_be_sent_to_a_worker(meeting: EngineMeeting) -> None:
    class Result:
        def job_id(self) -> str:
            return "2026-11-30_1"

        def __reduce__(self) -> Any:
            raise TypeError("a connection")

    meeting.follow(Result())
    assert meeting.job == "2026-11-30_1"
    sent = pickle.loads(pickle.dumps(meeting))
    assert sent.sources_file == meeting.sources_file
    assert len(pickle.dumps(meeting)) < 1000


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, ReelcacheError) and name != "VideoError"
    ],
)
def test_an_error_survives_as_text(meeting: EngineMeeting, name: str) -> None:
    error = getattr(errors, name)("cache/: cannot be 'é'\nat all: {x}", hint="free some \\ space")
    text = str(error_of(meeting, error))
    for handed_on in (text, repr(text), f"Traceback ...\n{text} [while running 'BuildShards']"):
        reported = meeting.reported_error(RuntimeError(handed_on))
        assert type(reported) is type(error)
        assert reported is not None
        assert (reported.message, reported.hint) == (error.message, error.hint)


def test_an_error_that_another_one_hides_is_found(meeting: EngineMeeting) -> None:
    try:
        try:
            raise error_of(meeting, StorageError("full"))
        except ReportedError as inner:
            raise ValueError("the engine is confused") from inner
    except ValueError as outer:
        assert str(meeting.reported_error(outer)) == "full"


def test_an_engine_that_cuts_text_off_leaves_no_half_error(meeting: EngineMeeting) -> None:
    text = str(error_of(meeting, StorageError("the disk is full " * 50)))
    assert meeting.reported_error(RuntimeError(text[:100])) is None
    assert meeting.reported_error(RuntimeError("worker lost")) is None


def test_a_bug_is_told_with_its_traceback(meeting: EngineMeeting) -> None:
    text = error_of(meeting, KeyError("lost"))
    with pytest.raises(RuntimeError, match=r"(?s)test_engine_meeting.*KeyError: 'lost'"):
        meeting.reported_error(text)


class Metrics:
    """Of an engine that answers."""

    def __init__(self, counts: dict[tuple[str, str], int | None]) -> None:
        self.counts = counts
        self.asked = 0

    def metrics(self) -> Metrics:
        self.asked += 1
        return self

    def query(self, wanted: Any) -> dict[str, list[Any]]:
        assert wanted.namespaces == {"reelcache"}
        return {"counters": [_counter(name, n) for (_, name), n in self.counts.items()]}


def _counter(name: str, value: int | None) -> Any:
    from apache_beam.metrics.execution import MetricKey, MetricResult
    from apache_beam.metrics.metricbase import MetricName

    return MetricResult(MetricKey("step", MetricName("reelcache", name)), None, value)


def test_counts_of_all_steps_are_summed_and_asked_for_now_and_then(
    meeting: EngineMeeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert meeting.measured() == Measured()
    engine = Metrics({("a", "done"): 3, ("b", "done"): 4, ("a", "probed"): None})
    meeting.follow(engine)
    assert meeting.measured().counts["done"] == 7
    engine.counts["a", "done"] = 5
    assert meeting.measured().counts["done"] == 7
    assert engine.asked == 1
    later = time.monotonic() + 2 * module.ASK_SECONDS
    monkeypatch.setattr(module.time, "monotonic", lambda: later)
    assert meeting.measured().counts["done"] == 9


def test_an_engine_that_does_not_answer_costs_the_progress_only(meeting: EngineMeeting) -> None:
    class Broken:
        def metrics(self) -> Any:
            raise ConnectionError

    meeting.follow(Broken())
    assert meeting.measured() == Measured()


def test_processes_of_a_machine_get_other_numbers_and_leave_them_when_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "from pathlib import Path; from pipeline.engine_meeting import EngineMeeting\n"
        "print(EngineMeeting(Path('x'), cache='').claim_number(), flush=True); input()"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}

    def start() -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    started = [start(), start()]
    assert sorted(number for _, number in started) == [0, 1]
    first, number = started[0]
    first.communicate("\n")
    again = start()
    assert again[1] == number
    for process, _ in (started[1], again):
        process.communicate("\n")
