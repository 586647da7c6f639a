"""Where the processes of one run meet: sources, probes, counts and errors."""

import json
import pickle

import pytest

from pipeline import run_folder as module
from pipeline.run_folder import (
    ProgressCounter,
    RunFolder,
    decode_probe,
    encode_probe,
    read_source_file,
)
from schemas import errors
from schemas.errors import ReelcacheError, StorageError
from schemas.video import Probe, Source


@pytest.fixture
def run_folder(tmp_path):
    return RunFolder.create(tmp_path / ".tmp")


def test_every_run_has_a_folder_of_its_own(tmp_path):
    one, other = (RunFolder.create(tmp_path) for _ in range(2))
    assert one.path != other.path
    assert one.path.is_dir()
    assert other.path.is_dir()


def test_it_can_be_sent_to_a_worker(run_folder):
    assert pickle.loads(pickle.dumps(run_folder)).path == run_folder.path


def test_sources_are_read_as_they_were_written(run_folder):
    sources = [
        Source(uri='/videos/it\'s "é"\n日本.mp4', extra={"label": ["x", None, 1.5]}),
        Source(uri="file:///caf%E9.mp4", video_id="a b", start_seconds=-1.25, end_seconds=1 / 3),
    ]
    run_folder.write_sources(sources)
    assert list(read_source_file(run_folder.sources_file)) == sources


def test_no_sources_are_none(run_folder):
    run_folder.write_sources([])
    assert list(read_source_file(run_folder.sources_file)) == []


def test_a_probe_is_one_line(run_folder):
    probe = Probe(source=Source(uri="/a\nb\u2028.mp4"), video_id="v1", duration_seconds=0.1 + 0.2)
    rejected = probe.rejected("not_a_video", "line\nbreak")
    for one in (probe, rejected):
        line = encode_probe(one)
        assert line.isascii()
        assert "\n" not in line
        assert decode_probe(line) == one


def test_probes_are_read_from_all_files(run_folder):
    probes = [Probe(source=Source(uri=f"/{name}"), video_id=name) for name in "abc"]
    names = {run_folder.write_probes(some) for some in (probes[:2], [], probes[2:])}
    assert len(names) == 3
    assert sorted(p.video_id for p in run_folder.read_probes()) == ["a", "b", "c"]


def test_what_an_engine_did_twice_counts_once(run_folder):
    probe = Probe(source=Source(uri="/a"), video_id="a")
    for _ in range(2):
        run_folder.write_probes([probe, probe])
    assert list(run_folder.read_probes()) == [probe]


def test_without_an_error_none_is_reported(run_folder):
    assert run_folder.reported_error() is None


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, ReelcacheError) and name != "VideoError"
    ],
)
def test_an_error_of_a_worker_reaches_the_owner_as_itself(run_folder, name):
    error = getattr(errors, name)("cache/: cannot be 'é'", hint="free some space")
    run_folder.report_error(error)
    reported = run_folder.reported_error()
    assert type(reported) is type(error)
    assert (reported.message, reported.hint) == (error.message, error.hint)


def test_the_first_of_several_errors_is_enough(run_folder, monkeypatch):
    for pid, message in ((11, "one"), (12, "two")):
        monkeypatch.setattr(module.os, "getpid", lambda pid=pid: pid)
        run_folder.report_error(StorageError(message))
    assert str(run_folder.reported_error()) == "one"


def test_counts_of_all_workers_are_summed(run_folder, monkeypatch):
    for pid in (11, 12):
        monkeypatch.setattr(module.os, "getpid", lambda pid=pid: pid)
        count = ProgressCounter(run_folder)
        count(clips=2, frames=7)
        count(clips=1)
        count.flush()
    assert run_folder.totals() == {"clips": 6, "frames": 14}


def test_no_counts_are_zero(run_folder):
    assert run_folder.totals()["clips"] == 0


def test_counts_are_written_now_and_then_only(run_folder, monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    count = ProgressCounter(run_folder)
    count(clips=1)
    assert run_folder.totals()["clips"] == 1
    count(clips=1)
    assert run_folder.totals()["clips"] == 1
    now += 2 * module.WRITE_SECONDS
    count(clips=1)
    assert run_folder.totals()["clips"] == 3


def test_counts_are_never_seen_half_written(run_folder):
    count = ProgressCounter(run_folder)
    count(clips=1)
    (path,) = (run_folder.path / "progress").iterdir()
    assert json.loads(path.read_text()) == {"clips": 1}
    assert path.suffix == ".json"
