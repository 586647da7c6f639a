"""A run that is followed: stderr, files of metrics, and the same cache as without."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.cli import call
from tests.exposition import Family, parse

if TYPE_CHECKING:
    from tests.clips import ClipShelf

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = ["--set", "shards.max_seconds=4"]
LINE = re.compile(
    r"^shard (train-\d{6}-[0-9a-f]{8}) committed: (\d+) videos, (\d+) clips, (\d+\.\d) MB,"
    r" \d+\.\d s, rejects (\d+)(?: \(\w+(?:, \w+)*\))?$",
    re.MULTILINE,
)


def contents(cache: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(cache)): path.read_bytes()
        for path in sorted(cache.rglob("*"))
        if path.is_file()
    }


def value(families: dict[str, Family], name: str, **labels: str) -> float:
    (found,) = (
        value
        for (sample, pairs), value in families[name].samples.items()
        if labels.items() <= dict(pairs).items()
    )
    return found


@pytest.fixture(scope="module")
def followed(clips: ClipShelf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with videos, and a cache of them by two workers with all that a run tells."""
    folder = tmp_path_factory.mktemp("followed")
    (folder / "videos").mkdir()
    for name in ("25.mp4", "30.mp4", "50.mp4"):
        shutil.copy(clips[name].path, folder / "videos" / name)
    (folder / "videos" / "broken.mp4").write_text("no video")
    command = [sys.executable, "-m", "pipeline", "run", "videos", "cache", *SETTINGS]
    command += ["--workers", "2", "-v", "--json"]
    command += ["--metrics", "run.jsonl", "--metrics", "run.prom"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder / "out.json").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return folder


@pytest.fixture
def events(followed: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (followed / "run.jsonl").read_text().splitlines()]


def test_both_workers_are_in_the_sums(followed: Path, events: list[dict[str, Any]]) -> None:
    report = json.loads((followed / "out.json").read_text())
    end = events[-1]
    families = parse((followed / "run.prom").read_text())
    assert (end["event"], end["ok"]) == ("end", True)
    assert end["workers"] == value(families, "reelcache_builders") == 2
    for name in ("videos", "clips", "frames", "bytes", "shards"):
        assert end["counts"][name] == report[name], name
        assert value(families, f"reelcache_{name}_total") == report[name], name
    assert report["shards"] >= 3
    assert end["counts"]["done"] == report["clips"]
    assert end["rejects"] == {"not_a_video": 1}
    assert value(families, "reelcache_rejects_total", reason="not_a_video") == 1
    for stage, times in report["stages"]["times"].items():
        count = families["reelcache_stage_seconds"].samples
        (num,) = (
            n
            for (name, labels), n in count.items()
            if name.endswith("_count") and dict(labels)["stage"] == stage
        )
        assert num == times["num"] == end["stages"][stage]["num"]
    assert report["stages"]["times"]["load"]["num"] == 2
    assert report["stages"]["times"]["decode"]["seconds"] > 0
    assert report["stages"]["bottleneck"]["kind"] == "start-up"
    assert end["report"].items() <= report.items()


def test_every_shard_has_its_line(followed: Path, events: list[dict[str, Any]]) -> None:
    shards = [event for event in events if event["event"] == "shard"]
    names = {path.stem for path in (followed / "cache" / "shards").glob("*.json")}
    assert sorted(shard["name"] for shard in shards) == sorted(names)
    told = LINE.findall((followed / "stderr").read_text())
    assert sorted(name for name, *_ in told) == sorted(names)
    assert {shard["line"] for shard in shards} == {
        match[0] for match in LINE.finditer((followed / "stderr").read_text())
    }
    for name, videos, clips, _, rejects in told:
        sidecar = json.loads((followed / "cache" / "shards" / f"{name}.json").read_text())
        assert int(clips) == len(sidecar["samples"])
        assert int(videos) == len({sample["video_id"] for sample in sidecar["samples"]})
        assert int(rejects) == len(sidecar["rejects"])


def test_progress_grows_and_times_go_on(events: list[dict[str, Any]]) -> None:
    told = [event for event in events if event["event"] == "progress"]
    assert told
    for name in ("probed", "done", "clips", "bytes"):
        counts = [event["counts"][name] for event in [*told, events[-1]]]
        assert counts == sorted(counts)
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)


def test_a_cache_that_nobody_follows_is_the_same(followed: Path) -> None:
    cache = followed / "cache"
    before = contents(cache)
    shutil.move(cache, followed / "kept")
    try:
        arguments = [str(followed / "videos"), str(cache), *SETTINGS, "--quiet"]
        assert call(["run", *arguments]) == 0
        # Tables name sources by absolute paths: both runs have read the same files.
        assert contents(cache) == before
    finally:
        shutil.rmtree(cache, ignore_errors=True)
        shutil.move(followed / "kept", cache)


def test_a_quiet_run_still_writes_its_metrics(
    followed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = tmp_path / "run.jsonl"
    arguments = [str(followed / "videos" / "25.mp4"), str(tmp_path / "cache"), "--quiet"]
    assert call(["run", *arguments, "--metrics", str(metrics)]) == 0
    assert capsys.readouterr().err == ""
    kinds = [json.loads(line)["event"] for line in metrics.read_text().splitlines()]
    assert kinds[-1] == "end"
    assert "shard" in kinds


def test_a_run_that_fails_has_a_last_word(
    followed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, prom = tmp_path / "run.jsonl", tmp_path / "run.prom"
    arguments = [str(followed / "videos" / "broken.mp4"), str(tmp_path / "cache")]
    assert call(["run", *arguments, "--metrics", str(lines), "--metrics", str(prom)]) == 3
    end = json.loads(lines.read_text().splitlines()[-1])
    assert (end["event"], end["ok"], end["rejects"]) == ("end", False, {"not_a_video": 1})
    assert end["error"] in capsys.readouterr().err
    families = parse(prom.read_text())
    assert value(families, "reelcache_run_ok") == value(families, "reelcache_run_running") == 0


@pytest.mark.parametrize("name", ["gone/run.jsonl", "gone/run.prom"])
def test_a_file_that_cannot_be_written_is_said_before_anything_is_done(
    followed: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    arguments = [str(followed / "videos"), str(cache), "--metrics", str(tmp_path / name)]
    assert call(["run", *arguments]) == 2
    assert f"--metrics {tmp_path / name}: cannot be written" in capsys.readouterr().err
    assert not cache.exists()


def test_the_first_rejects_of_each_reason_are_shown(
    followed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    shutil.copy(followed / "videos" / "25.mp4", videos)
    for number in range(5):
        (videos / f"broken {number}\n.mp4").write_text("no video")
    (videos / "empty.mp4").touch()
    cache = tmp_path / "the cache"
    assert call(["run", str(videos), str(cache)]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"^  not_a_video  /.*broken \d\\n\.mp4: \w", out, re.MULTILINE)) == 3
    assert len(re.findall(r"^  empty_file  /.*empty.mp4: zero bytes$", out, re.MULTILINE)) == 1
    quoted = f"pipeline rejects '{cache}'"
    assert f"  not_a_video  and 2 more: {quoted} --reason not_a_video\n" in out
    assert f"  all: {quoted}\n" in out
