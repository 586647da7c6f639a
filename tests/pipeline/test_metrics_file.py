"""How a run is getting on, for machines."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.measuring import COUNTS, Measured, ShardDone, StageTime
from pipeline.metrics_file import MetricsFile, Snapshot, prometheus_text
from schemas.errors import UsageError
from tests.exposition import parse

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def snapshot(
    *, seconds: float = 10.0, cache: str = "cache", stage: str = "build", **counts: int
) -> Snapshot:
    encode = StageTime(num=4, seconds=6.5, active_seconds=seconds / 2, longest_seconds=2.25)
    measured = Measured(
        counts=Counter(builders=2) + Counter(counts),
        stages={"encode": encode, "wait_decode": encode},
    )
    return Snapshot(cache=cache, stage=stage, seconds=seconds, total=100, measured=measured)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_added_and_rates_are_of_the_time_between(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"event": "end"}\n')
    file = MetricsFile(path)
    file.tell_progress(snapshot(seconds=10, done=20))
    file.tell_progress(snapshot(seconds=15, done=50, rejects_crashed=1, rejects=1))
    file.tell_end(snapshot(seconds=20, done=50), ok=True, result={"report": {"clips": 50}})
    old, first, second, end = lines_of(path)
    assert old == {"event": "end"}
    assert [one["event"] for one in (first, second, end)] == ["progress", "progress", "end"]
    assert first["rates"]["done_per_second"] == 2.0
    assert second["rates"]["done_per_second"] == 6.0
    assert end["rates"]["done_per_second"] == 2.5
    assert second["waits"]["wait_decode"] == 0.25  # 2.5 s of two workers' 10 s
    assert second["rejects"] == {"crashed": 1}
    assert second["stages"]["encode"]["longest_seconds"] == 2.25
    assert (end["ok"], end["report"]) == (True, {"clips": 50})


def test_fields_are_those_of_the_documentation(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    file = MetricsFile(path)
    file.tell_progress(snapshot())
    file.tell_shard(
        ShardDone(name="a", videos=1, clips=2, frames=8, bytes=9, seconds=0.5, rejects={})
    )
    progress, shard = lines_of(path)
    section = PAGE.partition("## JSON lines")[2]
    for event, value in (("progress", progress), ("shard", shard)):
        row = re.search(rf"^\| `{event}` \|.*$", section, re.MULTILINE)
        assert row
        names = set(re.findall(r"`(\w+)`", row[0])) - {"probe", "build"}
        assert names | {"time", "event"} == value.keys() | {event}
    for name in (*progress["rates"], *progress["waits"]):
        assert f"`{name}`" in PAGE
    assert progress["counts"].keys() == COUNTS.keys()


def test_prometheus_reads_it(tmp_path: Path) -> None:
    cache = 'quote " back \\ line\nend é'
    text = prometheus_text(
        snapshot(cache=cache, done=7, rejects=3, rejects_crashed=1, rejects_timed_out=2),
        running=True,
        ok=True,
    )
    families = parse(text)
    assert all(name.startswith("reelcache_") for name in families)
    label = ("cache", cache)
    done = families["reelcache_done_total"]
    assert (done.kind, done.samples) == ("counter", {("reelcache_done_total", (label,)): 7.0})
    rejects = families["reelcache_rejects_total"].samples
    assert {labels[1]: value for (_, labels), value in rejects.items()} == {
        ("reason", "crashed"): 1.0,
        ("reason", "timed_out"): 2.0,
    }
    summary = families["reelcache_stage_seconds"]
    encode = (label, ("stage", "encode"))
    assert summary.kind == "summary"
    assert summary.samples["reelcache_stage_seconds_sum", encode] == 6.5
    assert summary.samples["reelcache_stage_seconds_count", encode] == 4
    assert families["reelcache_builders"].kind == "gauge"
    assert families["reelcache_planned"].samples == {
        ("reelcache_planned", (label, ("stage", "build"))): 100.0
    }


def test_names_for_prometheus_are_documented() -> None:
    section = PAGE.partition("## Prometheus")[2].partition("## Beam")[0]
    told = set(re.findall(r"`([a-z_]+)(?:\{\w+\})?`", section))
    told |= {f"{name}_total" for name in COUNTS}
    for name, family in parse(prometheus_text(snapshot(), running=True, ok=True)).items():
        ends = ("_sum", "_count") if family.kind == "summary" else ("",)
        assert {name.removeprefix("reelcache_") + end for end in ends} <= told


def test_the_file_for_prometheus_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.prom"
    file = MetricsFile(path)
    file.check()
    assert not path.exists()
    file.tell_progress(snapshot(done=1))
    with path.open() as reader:
        file.tell_shard(
            ShardDone(name="a", videos=1, clips=2, frames=8, bytes=9, seconds=0.5, rejects={})
        )
        file.tell_end(snapshot(done=2), ok=False, result={"error": "x"})
        before = parse(reader.read())
    after = parse(path.read_text())
    for families, running, ok in ((before, 1, 1), (after, 0, 0)):
        assert [*families["reelcache_run_running"].samples.values()] == [running]
        assert [*families["reelcache_run_ok"].samples.values()] == [ok]
    assert [path.name for path in tmp_path.iterdir()] == ["run.prom"]
    assert path.stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize(
    "name", ["gone/run.jsonl", "gone/run.prom", "folder", "folder.prom", "fifo"]
)
def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.prom").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match=r"--metrics .*cannot be written: .") as caught:
        MetricsFile(tmp_path / name).check()
    assert caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "folder", "folder.prom"]


@pytest.mark.parametrize("name", ["run.jsonl", "run.prom"])
def test_a_disk_that_fails_later_costs_no_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    file = MetricsFile(tmp_path / "there" / name)
    file.check()
    for path in (tmp_path / "there").iterdir():
        path.unlink()
    (tmp_path / "there").rmdir()
    file.tell_progress(snapshot())
    file.tell_end(snapshot(), ok=True, result={})
    assert name in file.complaint
