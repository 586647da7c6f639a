"""Sources behind URLs: files, prefixes, globs, lists."""

from __future__ import annotations

import io
import itertools
import re
from typing import TYPE_CHECKING

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import patience, read_sources
from pipeline.signing import url_of
from schemas.errors import SourceError, UsageError
from tests.stores import Fault, FaultyStore, register, web_server

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = itertools.count()

FILES = (
    *("v/b.MP4", "v/a?b#[1] é.mp4", "v/x/y/z.mkv", "v/x/song.mp3", "v/notes.txt", "v/.hidden.mp4"),
    *("v/.folder/h.mp4", "v/cache/cache.json", "v/cache/deep/c.mp4", "w/b.mp4"),
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture(params=["memory", "s3"])
def root(request: pytest.FixtureRequest) -> str:
    """The URL of a place with `FILES`."""
    if request.param == "s3":
        url = f"s3://{request.getfixturevalue('bucket')}/deep"
    else:
        url = f"memory://listing-{next(_numbers)}"
    for name in FILES:
        put(f"{url}/{name}", b"{}")
    return url


def put(url: str, data: bytes) -> None:
    store, path = fsspec.url_to_fs(url)
    store.pipe_file(path, data)


def names(root: str, *arguments: str) -> list[str]:
    sources = read_sources([f"{root}/{name}" if name else root for name in arguments]).sources
    assert all(source.uri.startswith(f"{root}/") for source in sources)
    return [source.uri.removeprefix(f"{root}/") for source in sources]


@pytest.mark.parametrize("argument", ["v", "v/"])
def test_a_prefix_is_read_as_a_folder_is(root: str, argument: str) -> None:
    expected = ["v/a?b#[1] é.mp4", "v/b.MP4", "v/x/song.mp3", "v/x/y/z.mkv"]
    assert names(root, argument) == expected
    assert read_sources([f"{root}/{argument}"]).num_ignored == 2


def test_a_whole_place_is_a_folder(root: str) -> None:
    assert names(root, "")[-1] == "w/b.mp4"
    assert len(names(root, "")) == 5


def test_a_file_is_itself_whatever_its_name(root: str) -> None:
    for name in ("v/a?b#[1] é.mp4", "v/.hidden.mp4", "v/cache/deep/c.mp4"):
        assert names(root, name) == [name]


def test_globs_match_files_and_folders(root: str) -> None:
    assert names(root, "*/b.*") == ["v/b.MP4", "w/b.mp4"]
    assert names(root, "v/x*") == ["v/x/song.mp3", "v/x/y/z.mkv"]
    assert names(root, "**/*.mkv") == ["v/x/y/z.mkv"]
    with pytest.raises(SourceError, match=r"no file matches"):
        names(root, "none*")


def test_a_cache_is_not_a_source_and_what_is_not_there_is_said(root: str) -> None:
    with pytest.raises(SourceError, match="v/cache is a cache"):
        names(root, "v/cache")
    with pytest.raises(SourceError, match="v/none: no such file or folder"):
        names(root, "v/none")
    with pytest.raises(SourceError, match=r"json: a list is one of"):
        names(root, "v/cache/cache.json")


def test_rows_of_a_list_are_relative_to_it(root: str) -> None:
    rows = "uri,id,start\nb.MP4,one,1\n../w/b.mp4,two,\nmemory://else/c.mp4,three,\n/d.mp4,four,\n"
    put(f"{root}/v/list.csv", rows.encode())
    sources = read_sources([f"{root}/v/list.csv"]).sources
    assert [(source.uri, source.video_id) for source in sources] == [
        (f"{root}/v/b.MP4", "one"),
        (f"{root}/w/b.mp4", "two"),
        ("memory://else/c.mp4", "three"),
        ("/d.mp4", "four"),
    ]
    assert sources[0].start_seconds == 1.0


@pytest.mark.parametrize("name", ["list.txt", "list.jsonl", "list.parquet", "LIST.TSV"])
def test_lists_of_every_kind_are_read(root: str, name: str) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"uri": ["w/b.mp4"]}), table)
    data = {
        "list.txt": b"w/b.mp4\n",
        "list.jsonl": b'{"uri": "w/b.mp4"}',
        "list.parquet": table.getvalue(),
        "LIST.TSV": b"uri\tid\nw/b.mp4\tx\n",
    }[name]
    put(f"{root}/{name}", data)
    assert names(root, name) == ["w/b.mp4"]
    put(f"{root}/{name}", b"\xff")
    with pytest.raises(SourceError, match=f"{name}: not a readable list"):
        names(root, name)


@pytest.fixture
def faults() -> Iterator[list[Fault]]:
    register()
    FaultyStore.store.clear()
    yield FaultyStore.faults
    FaultyStore.faults.clear()
    FaultyStore.clear_instance_cache()


def test_a_store_that_is_away_for_a_moment_is_waited_for(faults: list[Fault]) -> None:
    put("faulty://x/v/a.mp4", b"1")
    put("faulty://x/l.txt", b"v/a.mp4\n")
    faults += [Fault("info", "unavailable"), Fault("ls", "timeout"), Fault("cat_file", "timeout")]
    assert names("faulty://x", "v", "l.txt") == ["v/a.mp4"]
    assert [fault.num_injected for fault in faults] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["denied", "unavailable", "timeout"])
@pytest.mark.parametrize(
    ("method", "argument"),
    [("info", "v"), ("ls", "v"), ("ls", "*/a.mp4"), ("cat_file", "l.txt")],
)
def test_a_store_that_cannot_be_read_is_said(
    faults: list[Fault], kind: str, method: str, argument: str
) -> None:
    put("faulty://x/v/a.mp4", b"1")
    put("faulty://x/l.txt", b"v/a.mp4\n")
    faults.append(Fault(method, kind, count=99))
    with pytest.raises(
        SourceError, match=re.escape(f"faulty://x/{argument}: cannot be read: ")
    ) as caught:
        names("faulty://x", argument)
    assert caught.value.hint


class TestWeb:
    def test_files_and_lists_are_read_with_what_opens_them(self) -> None:
        files = {"/signed.csv": b"uri,id\nv/a.mp4,x\nv/signed.mp4?X-Amz-Signature=s2,y\n"}
        with web_server(files | {"/v/a b.mp4": b"1"}, secret="canary") as web:
            sources = read_sources(
                [f"{web.url}/signed.csv?X-Amz-Signature=canary", f"{web.url}/v/a b.mp4"]
            ).sources
            expected = [f"{web.url}/v/{name}" for name in ("a.mp4", "signed.mp4", "a b.mp4")]
            assert [source.uri for source in sources] == expected
            assert url_of(expected[1]) == f"{expected[1]}?X-Amz-Signature=s2"

    @pytest.mark.parametrize(("status", "said"), [(403, "access is denied"), (503, "HTTP 503")])
    def test_an_answer_that_is_an_error_is_said_without_the_secret(
        self, status: int, said: str
    ) -> None:
        with web_server({"/a.mp4": b"1"}) as web:
            web.answer = lambda *_: status
            with pytest.raises(SourceError, match=said) as caught:
                read_sources([f"{web.url}/a.mp4?token=canary"])
            assert "canary" not in repr(caught.value) + str(caught.value.hint)

    def test_a_server_that_is_not_there_is_said(self) -> None:
        with pytest.raises(SourceError, match="cannot be read: "):
            read_sources(["http://127.0.0.1:9/a.mp4"])

    def test_links_of_a_page_are_its_files(self) -> None:
        page = b'<a href="a.mp4">a</a> <a href="notes.md">n</a>'
        with web_server({"/v/": page, "/v/a.mp4": b"1", "/v/notes.md": b"1"}) as web:
            found = read_sources([f"{web.url}/v/"])
        assert [source.uri for source in found.sources] == [f"{web.url}/v/a.mp4"]
        assert found.num_ignored == 1


def test_other_columns_that_hold_a_signed_url_lose_the_signature(root: str) -> None:
    row = b'{"uri": "w/b.mp4", "from": "https://h/x?X-Amz-Signature=canary", "n": 3}'
    put(f"{root}/l.jsonl", row)
    (source,) = read_sources([f"{root}/l.jsonl"]).sources
    assert source.extra == {"from": "https://h/x", "n": 3}


def test_a_scheme_without_a_file_system_is_said_for_the_whole_list(root: str) -> None:
    put(f"{root}/l.txt", b"nosuch://a/b.mp4\n")
    with pytest.raises(UsageError, match="nosuch://: no file system for it"):
        names(root, "l.txt")
