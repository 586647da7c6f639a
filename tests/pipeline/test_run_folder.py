"""Where the processes of one run meet: sources, probes, counts and errors."""

import json
import pickle

import pytest

from pipeline import run_folder as module
from pipeline.measuring import ShardDone
from pipeline.run_folder import (
    ProgressCounter,
    RunFolder,
    ShardLog,
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
    assert run_folder.measured().counts == {"clips": 6, "frames": 14}


def test_no_counts_are_zero(run_folder):
    assert run_folder.measured().counts["clips"] == 0


def test_counts_are_written_now_and_then_only(run_folder, monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    count = ProgressCounter(run_folder)
    count(clips=1)
    assert run_folder.measured().counts["clips"] == 1
    count(clips=1)
    assert run_folder.measured().counts["clips"] == 1
    now += 2 * module.WRITE_SECONDS
    count(clips=1)
    assert run_folder.measured().counts["clips"] == 3


def test_counts_are_never_seen_half_written(run_folder):
    count = ProgressCounter(run_folder)
    count(clips=1)
    (path,) = (run_folder.path / "progress").iterdir()
    assert json.loads(path.read_text())["counts"] == {"clips": 1}
    assert path.suffix == ".json"


def shard(name, **rejects):
    return ShardDone(
        name=name, videos=1, clips=2, frames=8, bytes=1000, seconds=0.25, rejects=rejects
    )


def test_stages_of_one_worker_do_not_replace_each_other(run_folder):
    probing, building = ProgressCounter(run_folder), ProgressCounter(run_folder)
    probing(probed=4)
    building(done=1)
    assert run_folder.measured().counts == {"probed": 4, "done": 1}


def test_times_of_all_workers_are_summed_but_for_the_longest(run_folder, monkeypatch):
    for pid, times in ((11, (1.0, 3.0)), (12, (2.0,)), (11, (0.5,))):
        monkeypatch.setattr(module.os, "getpid", lambda pid=pid: pid)
        count = ProgressCounter(run_folder)
        for seconds in times:
            count.took("shard", seconds)
        count.flush()
    measured = run_folder.measured()
    assert measured.stage("shard").num == 4
    assert measured.stage("shard").seconds == 6.5
    assert measured.stage("shard").longest_seconds == 3.0
    assert measured.busiest_seconds == {"shard": 4.5}


def test_the_owner_is_told_of_every_shard_once(run_folder):
    one, other = ProgressCounter(run_folder), ProgressCounter(run_folder)
    log = ShardLog(run_folder)
    assert log.new() == []
    one.shard_done(shard("a"))
    other.shard_done(shard("b", crashed=2))
    assert sorted(log.new(), key=lambda one: one.name) == [shard("a"), shard("b", crashed=2)]
    assert log.new() == []
    one.shard_done(shard("c"))
    assert log.new() == [shard("c")]
    assert run_folder.measured().rejects == {"crashed": 2}


def test_half_a_line_waits_for_the_rest(run_folder):
    ProgressCounter(run_folder).shard_done(shard("a"))
    (path,) = (run_folder.path / "shards").iterdir()
    line = path.read_bytes()
    log = ShardLog(run_folder)
    path.write_bytes(line + line[:30])
    assert log.new() == [shard("a")]
    path.write_bytes(line + line)
    assert log.new() == [shard("a")]


def test_a_full_disk_costs_no_worker_its_work(run_folder):
    count = ProgressCounter(run_folder)
    for name in ("progress", "shards"):
        (run_folder.path / name).rmdir()
    count(done=1)
    count.shard_done(shard("a"))
    assert count.so_far().counts["done"] == 1
