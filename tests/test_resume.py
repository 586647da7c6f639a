"""A run that ends anywhere, and the next one: the cache is that of an uninterrupted run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import beam_runner
from pipeline.cache import open_cache
from pipeline.decoding import Decoding
from pipeline.fetching import Fetcher
from pipeline.finalizing import read_sidecars
from pipeline.layout import CacheLayout
from pipeline.planning import read_plan
from pipeline.report import RunReport
from pipeline.sources import read_sources
from pipeline.verifying import verify_cache
from schemas.errors import CacheDamaged, CacheError, TooManyRejects, VideoError
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from tests.clips import ClipShelf

TINY = Recipe.load("tiny", overrides=["shards.max_seconds=4"])


class Killed(BaseException):
    """The end of a process, as far as one process can play it."""


def run(cache: Path, *arguments: Path, **options: Any) -> RunReport:
    sources = read_sources([str(path) for path in arguments]).sources
    return beam_runner.run(
        sources,
        TINY,
        cache_path=cache,
        options=beam_runner.RunOptions(**options),
    )


def contents(cache: Path) -> dict[str, bytes]:
    """What readers see; the tables of probes and plans are a file each time they grew."""
    return {
        str(path.relative_to(cache)): path.read_bytes()
        for path in sorted(cache.rglob("*"))
        if path.is_file() and path.relative_to(cache).parts[0] not in ("probes", "plan")
    }


@pytest.fixture
def first(clips: ClipShelf, tmp_path: Path) -> Path:
    return Path(shutil.copy(clips["25.mp4"].path, tmp_path / "first.mp4"))


@pytest.fixture
def second(clips: ClipShelf, tmp_path: Path) -> Path:
    return Path(shutil.copy(clips["50.mp4"].path, tmp_path / "second.mp4"))


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    def call_and_end(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        raise Killed

    return call_and_end


def instead(_: Callable[..., Any]) -> Callable[..., Any]:
    def end(*_: Any, **__: Any) -> Any:
        raise Killed

    return end


@pytest.mark.parametrize("begun", ["new cache", "cache of an earlier run"])
@pytest.mark.parametrize(
    ("place", "when"),
    [
        ("beam_runner.write_probes", instead),
        ("beam_runner.write_probes", after),
        ("beam_runner.write_plan", after),
        ("beam_runner.build", instead),
        ("beam_runner.read_sidecars", after),
        ("beam_runner.finalize_cache", instead),
        ("pipeline.finalizing.publish_rows", after),
        ("pipeline.finalizing.write_neighbour_files", instead),
        ("pipeline.finalizing.write_neighbour_files", after),
    ],
)
def test_a_run_that_is_killed_goes_on(
    first: Path,
    second: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begun: str,
    place: str,
    when: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> None:
    whole, cache = tmp_path / "whole", tmp_path / "cache"
    for one in (whole, cache):
        if begun != "new cache":
            run(one, first)
    run(whole, first, second)
    module, _, name = place.rpartition(".")
    with monkeypatch.context() as patch:
        patch.setattr(place, when(getattr(sys.modules[module], name)))
        with pytest.raises(Killed):
            run(cache, first, second)
    run(cache, first, second)
    assert contents(cache) == contents(whole)
    assert verify_cache(cache, deep=True).findings == []
    assert not (cache / ".tmp").exists()


def test_a_reject_rate_that_is_raised_finishes_the_cache(
    first: Path, second: Path, tmp_path: Path
) -> None:
    cache, bad = tmp_path / "cache", tmp_path / "bad.mp4"
    bad.write_text("no video")
    run(cache, first)
    with pytest.raises(TooManyRejects):
        run(cache, first, second, bad, max_reject_rate=0.1)
    run(cache, first, second, bad)
    with open_cache(cache) as opened:
        assert len(opened.videos) == 2
    assert verify_cache(cache).findings == []


def test_a_new_run_with_nothing_usable_leaves_the_old_content(first: Path, tmp_path: Path) -> None:
    cache, bad = tmp_path / "cache", tmp_path / "bad.mp4"
    bad.write_text("no video")
    run(cache, first)
    with pytest.raises(TooManyRejects, match="none of 1 sources"):
        run(cache, bad)
    with open_cache(cache) as opened:
        assert opened.info.counts["rejected"] == 1
        assert len(opened.videos) == 1
    assert verify_cache(cache).findings == []


def test_files_that_moved_before_they_were_built_are_found(
    first: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    with monkeypatch.context() as patch:
        patch.setattr("beam_runner.build", instead(beam_runner.build))
        with pytest.raises(Killed):
            run(cache, first, second)
    elsewhere.mkdir()
    for path in (first, second):
        path.rename(elsewhere / path.name)
    report = run(cache, elsewhere)
    assert (report.videos, report.rejected) == (2, 0)


def test_a_file_that_was_away_during_the_build_is_cached_when_it_is_back(
    first: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, away = tmp_path / "cache", tmp_path / "away"
    listed = tmp_path / "list.txt"
    listed.write_text(f"{first}\n{second}\n")
    build = beam_runner.build

    def build_without(*args: Any, **kwargs: Any) -> Any:
        second.rename(away)
        return build(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr("beam_runner.build", build_without)
        assert run(cache, listed).rejected == 1
    assert run(cache, listed).rejected == 1
    away.rename(second)
    report = run(cache, listed)
    assert (report.videos, report.rejected) == (1, 0)
    assert verify_cache(cache).findings == []
    report = run(cache, listed)
    assert (report.videos, report.skipped, report.rejected) == (0, 2, 0)


def test_a_piece_whose_file_was_away_is_cached_when_it_is_back(
    clips: ClipShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video, away = tmp_path / "video.mp4", tmp_path / "away"
    shutil.copy(clips["b_frames.mp4"].path, video)
    listed = tmp_path / "list.txt"
    listed.write_text(f"{video}\n")
    recipe = Recipe.load("tiny", overrides=["shards.target_bytes=45000"])
    sources = read_sources([str(listed)]).sources
    whole, cache = tmp_path / "whole", tmp_path / "cache"
    beam_runner.run(sources, recipe, cache_path=whole)
    path_of = Fetcher.path
    calls = 0

    def gone_the_second_time(self: Fetcher, piece: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise VideoError("not_found", "no such file")
        return path_of(self, piece)

    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "path", gone_the_second_time)
        report = beam_runner.run(sources, recipe, cache_path=cache)
    assert report.missing > 0
    video.rename(away)
    assert beam_runner.run(sources, recipe, cache_path=cache).clips == 0
    away.rename(video)
    assert beam_runner.run(sources, recipe, cache_path=cache).clips == report.missing
    assert verify_cache(cache).findings == []
    with open_cache(whole) as one, open_cache(cache) as other:
        assert one.keys() == other.keys()
    assert beam_runner.run(sources, recipe, cache_path=cache).clips == 0


def test_a_file_that_is_overwritten_while_it_is_read_is_a_reject(
    first: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Decoding.clips

    def decode_and_overwrite(self: Decoding) -> Any:
        for clip in decode(self):
            first.write_bytes(second.read_bytes())
            yield clip

    with monkeypatch.context() as patch:
        patch.setattr(Decoding, "clips", decode_and_overwrite)
        with pytest.raises(TooManyRejects, match="1 source_changed"):
            run(tmp_path / "cache", first)


def test_a_decoder_that_is_killed_once_costs_nothing(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cache = tmp_path / "whole", tmp_path / "cache"
    run(whole, first)
    decode, killed = Decoding.clips, []

    def kill_and_decode(self: Decoding) -> Any:
        if not killed:
            for exchange in self._exchanges:
                assert exchange.process.pid is not None
                killed.append(exchange.process.pid)
                os.kill(exchange.process.pid, signal.SIGKILL)
            raise VideoError("crashed", "signal SIGKILL")
        yield from decode(self)

    with monkeypatch.context() as patch:
        patch.setattr(Decoding, "clips", kill_and_decode)
        run(cache, first)
    assert killed
    assert contents(cache) == contents(whole)


def test_a_cached_video_stays_when_its_file_has_gone(
    first: Path, second: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    run(cache, first, second)
    before = contents(cache)
    listed = tmp_path / "list.txt"
    listed.write_text(f"{first}\n{second}\n")
    second.unlink()
    report = run(cache, listed)
    assert (report.videos, report.skipped, report.rejected) == (0, 2, 0)
    assert contents(cache) == before


def test_a_list_that_is_corrected_is_cached(first: Path, second: Path, tmp_path: Path) -> None:
    cache, listed = tmp_path / "cache", tmp_path / "list.csv"
    listed.write_text(f"uri,id\n{first},x\n{second},x\n")
    with pytest.raises(TooManyRejects):
        run(cache, listed)
    listed.write_text(f"uri,id\n{first},x\n{second},y\n")
    report = run(cache, listed)
    assert (report.videos, report.rejected) == (2, 0)


def test_a_deleted_shard_is_built_again_with_the_same_bytes(
    first: Path, second: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    run(cache, first, second)
    before = contents(cache)
    tar = min((cache / "shards").glob("*.tar"))
    tar.unlink()
    with pytest.raises(CacheDamaged, match="is gone") as caught:
        run(cache, first, second)
    assert str(tar.with_suffix(".json")) in caught.value.hint
    tar.with_suffix(".json").unlink()
    run(cache, first, second)
    assert contents(cache) == before


@pytest.mark.parametrize("name", ["index", "wids.json", ".nv-meta", "rejects", "cache.json"])
def test_derived_files_are_written_again(first: Path, tmp_path: Path, name: str) -> None:
    cache = tmp_path / "cache"
    run(cache, first)
    before = contents(cache)
    path = cache / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    run(cache, first)
    assert contents(cache) == before


def test_a_lost_plan_is_damage_and_not_a_smaller_cache(
    first: Path, second: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    run(cache, first)
    before = contents(cache)
    shutil.rmtree(cache / "plan")
    assert {finding.kind for finding in verify_cache(cache).findings} == {"table", "plan"}
    with pytest.raises(CacheDamaged, match="does not know 1 of the shards"):
        run(cache, second)
    assert contents(cache) == before


def test_a_cache_of_a_newer_format_is_left_alone(first: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run(cache, first)
    info = cache / "cache.json"
    info.write_text(info.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(CacheError, match="format version 2"):
        run(cache, first)


def test_where_a_video_is_cut_makes_no_difference_to_its_samples(
    clips: ClipShelf, tmp_path: Path
) -> None:
    names = ("b_frames.mp4", "goes_back.ts", "growing_pictures.ts", "variable_rate.mp4")
    paths = [str(clips[name].path) for name in names]
    samples: list[dict[str, Any]] = []
    for target_bytes in (10**9, 45_000):
        recipe = Recipe.load("tiny", overrides=[f"shards.target_bytes={target_bytes}"])
        cache = tmp_path / str(target_bytes)
        beam_runner.run(read_sources(paths).sources, recipe, cache_path=cache)
        assert verify_cache(cache).findings == []
        with open_cache(cache) as opened:
            found = {}
            for key in opened.keys():  # noqa: SIM118 - iterating gives samples
                members = opened[key].to_members()
                found[key] = {name: b"".join(bytes(p) for p in data) for name, data in members}
            samples.append(found)
    assert len(read_sidecars(read_plan(CacheLayout(cache)), CacheLayout(cache))) > len(names)
    assert samples[0] == samples[1]


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found.append(int(path.parent.name))
    return sorted(found)


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_with_a_sentence(
    clips: ClipShelf, tmp_path: Path
) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(24):
        data = clips["b_frames.mp4"].path.read_bytes()
        (videos / f"{number}.mp4").write_bytes(data + b"\0\0\0\x0cfree" + number.to_bytes(4, "big"))
    command = [sys.executable, "-m", "pipeline", "run", "videos", "cache", "--workers", "2"]
    command += ["--set", "shards.max_seconds=2", "--set", "sampling.fps=10"]
    root = str(Path(beam_runner.__file__).parent)
    child = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    try:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "cache" / "shards").glob("*.json")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        worker, *_ = [pid for pid in children(child.pid) if "pipeline.worker" in command_of(pid)]
        os.kill(worker, signal.SIGKILL)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 2, err
    assert "a worker process died (SIGKILL" in err
    assert "Traceback" not in err
