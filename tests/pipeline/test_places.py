"""Places: local and remote files by one interface; a run whose cache is no local folder."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import beam_runner
from pipeline import open_cache, patience, read_sources, verify_cache
from pipeline.places import (
    create,
    is_local,
    list_sizes,
    local_copy,
    read_bytes,
    read_many,
    read_range,
    scratch_for,
    to_place,
)
from schemas.errors import UsageError
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from pipeline.places import Place
    from tests.clips import ClipShelf

_numbers = itertools.count()


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return tmp_path / "place"
    return to_place(f"memory://place-{next(_numbers)}")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.001)


def put(place: Place, data: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)


def test_paths_and_file_urls_are_local(tmp_path: Path) -> None:
    assert to_place(str(tmp_path)) == tmp_path
    assert to_place(f"file://{tmp_path}") == tmp_path
    assert to_place(tmp_path) is not None
    assert is_local(to_place("c::d"))
    assert not is_local(to_place("memory://x"))


@pytest.mark.parametrize("url", ["nosuch://bucket/x", "abfs://container/x"])
def test_a_scheme_without_a_file_system_is_said(url: str) -> None:
    with pytest.raises(UsageError, match="no file system for it"):
        to_place(url)


def test_a_listing_has_the_files_of_one_folder(root: Place) -> None:
    assert list_sizes(root) == {}
    put(root / "a.json", b"123")
    put(root / "b", b"")
    put(root / "deep" / "c", b"1")
    assert list_sizes(root) == {"a.json": 3, "b": 0}
    put(root / "d", b"22")
    assert list_sizes(root)["d"] == 2, "a listing is not remembered"


def test_files_are_read_whole_in_order_and_in_parts(root: Place, tmp_path: Path) -> None:
    names = [f"{number:03d}" for number in range(40)]
    for name in names:
        put(root / name, name.encode())
    read = list(read_many([root / name for name in names]))
    assert [(place.name, data.decode()) for place, data in read] == list(
        zip(names, names, strict=True)
    )
    with local_copy(root / "007", scratch=tmp_path / "scratch") as copy:
        assert copy.read_bytes() == b"007"
    assert copy.exists() == is_local(root)
    with pytest.raises(FileNotFoundError):
        read_bytes(root / "none")
    if not is_local(root):
        buffer = bytearray(5)
        assert read_range(root / "007", memoryview(buffer)[:2], offset=1) == 2
        assert bytes(buffer) == b"07\0\0\0"


def test_of_two_that_create_a_file_one_does(root: Place) -> None:
    (root).mkdir(parents=True, exist_ok=True)
    assert create(root / "x", b"1")
    assert not create(root / "x", b"2")
    assert read_bytes(root / "x") == b"1"


class Careless:
    """A store that pays no heed to the condition under which a file is to be created."""

    def __init__(self, place: Any) -> None:
        self.place, self.path, self.fs = place, str(place), self

    def pipe_file(self, path: str, data: bytes, **_: Any) -> None:
        self.data = data

    def __str__(self) -> str:
        return self.path


def test_a_store_that_overwrites_what_is_to_be_created_is_refused() -> None:
    with pytest.raises(UsageError, match="writes a file again that is only to be created"):
        create(Careless("odd://x"), b"1")  # type: ignore[arg-type]


def test_a_store_that_cannot_create_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def pipe_file(self: Any, path: str, data: bytes) -> None:
        raise AssertionError

    monkeypatch.setattr(Careless, "pipe_file", pipe_file)
    with pytest.raises(UsageError, match="cannot create a file only where there is none"):
        create(Careless("odd://x"), b"1")  # type: ignore[arg-type]


def test_a_file_whose_creation_was_not_answered_is_created(root: Place) -> None:
    if is_local(root):
        return
    put(root / "x", b"mine")
    assert create(root / "x", b"mine")
    assert not create(root / "x", b"another's")


@pytest.mark.parametrize("url", ["ftp://me:secret@h/cache", "https://h/cache?token=secret"])
def test_a_cache_is_not_named_with_its_secret(url: str) -> None:
    with pytest.raises(UsageError, match="is named without user, password") as caught:
        to_place(url)
    assert "secret" not in str(caught.value)


def test_temporary_files_lie_in_a_local_cache_and_beside_a_remote_one(tmp_path: Path) -> None:
    assert scratch_for(tmp_path) == tmp_path / ".tmp"
    remote = scratch_for(to_place("memory://a"))
    assert isinstance(remote, Path)
    assert remote != scratch_for(to_place("memory://b"))


def test_a_cache_in_an_object_store_is_the_same_as_a_local_one(
    clips: ClipShelf, tmp_path: Path
) -> None:
    names = ("25.mp4", "variable_rate.mkv", "half_a_second.mp4")
    recipe = Recipe.load("tiny", overrides=["shards.target_bytes=60000"])
    sources = read_sources([str(clips[name].path) for name in names]).sources
    url = f"memory://cache-{next(_numbers)}/deep/er"
    local = beam_runner.run(sources, recipe, cache_path=tmp_path / "cache")
    remote = beam_runner.run(sources, recipe, cache_path=url)
    assert remote.cache == url
    assert (remote.clips, remote.bytes, remote.shards) == (local.clips, local.bytes, local.shards)
    assert local.shards > 1
    place = to_place(url)
    for folder in ("", "shards", "index", "plan", "probes", "rejects", ".nv-meta"):
        here, there = tmp_path / "cache" / folder, place / folder if folder else place
        assert list_sizes(there) == list_sizes(here), folder
        for name in list_sizes(here):
            assert read_bytes(there / name) == read_bytes(here / name), name
    assert verify_cache(url, deep=True).findings == []
    with open_cache(url) as cache, open_cache(tmp_path / "cache") as expected:
        assert cache.keys() == expected.keys()
        for sample, other in zip(cache, expected, strict=True):
            assert repr(sample) == repr(other)
    again = beam_runner.run(sources, recipe, cache_path=url)
    assert (again.clips, again.skipped) == (0, len(sources))
    assert not scratch_for(place).exists()


def test_a_tar_that_is_gone_or_cut_in_an_object_store_is_found(
    clips: ClipShelf, tmp_path: Path
) -> None:
    url = f"memory://cache-{next(_numbers)}"
    sources = read_sources([str(clips["25.mp4"].path)]).sources
    beam_runner.run(sources, Recipe.load("tiny"), cache_path=url)
    shards: Any = to_place(url) / "shards"
    (tar,) = [shards / name for name in list_sizes(shards) if name.endswith(".tar")]
    whole = read_bytes(tar)
    tar.write_bytes(whole[:-512])
    assert {finding.kind for finding in verify_cache(url).findings} == {"truncated_tar"}
    tar.unlink()
    assert {finding.kind for finding in verify_cache(url).findings} == {"missing_tar"}
