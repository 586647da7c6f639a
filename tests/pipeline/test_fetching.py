"""Fetcher: remote files are fetched once, ahead, in bounds, and are gone afterwards."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from pipeline import patience, source_files
from pipeline.fetching import Fetcher, local_file
from pipeline.source_files import change_mark, fetch, size_and_time, states_of
from schemas.errors import StorageError, VideoError
from schemas.plan import Piece
from tests.pieces import make_piece
from tests.stores import Fault, FaultyStore, register, web_server


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fault]]:
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.001)
    register()
    FaultyStore.store.clear()
    yield FaultyStore.faults
    FaultyStore.faults.clear()
    FaultyStore.clear_instance_cache()


def piece_of(name: str, data: bytes) -> Piece:
    """A piece of a file that is put into the store."""
    uri = f"faulty://x/{name}"
    store, path = fsspec.url_to_fs(uri)
    store.pipe_file(path, data)
    return planned(uri, data)


def planned(uri: str, data: bytes) -> Piece:
    size, mark = size_and_time(uri)
    return make_piece(
        uri,
        "v",
        content_sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=size,
        mtime_ns=mark,
    )


def files_in(folder: Path) -> list[int]:
    return sorted(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def gets() -> Fault:
    """Counts downloads, and lets them be."""
    fault = Fault("get_file", "slow", first=10**9)
    FaultyStore.faults.append(fault)
    return fault


def test_a_file_is_fetched_once_for_all_pieces_and_deleted_after_the_last(tmp_path: Path) -> None:
    pieces = [piece_of("a.mp4", b"12345")] * 3
    count = gets()
    with Fetcher(pieces, scratch=tmp_path) as files:
        paths = {files.path(piece) for piece in pieces for _ in range(2)}
        assert len(paths) == 1
        (path,) = map(Path, paths)
        assert (path.suffix, path.read_bytes()) == (".mp4", b"12345")
        for piece in pieces[:2]:
            files.release(piece)
            assert path.exists()
        files.hold(pieces[0])  # the sound is not yet heard
        files.release(pieces[2])
        assert path.exists()
        files.release(pieces[0])
        assert not path.exists()
    assert count.calls == 1
    assert list(tmp_path.iterdir()) == []


def test_a_local_file_is_where_it_lies_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"123")
    piece = planned(str(path), b"123")
    with Fetcher([piece], scratch=tmp_path / "scratch") as files:
        assert files.is_ready(piece)
        assert files.path(piece) == str(path)
        files.release(piece)
    assert path.exists()
    assert not (tmp_path / "scratch").exists()


def test_files_are_fetched_ahead_as_far_as_there_is_room(tmp_path: Path) -> None:
    pieces = [piece_of(f"{number}", bytes([number]) * 10) for number in range(6)]
    with Fetcher(pieces, scratch=tmp_path, most_bytes=35) as files:
        until(lambda: all(files.is_ready(piece) for piece in pieces[:3]))
        time.sleep(0.05)
        assert not any(files.is_ready(piece) for piece in pieces[3:])
        assert files_in(tmp_path) == [10] * 3
        files.release(pieces[0])
        until(lambda: files.is_ready(pieces[3]))
        assert Path(files.path(pieces[5])).read_bytes() == bytes([5]) * 10, "at once, if need be"
        assert len(files_in(tmp_path)) == 4


def test_a_file_beyond_all_bounds_is_fetched_alone(tmp_path: Path) -> None:
    pieces = [piece_of(str(size), b"x" * size) for size in (100, 3, 100)]
    with Fetcher(pieces, scratch=tmp_path, most_bytes=10) as files:
        for piece in pieces:
            assert Path(files.path(piece)).stat().st_size == piece.size_bytes
            time.sleep(0.02)
            assert sum(files_in(tmp_path)) <= 10 + 100
            files.release(piece)


def test_many_files_do_not_pile_up(tmp_path: Path) -> None:
    pieces = [piece_of(str(number), bytes([number]) * 10) for number in range(40)]
    most = 0
    with Fetcher(pieces, scratch=tmp_path, most_bytes=50) as files:
        for piece in pieces:
            assert Path(files.path(piece)).read_bytes() == bytes([int(Path(piece.uri).name)]) * 10
            most = max(most, sum(files_in(tmp_path)))
            files.release(piece)
    assert most <= 60


@pytest.mark.parametrize("kind", ["timeout", "unavailable", "half", "lost"])
def test_a_fault_that_passes_is_met_with_another_try(
    tmp_path: Path, faults: list[Fault], kind: str
) -> None:
    piece = piece_of("a", b"12345")
    faults.append(Fault("get_file", kind, count=2))
    with Fetcher([piece], scratch=tmp_path) as files:
        assert Path(files.path(piece)).read_bytes() == b"12345"
    assert faults[0].num_injected == 2


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("timeout", "unreadable"), ("unavailable", "unreadable"), ("denied", "unreadable")],
)
def test_a_fault_that_lasts_costs_one_video_and_leaves_nothing(
    tmp_path: Path, faults: list[Fault], kind: str, reason: str
) -> None:
    pieces = [piece_of("bad", b"12345"), piece_of("good", b"1")]
    faults.append(Fault("get_file", kind, name="bad", count=99))
    with Fetcher(pieces, scratch=tmp_path) as files:
        with pytest.raises(VideoError) as caught:
            files.path(pieces[0])
        assert caught.value.reason == reason
        assert files.is_ready(pieces[0])
        assert Path(files.path(pieces[1])).read_bytes() == b"1"
        assert files_in(tmp_path) == [1]


def test_a_file_that_is_gone_or_has_changed_is_said(tmp_path: Path) -> None:
    gone, longer, other = (piece_of(name, b"12345") for name in ("gone", "longer", "other"))
    store, path = fsspec.url_to_fs(gone.uri)
    store.rm(path)
    piece_of("longer", b"123456")
    piece_of("other", b"54321")
    with Fetcher([gone, longer, other], scratch=tmp_path) as files:
        for piece, reason in ((gone, "not_found"), (longer, "source_changed")):
            with pytest.raises(VideoError) as caught:
                files.path(piece)
            assert caught.value.reason == reason
        with pytest.raises(VideoError, match=f"planned {other.content_sha256[:16]}, now"):
            files.path(other)
        assert files_in(tmp_path) == []


def test_equal_content_with_another_mark_is_taken(tmp_path: Path) -> None:
    piece = piece_of("a", b"12345")
    time.sleep(0.01)
    assert piece_of("a", b"12345").mtime_ns != piece.mtime_ns
    with Fetcher([piece], scratch=tmp_path) as files:
        assert Path(files.path(piece)).read_bytes() == b"12345"


def test_a_full_disk_is_no_fault_of_the_video(tmp_path: Path, faults: list[Fault]) -> None:
    piece = piece_of("a", b"12345")
    faults.append(Fault("get_file", "full", count=99))
    with Fetcher([piece], scratch=tmp_path) as files:
        with pytest.raises(StorageError, match="cannot be fetched: No space left") as caught:
            files.path(piece)
        assert "--fetch-bytes" in caught.value.hint
    assert faults[0].num_injected == 1


def test_what_is_under_way_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = piece_of("a", b"12345")
    begun, ended = threading.Event(), threading.Event()

    def endless(uri: str, target: Path, *, num_bytes: int, check: Callable[[], None]) -> None:
        target.write_bytes(b"12")
        begun.set()
        try:
            while True:
                check()
                time.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr("pipeline.fetching.fetch", endless)
    with Fetcher([piece], scratch=tmp_path):
        assert begun.wait(5)
    assert ended.is_set()
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_crawls_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    piece = piece_of("a", b"12345")
    monkeypatch.setattr(source_files, "SLOW_START_SECONDS", -1.0)
    with pytest.raises(VideoError, match="slower than 50 kB a second"):
        fetch(piece.uri, tmp_path / "a", num_bytes=5)
    assert not (tmp_path / "a").exists()


def test_a_probe_has_one_copy_that_is_gone_afterwards(tmp_path: Path) -> None:
    piece_of("a.mkv", b"12345")
    with local_file("faulty://x/a.mkv", num_bytes=5, scratch=tmp_path) as path:
        assert (path.suffix, path.read_bytes()) == (".mkv", b"12345")
    assert list(tmp_path.iterdir()) == []
    with local_file(str(tmp_path / "b"), num_bytes=5, scratch=None) as path:
        assert path == tmp_path / "b"


def test_a_web_server_that_breaks_off_is_asked_again(tmp_path: Path) -> None:
    with web_server({"/a.mp4": b"1" * 100_000}, half={"/a.mp4"}) as web:
        fetch(f"{web.url}/a.mp4", tmp_path / "a", num_bytes=100_000)
    assert (tmp_path / "a").read_bytes() == b"1" * 100_000


class TestStates:
    def test_the_mark_tells_a_change_and_nothing_else(self) -> None:
        piece_of("a", b"1")
        first = size_and_time("faulty://x/a")
        assert size_and_time("faulty://x/a") == first
        assert first[0] == 1
        time.sleep(0.01)
        piece_of("a", b"2")
        assert size_and_time("faulty://x/a") != first
        assert 0 < first[1] < 2**63

    def test_what_says_most_of_the_content_makes_the_mark(self) -> None:
        info = {"generation": "7", "ETag": "x", "LastModified": 3}
        assert change_mark(info) == change_mark({"generation": "7"})
        assert change_mark({"ETag": "x"}) not in (change_mark(info), change_mark({"ETag": "y"}))
        assert change_mark({"ETag": "", "size": 3}) == 0
        assert change_mark({"ETag": '"c4ca4238a0b923820dcc509a6f75849b"'}) == 3325512600123751288

    def test_many_are_looked_at_side_by_side(self, faults: list[Fault], tmp_path: Path) -> None:
        uris = [piece_of(str(number), b"1").uri for number in range(64)]
        faults.append(Fault("info", "slow", count=1000))
        began = time.monotonic()
        states = states_of([*uris, "faulty://x/none", str(tmp_path / "none")])
        assert time.monotonic() - began < 64 * 0.05 / 3
        assert [states[uri] for uri in uris] == [size_and_time(uri) for uri in uris]
        for uri in ("faulty://x/none", str(tmp_path / "none")):
            error = states[uri]
            assert isinstance(error, VideoError)
            assert error.reason == "not_found"

    @pytest.mark.parametrize(
        ("kind", "detail"),
        [("denied", "access is denied"), ("unavailable", "HTTP 503"), ("timeout", "no answer")],
    )
    def test_a_store_that_cannot_be_asked_is_no_missing_file(
        self, faults: list[Fault], kind: str, detail: str
    ) -> None:
        piece_of("a", b"1")
        faults.append(Fault("info", kind, count=99))
        with pytest.raises(VideoError, match=detail) as caught:
            size_and_time("faulty://x/a")
        assert caught.value.reason == "unreadable"

    def test_a_folder_is_no_video(self) -> None:
        piece_of("v/a", b"1")
        with pytest.raises(VideoError, match="not a file but a folder"):
            size_and_time("faulty://x/v")
