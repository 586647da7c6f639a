"""`pipeline watch` as a process: files arrive in every way, it is killed, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

import beam_runner
from pipeline import keeping
from pipeline.cache import open_cache
from pipeline.sources import read_sources
from pipeline.verifying import verify_cache
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from tests.clips import ClipShelf

ROOT = Path(beam_runner.__file__).parent
INTERVAL = 0.5
OVERRIDES = ("shards.max_seconds=2",)
PATIENCE_SECONDS = 90.0


class Watch:
    """A watch in a process of its own, and what it has said."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "pipeline", "watch", "inbox", "cache", "--json", "-q"]
        command += ["--interval", str(INTERVAL), *arguments]
        for override in OVERRIDES:
            command += ["--set", override]
        self.said = folder / f"said-{time.monotonic_ns()}.jsonl"
        with self.said.open("w") as out, self.said.with_suffix(".err").open("w") as err:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=out,
                stderr=err,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )

    @property
    def passes(self) -> list[dict[str, Any]]:
        lines = self.said.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    @property
    def err(self) -> str:
        return self.said.with_suffix(".err").read_text()

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self.process.poll() is None, self.err
            assert time.monotonic() < deadline, (self.passes[-1:], self.err)
            time.sleep(0.02)

    def num_videos(self) -> int:
        return sum(one["videos"] or 0 for one in self.passes)


@contextlib.contextmanager
def watching(folder: Path, *arguments: str) -> Iterator[Watch]:
    watch = Watch(folder, *arguments)
    try:
        yield watch
    finally:
        watch.process.kill()
        watch.process.wait()


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "inbox").mkdir()
    return tmp_path / "inbox"


def video(clips: ClipShelf, number: int, *, name: str = "25.mp4") -> bytes:
    """A video of its own content."""
    return clips[name].path.read_bytes() + b"\0\0\0\x0cfree" + number.to_bytes(4, "big")


def write_slowly(file: IO[bytes], data: bytes, *, num_parts: int) -> None:
    size = -(-len(data) // num_parts)
    for start in range(0, len(data), size):
        file.write(data[start : start + size])
        file.flush()
        time.sleep(INTERVAL / 3)


def samples(cache: Path) -> dict[str, dict[str, bytes]]:
    """Key -> name of a member -> its bytes."""
    found = {}
    with open_cache(cache) as opened:
        for key in opened.keys():  # noqa: SIM118 - iterating gives samples
            members = {n: b"".join(bytes(p) for p in d) for n, d in opened[key].to_members()}
            found[key] = members
    return found


def states(folder: Path) -> dict[Path, tuple[int, ...]]:
    """What a write changes of each file and folder.

    When they were last read is no part of it: listing a folder, as here, may be such a time.
    """
    found = {}
    for path in folder.rglob("*"):
        told = path.stat()
        found[path] = told.st_ino, told.st_mode, told.st_size, told.st_mtime_ns, told.st_ctime_ns
    return found


@pytest.mark.slow
def test_what_arrives_in_any_way_is_cached_as_by_one_run(
    clips: ClipShelf, inbox: Path, tmp_path: Path
) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside.mp4"
    (inbox / "deleted.mp4").write_bytes(video(clips, 0))
    with watching(tmp_path) as watch:
        watch.wait_for(lambda: watch.num_videos() == 1)
        (inbox / "deleted.mp4").unlink()
        with (inbox / "copied slowly.mp4").open("wb") as file:
            write_slowly(file, video(clips, 1), num_parts=9)
        outside.write_bytes(video(clips, 2))
        os.utime(outside, (1e9, 1e9))
        outside.rename(inbox / "moved here.mp4")
        (inbox / "broken.mp4").write_text("no video")
        stream = clips["goes_back.ts"].path.read_bytes()
        (inbox / "appended.ts").write_bytes(stream)
        watch.wait_for(lambda: watch.num_videos() == 4)
        before = samples(cache)
        with (inbox / "appended.ts").open("ab") as file:
            write_slowly(file, stream, num_parts=5)
        watch.wait_for(lambda: watch.num_videos() == 5)
        assert verify_cache(cache, deep=True).findings == []
        for number in range(10, 16):
            (inbox / f"{number}.mp4").write_bytes(video(clips, number, name="b_frames.mp4"))
        shards = set((cache / "shards").glob("*.json"))
        watch.wait_for(lambda: len(set((cache / "shards").glob("*.json")) - shards) >= 2)
        watch.process.kill()
        watch.process.wait()
    passes = watch.passes
    assert [one["error"] for one in passes if one["error"]] == []
    assert max(one["waiting"] for one in passes) > 0
    assert (cache / ".tmp").exists()
    assert samples(cache).keys() >= before.keys()
    with watching(tmp_path, "--once") as again:
        assert again.process.wait(PATIENCE_SECONDS) == 0, again.err
    assert again.passes[-1]["rejected"] in (1, None)
    assert not (cache / ".tmp").exists()
    assert verify_cache(cache, deep=True).findings == []

    whole = tmp_path / "whole"
    beam_runner.run(
        read_sources([str(inbox)]).sources,
        Recipe.load("tiny", overrides=OVERRIDES),
        cache_path=whole,
    )
    watched, at_once = samples(cache), samples(whole)
    assert {key: watched[key] for key in at_once} == at_once
    # What was there for a while is still cached: nothing that is committed is ever taken away.
    assert {key: watched[key] for key in before} == before
    with open_cache(cache) as opened, open_cache(whole) as other:
        assert len(opened.videos) == len(other.videos) + 2
        assert other.info.counts["rejected"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_says_how_to_go_on(
    clips: ClipShelf, inbox: Path, tmp_path: Path, number: signal.Signals
) -> None:
    (inbox / "a.mp4").write_bytes(video(clips, 1))
    with watching(tmp_path) as watch:
        watch.wait_for(lambda: watch.num_videos() == 1)
        count = len(watch.passes)
        before = states(tmp_path / "cache")
        watch.wait_for(lambda: len(watch.passes) > count + 3)
        assert states(tmp_path / "cache") == before
        watch.process.send_signal(number)
        assert watch.process.wait(PATIENCE_SECONDS) == 128 + number
    assert "What is committed is kept: run the same command again to go on." in watch.err
    assert "Traceback" not in watch.err
    assert [one["new"] for one in watch.passes].count(1) == 1


@pytest.mark.slow
def test_a_cache_that_is_held_is_waited_for(clips: ClipShelf, inbox: Path, tmp_path: Path) -> None:
    from pipeline.layout import CacheLayout
    from pipeline.locking import hold_cache

    (inbox / "a.mp4").write_bytes(video(clips, 1))
    with hold_cache(CacheLayout(tmp_path / "cache")), watching(tmp_path, "--settle", "0") as watch:
        watch.wait_for(lambda: any(one["error"] for one in watch.passes))
        assert watch.passes[-1]["error"]["kind"] == "CacheHeld"
        assert watch.passes[-1]["next_seconds"] > INTERVAL
    with watching(tmp_path, "--once") as watch:
        assert watch.process.wait(PATIENCE_SECONDS) == 0
    assert verify_cache(tmp_path / "cache").findings == []


@pytest.mark.slow
def test_only_broken_files_are_no_end_but_no_success(inbox: Path, tmp_path: Path) -> None:
    (inbox / "a.mp4").write_text("no video")
    with watching(tmp_path, "--settle", "0", "--passes", "3") as watch:
        assert watch.process.wait(PATIENCE_SECONDS) == 0
    assert [one["error"] and one["error"]["kind"] for one in watch.passes] == [
        "NothingUsable",
        None,
        None,
    ]
    with watching(tmp_path, "--settle", "0", "--once") as watch:
        assert watch.process.wait(PATIENCE_SECONDS) == 3
    assert "none of 1 sources is usable: 1 not_a_video" in watch.err


def test_encoders_are_kept_from_run_to_run(
    clips: ClipShelf, inbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []
    load = keeping.load_encoders

    def load_and_count(*args: Any, **kwargs: Any) -> Any:
        loads.append(args)
        return load(*args, **kwargs)

    monkeypatch.setattr(keeping, "load_encoders", load_and_count)
    monkeypatch.setattr(keeping, "_KEPT", {})

    def run(*, keep: bool, overrides: tuple[str, ...] = (), cache: str = "cache") -> None:
        number = len(list(inbox.iterdir()))
        (inbox / f"{number}.mp4").write_bytes(video(clips, number, name="one_frame.mp4"))
        beam_runner.run(
            read_sources([str(inbox)]).sources,
            Recipe.load("tiny", overrides=overrides),
            cache_path=tmp_path / cache,
            options=beam_runner.RunOptions(keep_encoders=keep),
        )

    run(keep=True)
    run(keep=True)
    assert len(loads) == 1
    run(keep=True, overrides=("sampling.frames_per_clip=2",), cache="other")
    assert len(loads) == 2
    run(keep=False)
    assert len(loads) == 3
    assert keeping._KEPT == {}
    assert verify_cache(tmp_path / "cache", deep=True).findings == []
