"""What the user names as SOURCES: files, folders, globs, lists."""

import io
import json
import os
import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.source_files import content_sha256, is_remote, size_and_time, to_path, to_uri
from pipeline.sources import read_sources
from schemas.errors import SourceError, UsageError, VideoError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


def names_of(*arguments: str, **options: object) -> list[str]:
    """The sources as paths relative to the working folder."""
    sources = read_sources(arguments, **options).sources
    return [os.path.relpath(source.uri) for source in sources]


def stdin_of(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


class TestFolders:
    def test_media_are_found_by_extension_at_any_depth(self):
        touch("v/a.mp4", "v/x/y/z.mkv", "v/x/b.webm")
        assert names_of("v") == ["v/a.mp4", "v/x/b.webm", "v/x/y/z.mkv"]

    def test_the_case_of_an_extension_makes_no_difference(self):
        touch("v/a.MP4", "v/b.Mov")
        assert names_of("v") == ["v/a.MP4", "v/b.Mov"]

    def test_the_rest_is_counted(self):
        touch("v/a.mp4", "v/notes.txt", "v/cover.jpg", "v/noextension", "v/.hidden.mp4")
        result = read_sources(["v"])
        assert len(result.sources) == 1
        assert result.num_ignored == 4

    def test_sound_files_are_taken_so_that_they_become_rejects(self):
        touch("v/a.mp3")
        assert names_of("v") == ["v/a.mp3"]

    def test_hidden_folders_are_left_alone(self):
        touch("v/a.mp4", "v/.cache/b.mp4")
        assert names_of("v") == ["v/a.mp4"]

    def test_a_hidden_folder_named_outright_is_read(self):
        touch(".videos/a.mp4")
        assert names_of(".videos") == [".videos/a.mp4"]

    def test_names_with_dots_quotes_newlines_and_unicode_are_ordinary(self):
        names = ["v/a.b.c.mp4", 'v/it\'s "x".mp4', "v/line\nbreak.mp4", "v/日本 é.mp4", "v/-q.mp4"]
        touch(*names)
        assert sorted(names_of("v")) == sorted(names)

    def test_the_same_name_in_two_folders_is_two_sources(self):
        touch("v/1/a.mp4", "v/2/a.mp4")
        assert names_of("v") == ["v/1/a.mp4", "v/2/a.mp4"]

    def test_uris_are_absolute(self, folder):
        touch("v/a.mp4")
        assert read_sources(["v"]).sources[0].uri == str(folder / "v/a.mp4")

    def test_an_empty_folder_is_an_error_that_counts_what_was_ignored(self):
        touch("v/notes.txt", "v/b.zip")
        with pytest.raises(SourceError, match="no video in v; 2 other files were ignored"):
            read_sources(["v"])

    def test_a_linked_folder_is_read_and_a_link_back_up_is_not_followed(self, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "b.mp4").write_text("x")
        Path("v").mkdir()
        Path("v/linked").symlink_to(tmp_path / "elsewhere")
        Path("v/linked/up").symlink_to(Path("v").absolute())
        names = [Path(source.uri).name for source in read_sources(["v"]).sources]
        assert names == ["b.mp4"]

    def test_a_dangling_link_is_a_source_that_will_be_rejected(self):
        Path("v").mkdir()
        Path("v/a.mp4").symlink_to("nowhere.mp4")
        assert names_of("v") == ["v/a.mp4"]


class TestFilesAndGlobs:
    def test_a_file_named_outright_is_tried_whatever_its_extension(self):
        touch("clip.data", "noextension")
        assert names_of("clip.data", "noextension") == ["clip.data", "noextension"]

    def test_a_file_that_does_not_exist_is_an_error(self):
        with pytest.raises(SourceError, match=r"missing\.mp4: no such file or folder"):
            read_sources(["missing.mp4"])

    def test_globs_are_sorted_and_may_name_folders(self):
        touch("b.mp4", "a.mp4", "c/d.mp4", "e.txt.mp4")
        assert names_of("*") == ["a.mp4", "b.mp4", "c/d.mp4", "e.txt.mp4"]
        assert names_of("**/*.mp4") == ["a.mp4", "b.mp4", "c/d.mp4", "e.txt.mp4"]

    def test_a_name_that_looks_like_a_glob_is_itself_where_it_exists(self):
        touch("clip[1].mp4", "clip1.mp4", "what?.mp4")
        assert names_of("clip[1].mp4") == ["clip[1].mp4"]
        assert names_of("what?.mp4") == ["what?.mp4"]

    def test_a_folder_that_looks_like_a_glob_is_itself(self):
        touch("season [1]/a.mp4")
        assert names_of("season [1]") == ["season [1]/a.mp4"]

    def test_a_glob_without_a_match_is_an_error(self):
        with pytest.raises(SourceError, match=r"\*\.mp4: no file matches"):
            read_sources(["*.mp4"])

    @pytest.mark.parametrize("uri", ["concat://a", "nosuch://b/c.mp4", "local:///a.mp4"])
    def test_protocols_without_a_file_system_are_refused(self, uri):
        with pytest.raises(UsageError, match="no file system for it"):
            read_sources([uri])

    def test_what_is_named_twice_is_one_source(self):
        touch("v/a.mp4", "v/b.mp4")
        assert names_of("v/b.mp4", "v", "./v/../v/a.mp4") == ["v/b.mp4", "v/a.mp4"]

    def test_the_limit_takes_the_first_sources(self):
        touch("v/a.mp4", "v/b.mp4", "v/c.mp4")
        assert names_of("v/c.mp4", "v", limit=2) == ["v/c.mp4", "v/a.mp4"]

    def test_nothing_named_is_an_error(self):
        with pytest.raises(SourceError, match="no video"):
            read_sources([])


class TestUndecodableNames:
    NAME = b"caf\xe9 %41.mp4"  # Latin-1, as old disks have it

    @pytest.fixture
    def path(self, folder):
        path = os.fsencode(folder / "v") + b"/" + self.NAME
        Path("v").mkdir()
        try:
            Path(os.fsdecode(path)).write_bytes(b"123")
        except OSError:
            pytest.skip("this file system takes UTF-8 only")
        return path

    @pytest.mark.parametrize("argument", ["v", "v/*.mp4"])
    def test_a_name_that_is_not_utf8_becomes_a_url_of_plain_characters(self, path, argument):
        (source,) = read_sources([argument]).sources
        assert source.uri.startswith("file:///")
        assert source.uri.isascii()
        assert source.uri.endswith("/v/caf%E9%20%2541.mp4")

    def test_the_url_leads_back_to_the_file(self, path):
        (source,) = read_sources(["v"]).sources
        assert os.fsencode(to_path(source.uri)) == path
        assert size_and_time(source.uri)[0] == 3
        assert read_sources([source.uri]).sources == (source,)

    def test_the_url_may_stand_in_a_list(self, path):
        (source,) = read_sources(["v"]).sources
        Path("list.txt").write_text(source.uri + "\n")
        assert read_sources(["list.txt"]).sources == (source,)

    def test_paths_on_stdin_may_hold_any_bytes(self, path, monkeypatch):
        stdin_of(monkeypatch, path + b"\n")
        assert read_sources(["-"]).sources == read_sources(["v"]).sources


class TestUris:
    @pytest.mark.parametrize("name", ["a.mp4", "a b%20.mp4", "日本.mp4", "x\ny.mp4", "c:d.mp4"])
    def test_a_readable_name_is_its_own_uri(self, name, folder):
        assert to_uri(name) == str(folder / name)
        assert to_path(to_uri(name)) == folder / name

    def test_any_file_url_is_a_path(self):
        assert to_path("file:///a%20b/%23.mp4") == Path("/a b/#.mp4")

    @pytest.mark.parametrize(
        ("uri", "expected"),
        [
            ("https://a", True),
            ("gs://a", True),
            ("file:///a", False),
            ("/a", False),
            ("a:b", False),
        ],
    )
    def test_remote_is_any_other_protocol(self, uri, expected):
        assert is_remote(uri) is expected

    @pytest.mark.parametrize("read", [size_and_time, content_sha256])
    def test_a_file_that_cannot_be_read_costs_one_video(self, read, folder):
        with pytest.raises(VideoError) as caught:
            read(str(folder / "missing"))
        assert caught.value.reason == "not_found"
        with pytest.raises(VideoError) as caught:
            read(str(folder))
        assert caught.value.reason == "unreadable"

    def test_a_path_through_a_file_is_not_found(self, folder):
        touch("a")
        for read in (size_and_time, content_sha256):
            with pytest.raises(VideoError):
                read(str(folder / "a" / "b"))

    def test_a_device_is_no_video(self):
        with pytest.raises(VideoError, match="not a regular file"):
            size_and_time("/dev/null")


class TestLists:
    def test_text_has_a_path_a_line(self):
        touch("a.mp4", "b c.mp4")
        Path("l.txt").write_bytes(b"\xef\xbb\xbfa.mp4\r\n\r\nb c.mp4")
        assert names_of("l.txt") == ["a.mp4", "b c.mp4"]

    def test_stdin_has_a_path_a_line(self, monkeypatch):
        touch("a.mp4", "é.mp4")
        stdin_of(monkeypatch, "a.mp4\né.mp4\n".encode())
        assert names_of("-") == ["a.mp4", "é.mp4"]

    def test_csv_has_named_columns_and_keeps_the_others(self):
        touch("a.mp4")
        Path("l.csv").write_text('start,uri,id,label,end\n1.5,a.mp4,"my, id",cat,2\n')
        (source,) = read_sources(["l.csv"]).sources
        assert (source.video_id, source.start_seconds, source.end_seconds) == ("my, id", 1.5, 2.0)
        assert source.extra == {"label": "cat"}

    def test_empty_cells_of_a_csv_are_nothing(self):
        Path("l.csv").write_text("uri,id,start,end\na.mp4,,,\n")
        (source,) = read_sources(["l.csv"]).sources
        assert (source.video_id, source.start_seconds, source.end_seconds) == (None, None, None)

    def test_tsv_is_separated_by_tabs(self):
        Path("l.tsv").write_text("uri\tid\na,b.mp4\tx\n")
        (source,) = read_sources(["l.tsv"]).sources
        assert (Path(source.uri).name, source.video_id) == ("a,b.mp4", "x")

    @pytest.mark.parametrize("name", ["a\nb.mp4", 'a"b.mp4', "a,b.mp4", "日本.mp4"])
    def test_names_in_a_csv_are_quoted_as_usual(self, name):
        escaped = name.replace('"', '""')
        Path("l.csv").write_text(f'uri,id\n"{escaped}",x\n')
        (source,) = read_sources(["l.csv"]).sources
        assert Path(source.uri).name == name

    @pytest.mark.parametrize("odd", ["\u2028", "\x85", "\x0b", "\x0c", "\x1c"])
    def test_only_newlines_end_a_row_of_a_csv(self, odd):

        Path("l.csv").write_text(f"uri,id\na{odd}b.mp4,x\n", encoding="utf-8")
        (source,) = read_sources(["l.csv"]).sources
        assert (Path(source.uri).name, source.video_id) == (f"a{odd}b.mp4", "x")

    @pytest.mark.parametrize("extension", ["jsonl", "ndjson", "JSONL"])
    def test_json_lines_are_objects_or_plain_paths(self, extension):
        rows = [{"uri": "a.mp4", "start": 1, "label": ["x", 2]}, "b.mp4"]
        Path(f"l.{extension}").write_text("\n\n".join(json.dumps(row) for row in rows))
        first, second = read_sources([f"l.{extension}"]).sources
        assert (first.start_seconds, first.extra) == (1.0, {"label": ["x", 2]})
        assert Path(second.uri).name == "b.mp4"

    def test_parquet_has_named_columns(self):
        table = pa.table(
            {
                "uri": ["a.mp4", "b.mp4"],
                "video_id": ["x", None],
                "end_seconds": pa.array([3, None], pa.int32()),
                "label": ["cat", None],
            }
        )
        pq.write_table(table, "l.parquet")
        first, second = read_sources(["l.parquet"]).sources
        assert (first.video_id, first.end_seconds, first.extra) == ("x", 3.0, {"label": "cat"})
        assert (second.video_id, second.end_seconds, second.extra) == (None, None, {"label": None})

    def test_ids_are_text_whatever_the_list_holds(self):
        pq.write_table(pa.table({"uri": ["a.mp4"], "id": [7]}), "l.parquet")
        assert read_sources(["l.parquet"]).sources[0].video_id == "7"

    def test_paths_are_relative_to_the_list(self):
        touch("lists/a.mp4", "a.mp4")
        Path("lists/l.txt").write_text("a.mp4\n")
        assert names_of("lists/l.txt") == ["lists/a.mp4"]

    def test_a_path_that_only_exists_in_the_working_folder_is_not_taken_for_it(self):
        touch("lists/x", "b.mp4")
        Path("lists/l.txt").write_text("b.mp4\n")
        assert names_of("lists/l.txt") == ["lists/b.mp4"]

    def test_names_of_columns_may_differ_in_case_and_space(self):
        Path("l.csv").write_text("URI, Start,END\na.mp4,1,2\n")
        (source,) = read_sources(["l.csv"]).sources
        assert (source.start_seconds, source.end_seconds, source.extra) == (1.0, 2.0, {})

    def test_a_cache_is_not_a_source_and_one_inside_a_folder_is_passed_over(self):
        touch("v/a.mp4", "v/cache/cache.json", "v/cache/b.mp4")
        assert names_of("v") == ["v/a.mp4"]
        with pytest.raises(SourceError, match="v/cache is a cache"):
            read_sources(["v/cache"])

    def test_a_missing_file_in_a_list_is_a_source_that_will_be_rejected(self):
        Path("l.txt").write_text("missing.mp4\n")
        assert names_of("l.txt") == ["missing.mp4"]

    def test_equal_rows_are_one_source_and_other_spans_are_others(self):
        Path("l.csv").write_text("uri,start,end\na,,\na,,\na,1,2\na,1,3\na,1.0,2\n")
        spans = [(s.start_seconds, s.end_seconds) for s in read_sources(["l.csv"]).sources]
        assert spans == [(None, None), (1.0, 2.0), (1.0, 3.0)]


class TestListsThatAreRefused:
    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("l.csv", "url,id\na,b\n", "l.csv:2: no column 'uri'; the columns are 'url', 'id'"),
            ("l.csv", "uri,id\n,b\n", "l.csv:2: no column 'uri'"),
            ("l.csv", "uri,start\na,b\n", "l.csv:2: start = 'b' must be a number of seconds"),
            ("l.csv", "uri,start,end\na,2,1\n", "span start 2.0 must be before its end 1.0"),
            ("l.csv", "uri,start\na,nan\n", "span has nan"),
            ("l.csv", "uri,end\na\n", "l.csv:2: fewer cells than columns"),
            ("l.csv", "uri\na,b\n", "l.csv:2: more cells than columns"),
            ("l.csv", "", "l.csv: the list is empty"),
            ("l.csv", "uri\n", "l.csv: the list is empty"),
            ("l.txt", "\n \n", "l.txt: the list is empty"),
            ("l.txt", "concat://bucket/a.mp4\n", "no file system for it"),
            ("l.jsonl", '{"uri": "a"}\n{"uri"', "l.jsonl:2: not JSON"),
            ("l.jsonl", "[" * 100_000, "l.jsonl:1: not JSON: it is nested too deep"),
            ("l.jsonl", f'{{"uri": "a", "end": 1{"0" * 400}}}', "must be a number of seconds"),
            ("l.jsonl", "[1]", "l.jsonl:1: expected an object with a uri, got [1]"),
            ("l.jsonl", '{"uri": 3}', "l.jsonl:1: no column 'uri'"),
            ("l.jsonl", '{"uri": "a", "start": [1]}', "must be a number of seconds"),
            ("l.parquet", "not parquet", "l.parquet: not a readable list of sources"),
        ],
    )
    def test_the_place_and_the_reason_are_named(self, name, text, message):
        Path(name).write_text(text)
        with pytest.raises(UsageError, match=re.escape(message)):
            read_sources([name])

    @pytest.mark.parametrize("name", ["l.txt", "l.csv", "l.jsonl"])
    def test_a_list_that_is_not_text_is_refused(self, name):
        Path(name).write_bytes(b"\xff\xfe\x00a")
        with pytest.raises(SourceError, match="not a readable list of sources"):
            read_sources([name])

    @pytest.mark.parametrize("field", ["uri", "id", "label"])
    def test_half_of_a_surrogate_pair_is_refused(self, field):

        Path("l.jsonl").write_text(json.dumps({"uri": "a"} | {field: "\ud800"}))
        with pytest.raises(SourceError, match=r"l\.jsonl:1"):
            read_sources(["l.jsonl"])

    def test_a_cell_beyond_all_measure_is_refused(self):
        Path("l.csv").write_text("uri\n" + "a" * 200_000 + "\n")
        with pytest.raises(SourceError, match=r"l\.csv:\d: field larger"):
            read_sources(["l.csv"])
