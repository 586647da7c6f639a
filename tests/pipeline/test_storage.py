"""Files appear whole or not at all."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import storage
from pipeline.storage import (
    publish,
    publish_bytes,
    publish_rows,
    storage_errors,
    temporary_file,
)
from schemas.errors import ReelcacheError, StorageError

SCHEMA = pa.schema([("name", pa.string()), ("size", pa.int64())])


@pytest.fixture
def scratch(tmp_path):
    return tmp_path / ".tmp"


def test_bytes_are_published_under_their_name_and_nothing_else_stays(tmp_path, scratch):
    publish_bytes(b"new", tmp_path / "deep" / "a.json", scratch=scratch)
    assert (tmp_path / "deep" / "a.json").read_bytes() == b"new"
    assert list(scratch.iterdir()) == []


def test_bytes_replace_what_was_there(tmp_path, scratch):
    (tmp_path / "a").write_bytes(b"a much longer old content")
    publish_bytes(b"new", tmp_path / "a", scratch=scratch)
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_file_that_already_holds_the_bytes_is_left_alone(tmp_path, scratch):
    publish_bytes(b"same", tmp_path / "a", scratch=scratch)
    before = (tmp_path / "a").stat()
    publish_bytes(b"same", tmp_path / "a", scratch=scratch)
    after = (tmp_path / "a").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_the_old_content_stays_when_publishing_fails(tmp_path, scratch, monkeypatch, step):
    (tmp_path / "a").write_bytes(b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        *((storage.os, "fsync") if step == "fsync" else (storage.Path, "replace")), fail
    )
    with pytest.raises(StorageError, match="No space"):
        publish_bytes(b"new", tmp_path / "a", scratch=scratch)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert list(scratch.iterdir()) == []


def test_the_data_is_on_disk_before_the_name_is(tmp_path, scratch, monkeypatch):
    steps = []
    fsync, replace = os.fsync, storage.Path.replace
    monkeypatch.setattr(storage.os, "fsync", lambda fd: (steps.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(
        storage.Path, "replace", lambda a, b: (steps.append("replace"), replace(a, b))[1]
    )
    publish_bytes(b"new", tmp_path / "a", scratch=scratch)
    assert steps == ["fsync", "replace", "fsync"]  # the file, its name, the folder


def test_publishing_moves_the_file_itself(tmp_path):
    (tmp_path / "t").write_bytes(b"x")
    inode = (tmp_path / "t").stat().st_ino
    publish(tmp_path / "t", tmp_path / "new" / "final")
    assert (tmp_path / "new" / "final").stat().st_ino == inode
    assert not (tmp_path / "t").exists()


def test_rows_are_published_as_one_table_with_its_metadata(tmp_path, scratch):
    rows = [{"name": "é\n", "size": 2**40}, {"name": None, "size": 1}]
    schema = SCHEMA.with_metadata({"made_by": "test"})
    publish_rows(rows, schema, tmp_path / "t" / "a.parquet", scratch=scratch)
    table = pq.read_table(tmp_path / "t" / "a.parquet")
    assert table.to_pylist() == rows
    assert table.schema.names == SCHEMA.names
    assert table.schema.metadata[b"made_by"] == b"test"


def test_no_rows_are_a_table_with_the_same_columns(tmp_path, scratch):
    publish_rows([], SCHEMA, tmp_path / "a.parquet", scratch=scratch)
    assert pq.read_schema(tmp_path / "a.parquet").names == SCHEMA.names


def test_rows_that_do_not_fit_leave_the_old_table(tmp_path, scratch):
    publish_rows([], SCHEMA, tmp_path / "a.parquet", scratch=scratch)
    before = (tmp_path / "a.parquet").read_bytes()
    with pytest.raises(pa.ArrowException):
        publish_rows([{"size": "many"}], SCHEMA, tmp_path / "a.parquet", scratch=scratch)
    assert (tmp_path / "a.parquet").read_bytes() == before
    assert list(scratch.iterdir()) == []


def test_the_same_rows_are_the_same_bytes(tmp_path, scratch):
    for name in ("a", "b"):
        publish_rows([{"name": "x", "size": 1}], SCHEMA, tmp_path / name, scratch=scratch)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_temporary_file_is_gone_after_an_error(scratch):
    with pytest.raises(KeyboardInterrupt), temporary_file(scratch, name="x") as path:
        path.write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(scratch.iterdir()) == []


def test_that_a_place_is_read_only_is_the_error_that_is_told(tmp_path, scratch, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.EROFS, "x")  # Linux says so of a file that is not there, too

    monkeypatch.setattr(Path, "write_bytes", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(StorageError, match="x: cannot be written: Read-only file system"):
        publish_bytes(b"x", tmp_path / "x", scratch=scratch)


def test_two_temporary_files_of_one_name_are_two(scratch):
    with temporary_file(scratch, name="x") as one, temporary_file(scratch, name="x") as other:
        assert one != other
        assert one.parent == other.parent == scratch


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "x"), "No space left on device"),
        (PermissionError(13, "x"), "Permission denied"),
        (OSError("odd"), "odd"),
    ],
)
def test_an_error_of_the_system_becomes_one_sentence_about_the_place(tmp_path, error, reason):
    with pytest.raises(StorageError) as caught, storage_errors(tmp_path):
        raise error
    assert str(caught.value) == f"{tmp_path}: cannot be written: {reason}"
    assert caught.value.exit_code == 2
    assert "run again" in caught.value.hint


@pytest.mark.parametrize("error", [ReelcacheError("x"), TypeError("x"), KeyboardInterrupt()])
def test_other_errors_pass_as_they_are(tmp_path, error):
    with pytest.raises(type(error)) as caught, storage_errors(tmp_path):
        raise error
    assert caught.value is error
