"""Whole runs whose sources and caches lie in stores: S3, faults, kills; secrets stay secret."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import beam_runner
from encoders.whisper import SIZES, WhisperSize
from pipeline import open_cache, patience, read_sources, stores, verify_cache
from pipeline.cli import call
from pipeline.layout import CacheLayout
from pipeline.locking import hold_cache
from pipeline.places import list_sizes, read_bytes, scratch_for, to_place
from pipeline.report import RunReport
from pipeline.signing import url_of
from schemas.errors import ReelcacheError, StorageError, UsageError
from schemas.recipe import Recipe
from tests.stores import Fault, FaultyStore, PlainFaultyStore, WebServer, register, web_server

if TYPE_CHECKING:
    from s3fs import S3FileSystem

    from pipeline.places import Place
    from tests.clips import ClipShelf

TINY = Recipe.load("tiny", overrides=["shards.max_seconds=4"])
NAMES = ("25.mp4", "variable_rate.mkv", "half_a_second.mp4")
CANARY = "canary2d71c"
FOLDERS = ("", "shards", "index", "rejects", ".nv-meta")
"""Of a cache, of which every byte is the same wherever cache and sources are; probes/ and plan/
name the places."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture(scope="module")
def videos(clips: ClipShelf) -> dict[str, bytes]:
    return {name: clips[name].path.read_bytes() for name in NAMES}


@pytest.fixture(scope="module")
def local(videos: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache that all others are compared with."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "v").mkdir()
    for name, data in videos.items():
        (folder / "v" / name).write_bytes(data)
    run(folder / "cache", str(folder / "v"))
    return folder / "cache"


def run(cache: Any, *arguments: str, recipe: Recipe = TINY, **options: Any) -> RunReport:
    return beam_runner.run(
        read_sources(arguments).sources,
        recipe,
        cache_path=cache,
        options=beam_runner.RunOptions(**options),
    )


def contents(root: Place) -> dict[str, bytes]:
    """The files of a cache; cache.json without the digests of probes/ and plan/."""
    found = {}
    for folder in FOLDERS:
        place = root / folder if folder else root
        for name in list_sizes(place):
            found[f"{folder}/{name}"] = read_bytes(place / name)
    info = json.loads(found["/cache.json"])
    assert info.pop("tables")
    return found | {"/cache.json": json.dumps(info, sort_keys=True).encode()}


def is_same(cache: Any, other: Path) -> bool:
    one, two = contents(to_place(cache)), contents(other)
    assert one.keys() == two.keys()
    return [name for name in one if one[name] != two[name]] == []


class TestS3:
    def test_sources_and_cache_on_s3_give_the_local_bytes(
        self,
        s3: S3FileSystem,
        bucket: str,
        videos: dict[str, bytes],
        local: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        for name, data in videos.items():
            s3.pipe_file(f"{bucket}/v/{name}", data)
        cache = f"s3://{bucket}/deep/cache"
        report = run(cache, f"s3://{bucket}/v")
        assert (report.videos, report.rejected) == (3, 0)
        assert is_same(cache, local)
        assert not scratch_for(to_place(cache)).exists()
        again = run(cache, f"s3://{bucket}/v/*", f"s3://{bucket}/v/25.mp4")
        assert (again.clips, again.skipped) == (0, 3)
        assert is_same(cache, local)
        with open_cache(cache) as remote, open_cache(local) as expected:
            assert remote.keys() == expected.keys()
            key = remote.keys()[-1]
            assert repr(remote[key]) == repr(expected[key])
            assert next(remote.video(f"s3://{bucket}/v/25.mp4")).info["source_name"] == "25.mp4"
        capsys.readouterr()
        assert call(["verify", cache, "--deep", "--clips", "3", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["ok"]
        assert told["encoded_again"]["clips"] == 3
        assert told["encoded_again"]["not_encoded"] == {}
        # Others inside the same prefix: the cache is not input, and new files are added.
        s3.pipe_file(f"{bucket}/deep/50.txt", b"no")
        with pytest.raises(ReelcacheError, match="no video in"):
            read_sources([f"s3://{bucket}/deep"])

    def test_what_is_sampled_by_its_index_is_read_in_part(
        self, s3: S3FileSystem, bucket: str, local: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        s3.put(str(local), f"{bucket}/cache", recursive=True)
        asked: list[int] = []
        with open_cache(f"s3://{bucket}/cache") as cache:
            store: Any = cache.layout.root.fs  # type: ignore[union-attr]
            cat_file = store.cat_file

            def cat_part(path: str, start: int, end: int) -> Any:
                asked.append(end - start)
                return cat_file(path, start=start, end=end)

            monkeypatch.setattr(store, "cat_file", cat_part)
            for key in cache.keys()[:3]:
                assert cache[key].key == key
                assert asked.pop() == cache.row(key).num_bytes
            assert asked == []

    def test_of_two_runs_one_is_told_who_holds_the_cache(self, bucket: str) -> None:
        layout = CacheLayout(to_place(f"s3://{bucket}/cache"))
        with (
            hold_cache(layout),
            pytest.raises(UsageError, match=f"process {os.getpid()} on "),
            hold_cache(layout),
        ):
            raise AssertionError
        with hold_cache(layout):
            pass

    def test_commands_take_urls(
        self, s3: S3FileSystem, bucket: str, local: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        s3.put(str(local), f"{bucket}/cache", recursive=True)
        s3.pipe_file(f"{bucket}/a.mp4", b"x")
        cache = f"s3://{bucket}/cache"
        with open_cache(local) as opened:
            key = opened.keys()[0]
            shard = opened.row(key).shard

        def said(*arguments: str, code: int = 0) -> tuple[str, str]:
            assert call(list(arguments)) == code
            out, err = capsys.readouterr()
            return out, err

        for arguments in (
            ["inspect", "@"],
            ["inspect", f"@::{key}"],
            ["inspect", f"@/shards/{shard}.tar"],
            ["stats", "@"],
            ["rejects", "@"],
            ["verify", "@"],
        ):
            here, _ = said(*(a.replace("@", str(local)) for a in arguments), "--json")
            there, _ = said(*(a.replace("@", cache) for a in arguments), "--json")
            assert there == here.replace(str(local), cache), arguments
            here, _ = said(*(a.replace("@", str(local)) for a in arguments))
            there, _ = said(*(a.replace("@", cache) for a in arguments))
            assert there == here.replace(str(local), cache), arguments
        _, err = said("inspect", f"{cache}/none", code=4)
        assert "has no cache.json" in err
        _, err = said("inspect", f"{cache}/shards/none.tar", code=2)
        assert "none.tar: no such file" in err
        _, err = said("verify", f"s3://no-{bucket}/x", code=4)
        assert "has no cache.json" in err
        _, err = said("run", cache.rpartition("/")[0], f"s3://no-{bucket}/x", code=2)
        assert "there is no such file or bucket" in err
        _, err = said("run", f"s3://{bucket}/none", cache, code=2)
        assert "no such file or folder" in err

    @pytest.mark.slow
    def test_a_run_that_is_killed_goes_on(
        self,
        s3: S3FileSystem,
        bucket: str,
        videos: dict[str, bytes],
        local: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        for name, data in videos.items():
            s3.pipe_file(f"{bucket}/v/{name}", data)
        cache = f"s3://{bucket}/cache"
        place = to_place(cache)
        command = ["run", f"s3://{bucket}/v", cache, "--set", "shards.max_seconds=4"]
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        child = start(command, TMPDIR=str(tmp_path))
        deadline = time.monotonic() + 60
        while not any(name.endswith(".json") for name in list_sizes(place / "shards")):
            assert time.monotonic() < deadline
            assert child.poll() is None, child.communicate()
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=60)
        whole = contents(local)
        for name, data in (
            (n, read_bytes(place / "shards" / n)) for n in list_sizes(place / "shards")
        ):
            assert data == whole[f"shards/{name}"]
        assert call(command) == 2
        err = capsys.readouterr().err
        assert "another run is at work on this cache" in err
        assert "if it was killed, its lock ends in" in err
        # As if that time had passed.
        (lock,) = [place / ".lock" / name for name in list_sizes(place / ".lock")]
        held = json.loads(read_bytes(lock)) | {"expires": time.time() - 1}
        lock.write_bytes(json.dumps(held).encode())
        assert call(command) == 0, capsys.readouterr().err
        assert is_same(cache, local)
        assert verify_cache(cache, deep=True).findings == []
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def start(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    root = str(Path(beam_runner.__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root} | environment,
    )


@pytest.fixture
def faults(videos: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fault]]:
    register()
    monkeypatch.setattr(stores, "ATOMIC", stores.ATOMIC | {"faulty"})
    faults: list[Fault] = []
    for cls in (FaultyStore, PlainFaultyStore):
        cls.store.clear()
        cls.faults = faults  # type: ignore[misc]
        for name, data in videos.items():
            cls().pipe_file(f"/x/v/{name}", data)
    yield faults
    faults.clear()
    for cls in (FaultyStore, PlainFaultyStore):
        cls.clear_instance_cache()


def half_files(cls: type[FaultyStore], expected: dict[str, bytes]) -> list[str]:
    """Files that are seen under a final name with other bytes than they should have."""
    files = {name.removeprefix("/x/cache/"): file.getvalue() for name, file in cls.store.items()}
    return [n for n, data in files.items() if n in expected and data != expected[n] and "/" in n]


class TestFaults:
    @pytest.mark.parametrize("scheme", ["faulty", "faultyplain"])
    def test_faults_that_pass_cost_nothing(
        self, faults: list[Fault], local: Path, scheme: str
    ) -> None:
        faults += [
            Fault("info", "unavailable", every=5),
            Fault("ls", "timeout", every=4),
            Fault("cat_file", "timeout", every=3),
            Fault("get_file", "half", every=2),
            Fault("put_file", "half", every=2),
            Fault("put_file", "lost", first=3),
            Fault("pipe_file", "lost", every=3),
            Fault("pipe_file", "unavailable", first=2),
            Fault("cat_file", "slow", every=7),
        ]
        report = run(f"{scheme}://x/cache", f"{scheme}://x/v")
        assert (report.videos, report.rejected) == (3, 0)
        assert is_same(f"{scheme}://x/cache", local)
        if scheme == "faulty":
            assert [fault for fault in faults if not fault.num_injected] == []

    @pytest.mark.parametrize(
        ("scheme", "fault"),
        [
            ("faulty", Fault("put_file", "half", name=".tar", first=2, count=99)),
            ("faultyplain", Fault("put_file", "half", name=".tar", count=99)),
            ("faulty", Fault("pipe_file", "timeout", name="train", first=1, count=99)),
            ("faulty", Fault("pipe_file", "lost", name="cache.json", count=99)),
            ("faulty", Fault("put_file", "denied", count=99)),
            ("faulty", Fault("cat_file", "unavailable", name="000000.parquet", count=99)),
            ("faulty", Fault("pipe_file", "timeout", name="samples", count=99)),
            ("faulty", Fault("get_file", "full", first=4, count=99)),
        ],
        ids=lambda value: value if isinstance(value, str) else f"{value.method} {value.kind}",
    )
    def test_faults_that_last_end_a_run_with_a_sentence_and_the_next_one_goes_on(
        self, faults: list[Fault], local: Path, scheme: str, fault: Fault
    ) -> None:
        cls = FaultyStore if scheme == "faulty" else PlainFaultyStore
        fault.calls = fault.num_injected = 0
        faults.append(fault)
        with pytest.raises(ReelcacheError) as caught:
            run(f"{scheme}://x/cache", f"{scheme}://x/v")
        assert caught.value.exit_code in (2, 4)
        assert caught.value.hint or "cannot be read" in caught.value.message
        if fault.kind == "full":
            assert isinstance(caught.value, StorageError)
        assert fault.num_injected
        assert half_files(cls, contents(local)) == []
        faults.clear()
        assert run(f"{scheme}://x/cache", f"{scheme}://x/v").rejected == 0
        assert is_same(f"{scheme}://x/cache", local)
        assert verify_cache(f"{scheme}://x/cache", deep=True).findings == []

    @pytest.mark.parametrize("first", [1, 2], ids=["probe", "build"])
    def test_a_source_that_was_away_is_cached_when_it_is_back(
        self, faults: list[Fault], local: Path, tmp_path: Path, first: int
    ) -> None:
        faults.append(Fault("get_file", "unavailable", name="half", first=first, count=99))
        report = run(tmp_path / "cache", "faulty://x/v")
        (reject,) = report.rejects
        assert (reject.reason, reject.retryable) == ("unreadable", True)
        assert reject.uri == "faulty://x/v/half_a_second.mp4"
        faults.clear()
        report = run(tmp_path / "cache", "faulty://x/v")
        assert (report.videos, report.rejected) == (1, 0)
        with open_cache(tmp_path / "cache") as cache, open_cache(local) as expected:
            assert cache.keys() == expected.keys()

    def test_sound_is_heard_from_the_same_copies_in_the_least_room(
        self,
        faults: list[Fault],
        clips: ClipShelf,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        size = WhisperSize(dim=32, num_layers=1, num_heads=2, file_bytes=100_000)
        monkeypatch.setitem(SIZES, "whisper-tiny", size)
        recipe = Recipe.from_mapping(
            {
                "name": "heard",
                "sampling": {"fps": 2.0, "frames_per_clip": 4},
                "streams": {"image": {"encoder": "random-image"}},
                "audio": {"encoder": "whisper-tiny", "weights": "random"},
            }
        )
        folder = tmp_path / "v"
        folder.mkdir()
        for number in range(4):  # of other contents
            data = clips["with_audio.mp4"].path.read_bytes()
            data += b"\0\0\0\x0cfree" + number.to_bytes(4, "big")
            (folder / f"{number}.mp4").write_bytes(data)
            FaultyStore().pipe_file(f"/x/heard/{number}.mp4", data)
        count = Fault("get_file", "slow", count=99)
        faults.append(count)
        run(tmp_path / "here", str(folder), recipe=recipe)
        run(tmp_path / "there", "faulty://x/heard", recipe=recipe, fetch_bytes=1)
        assert is_same(tmp_path / "there", tmp_path / "here")
        assert count.calls == 2 * 4

    def test_bytes_are_fetched_once_for_each_stage(
        self, faults: list[Fault], tmp_path: Path
    ) -> None:
        counts = [Fault("get_file", "slow", name=name, first=10**9) for name in NAMES]
        faults += counts
        recipe = Recipe.load("tiny", overrides=["shards.max_seconds=60"])
        run(tmp_path / "cache", "faulty://x/v", recipe=recipe)
        assert [count.calls for count in counts] == [2, 2, 2]
        run(tmp_path / "cache", "faulty://x/v", recipe=recipe)
        assert [count.calls for count in counts] == [2, 2, 2]
        assert not (tmp_path / "cache" / ".tmp").exists()


@pytest.fixture
def web(videos: dict[str, bytes]) -> Iterator[WebServer]:
    files = {f"/signed {name}": data for name, data in videos.items()}
    with web_server(files, secret=CANARY) as web:
        yield web


def listed(web: WebServer, folder: Path, secret: str) -> str:
    """A list of signed URLs; it is not in the folder that is searched."""
    path = folder / f"list of {secret[:3]}.txt"
    urls = [f"{web.url}{name}?X-Amz-Signature={secret}&X-Amz-Date=1" for name in web.files]
    path.write_text("\n".join([*urls, urls[0].replace("//", f"//me:{secret}@", 1)]))
    return str(path)


def leaks(folder: Path) -> list[Path]:
    """Files with the secret in their bytes or names."""
    paths = [path for path in folder.rglob("*") if path.is_file() or CANARY in path.name]
    return [p for p in paths if CANARY in p.name or CANARY.encode() in p.read_bytes()]


class TestSecrets:
    def test_a_run_keeps_them_and_a_new_signature_is_no_new_source(
        self, web: WebServer, local: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        cache, temporary = tmp_path / "here" / "cache", tmp_path / "here" / "tmp"
        temporary.mkdir(parents=True)
        options = [str(cache), "--set", "shards.max_seconds=4", "-v", "--json"]
        # Of two workers each is a process of its own.
        command = ["run", listed(web, tmp_path, CANARY), *options, "--workers", "2"]
        child = start(command, TMPDIR=str(temporary))
        out, err = child.communicate(timeout=100)
        assert child.returncode == 0, err
        report = json.loads(out)
        assert (report["videos"], report["rejected"]) == (3, 0)
        assert CANARY not in out + err
        assert leaks(tmp_path / "here") == []
        web.secret = f"{CANARY}next"
        assert call(["run", listed(web, tmp_path, web.secret), *options]) == 0
        out, err = capfd.readouterr()
        report = json.loads(out)
        assert (report["clips"], report["skipped"], report["rejected"]) == (0, 3, 0)
        assert CANARY not in out + err
        assert leaks(tmp_path / "here") == []
        with open_cache(cache) as opened, open_cache(local) as expected:
            assert opened.keys() == expected.keys()
            assert set(opened.aliases) == {f"{web.url}{name}" for name in web.files}
            signed = f"{web.url}/signed 25.mp4?X-Amz-Signature=any"
            assert [sample.info["source_name"] for sample in opened.video(signed)] == [
                "signed 25.mp4"
            ] * 3

    @pytest.mark.parametrize("status", [403, 404, 500])
    @pytest.mark.parametrize("stage", ["probe", "build"])
    def test_a_server_that_refuses_does_not_bring_them_out(
        self,
        web: WebServer,
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
        stage: str,
        status: int,
    ) -> None:
        cache, name = tmp_path / "cache", "/signed 25.mp4"
        num_gets = 0

        def answer(method: str, path: str) -> int:
            nonlocal num_gets
            num_gets += method == "GET" and path == name
            return status if path == name and num_gets > (stage == "build") else 0

        (tmp_path / "lists").mkdir()
        sources = listed(web, tmp_path / "lists", CANARY)
        web.answer = answer
        code = call(["run", sources, str(cache), "-v", "--set", "shards.max_seconds=4"])
        out, err = capfd.readouterr()
        assert code == 0
        assert "1 of 3 sources" in out
        assert CANARY not in out + err
        assert call(["rejects", str(cache)]) == 0
        out, err = capfd.readouterr()
        assert {403: "access is denied", 404: "no such file", 500: "HTTP 500"}[status] in out
        assert CANARY not in out + err
        assert leaks(cache) == []

    @pytest.mark.slow
    def test_a_run_that_is_killed_leaves_none(
        self, web: WebServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        cache, temporary = tmp_path / "here" / "cache", tmp_path / "here" / "tmp"
        temporary.mkdir(parents=True)
        held = threading.Event()
        num_gets = 0

        def answer(method: str, path: str) -> int:
            nonlocal num_gets
            num_gets += method == "GET" and "25" in path
            if num_gets > 1:  # of the build
                held.wait(60)
            return 0

        web.answer = answer
        command = ["run", listed(web, tmp_path, CANARY), str(cache), "-v", "--workers", "2"]
        child = start(command, TMPDIR=str(temporary))
        deadline = time.monotonic() + 60
        while num_gets < 2:
            assert time.monotonic() < deadline
            assert child.poll() is None, child.communicate()
            time.sleep(0.02)
        (sealed,) = (cache / ".tmp").rglob("urls")
        assert sealed.stat().st_size > 0
        child.send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=20)
        assert sealed.exists()
        assert leaks(tmp_path / "here") == []
        held.set()
        web.answer = lambda *_: 0
        assert call(command[:-2]) == 0
        assert CANARY not in "".join(capfd.readouterr())
        assert leaks(tmp_path / "here") == []
        assert not (cache / ".tmp").exists()

    def test_a_uri_made_by_hand_loses_its_secret_too(self, web: WebServer, tmp_path: Path) -> None:
        from schemas.video import Source

        url = f"{web.url}/signed 25.mp4?X-Amz-Signature={CANARY}"
        beam_runner.run([Source(uri=url)], TINY, cache_path=tmp_path / "cache")
        assert leaks(tmp_path) == []
        assert url_of(f"{web.url}/signed 25.mp4") == url
