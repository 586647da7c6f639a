"""verify_cache: nothing wrong in a fresh cache, and every kind of damage found."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.verifying import KINDS, verify_cache
from schemas.errors import CacheIncomplete, UsageError


def _tar(cache: Path) -> Path:
    return min((cache / "shards").glob("*.tar"))


def _kinds(cache: Path, *, deep: bool = False) -> set[str]:
    return {finding.kind for finding in verify_cache(cache, deep=deep).findings}


def _edit_json(path: Path, edit: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


def _edit_sidecar(path: Path, edit: Callable[[Any], None]) -> None:
    """Change a sidecar, and cache.json so that it knows the changed one."""
    _edit_json(path, edit)

    def fit(info: Any) -> None:
        for entry in info["shards"]:
            if entry["name"] == path.stem:
                entry["sidecar_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()

    _edit_json(path.parents[1] / "cache.json", fit)


def _rewrite_tar(cache: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Write the first shard anew with changed members, and make all digests fit it."""
    tar = _tar(cache)
    with tarfile.open(tar) as archive:
        members = [(m, archive.extractfile(m)) for m in archive.getmembers()]
        data = [(member, file.read()) for member, file in members if file]
    buffer = bytearray(tar.read_bytes())
    for member, old in data:
        new = change(member.name, old)
        assert len(new) == len(old)
        buffer[member.offset_data : member.offset_data + len(old)] = new
    tar.write_bytes(buffer)
    digest = hashlib.sha256(buffer).hexdigest()
    _edit_sidecar(tar.with_suffix(".json"), lambda s: s.update(tar_sha256=digest))

    def fit(info: Any) -> None:
        for entry in info["shards"]:
            if entry["name"] == tar.stem:
                entry["sha256"] = digest

    _edit_json(cache / "cache.json", fit)


def test_a_fresh_cache_has_no_finding(small_cache: Path) -> None:
    result = verify_cache(small_cache, deep=True)
    assert result.findings == []
    assert result.ok
    info = json.loads((small_cache / "cache.json").read_text())
    assert result.num_samples == info["counts"]["samples"] > 3
    assert result.num_shards == info["counts"]["shards"] > 1


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_finds_a_flipped_byte(damaged_cache: Path, place: str) -> None:
    tar = _tar(damaged_cache)
    data = bytearray(tar.read_bytes())
    at = {"first": 600, "middle": len(data) // 2, "last": len(data) - 1}[place]
    data[at] ^= 1
    tar.write_bytes(data)
    assert "digest" in _kinds(damaged_cache)


def test_finds_a_missing_tar(damaged_cache: Path) -> None:
    _tar(damaged_cache).unlink()
    assert _kinds(damaged_cache) == {"missing_tar"}


def test_finds_a_missing_sidecar(damaged_cache: Path) -> None:
    _tar(damaged_cache).with_suffix(".json").unlink()
    assert _kinds(damaged_cache) == {"missing_sidecar"}


def test_finds_a_damaged_sidecar(damaged_cache: Path) -> None:
    _tar(damaged_cache).with_suffix(".json").write_text("{")
    assert _kinds(damaged_cache) == {"damaged_sidecar"}


def test_finds_a_truncated_tar(damaged_cache: Path) -> None:
    tar = _tar(damaged_cache)
    tar.write_bytes(tar.read_bytes()[:-700])
    assert _kinds(damaged_cache) == {"truncated_tar"}


def test_finds_a_sidecar_of_another_recipe(damaged_cache: Path) -> None:
    sidecar = _tar(damaged_cache).with_suffix(".json")
    _edit_sidecar(sidecar, lambda s: s.update(recipe_fingerprint="0" * 64))
    assert _kinds(damaged_cache) == {"fingerprint"}


def test_finds_a_changed_recipe(damaged_cache: Path) -> None:
    def edit(info: Any) -> None:
        info["recipe"]["sampling"]["fps"] = 1.0

    _edit_json(damaged_cache / "cache.json", edit)
    assert _kinds(damaged_cache) == {"fingerprint"}


def test_finds_an_unreadable_recipe(damaged_cache: Path) -> None:
    _edit_json(damaged_cache / "cache.json", lambda info: info["recipe"].update(streams={}))
    assert "cache_json" in _kinds(damaged_cache)


def test_finds_a_duplicate_key(damaged_cache: Path) -> None:
    first, second = sorted((damaged_cache / "shards").glob("*.json"))[:2]
    repeated = json.loads(first.read_text())["samples"][0]["key"]

    def edit(sidecar: Any) -> None:
        sidecar["samples"][0]["key"] = repeated

    _edit_sidecar(second, edit)
    assert "duplicate_key" in _kinds(damaged_cache)


def test_finds_a_member_that_occurs_twice(damaged_cache: Path) -> None:
    tar = _tar(damaged_cache)
    data = bytearray(tar.read_bytes())
    with tarfile.open(tar) as archive:
        first, second = archive.getmembers()[:2]
    header = bytearray(data[second.offset : second.offset + 512])
    header[:100] = first.name.encode().ljust(100, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data[second.offset : second.offset + 512] = header
    tar.write_bytes(data)
    assert {"digest", "duplicate_key", "members"} <= _kinds(damaged_cache)


def test_finds_an_index_of_other_rows(damaged_cache: Path) -> None:
    path = damaged_cache / "index" / "samples.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    assert _kinds(damaged_cache) == {"index"}
    path.write_bytes(b"PAR1")
    assert _kinds(damaged_cache) == {"index"}
    path.unlink()
    assert _kinds(damaged_cache) == {"index"}


def test_finds_times_that_go_back(damaged_cache: Path) -> None:
    def swap(name: str, data: bytes) -> bytes:
        if not name.endswith("time.npy"):
            return data
        times = np.load(io.BytesIO(data))[::-1]
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(times))
        return buffer.getvalue()

    _rewrite_tar(damaged_cache, swap)
    assert _kinds(damaged_cache) == {"times"}


def test_finds_json_that_contradicts_the_index(damaged_cache: Path) -> None:
    def edit(name: str, data: bytes) -> bytes:
        return data.replace(b'"clip_index": 0', b'"clip_index": 7')

    _rewrite_tar(damaged_cache, edit)
    assert _kinds(damaged_cache) == {"times"}


def test_finds_a_wrong_shape(damaged_cache: Path) -> None:
    def edit(name: str, data: bytes) -> bytes:
        return data.replace(b"(4, 4, 4, 32)", b"(4, 4, 32, 4)")

    _rewrite_tar(damaged_cache, edit)
    assert _kinds(damaged_cache) == {"sample"}


def test_finds_not_a_number_when_deep(damaged_cache: Path) -> None:
    def edit(name: str, data: bytes) -> bytes:
        nan = np.array([np.nan], dtype=np.float16).tobytes()
        return data[:-2] + nan if name.endswith("image.npy") else data

    _rewrite_tar(damaged_cache, edit)
    assert _kinds(damaged_cache) == set()
    assert _kinds(damaged_cache, deep=True) == {"values"}


def test_finds_a_preview_that_is_no_picture_when_deep(damaged_cache: Path) -> None:
    def edit(name: str, data: bytes) -> bytes:
        return bytes(len(data)) if name.endswith("preview.jpg") else data

    _rewrite_tar(damaged_cache, edit)
    assert _kinds(damaged_cache) == set()
    assert _kinds(damaged_cache, deep=True) == {"values"}


def test_finds_counts_that_do_not_add_up(damaged_cache: Path) -> None:
    _edit_json(damaged_cache / "cache.json", lambda info: info["counts"].update(rejected=0))
    assert _kinds(damaged_cache) == {"counts"}


def test_finds_files_for_other_readers_missing(damaged_cache: Path) -> None:
    (damaged_cache / "wids.json").unlink()
    min((damaged_cache / "shards").glob("*.idx")).unlink()
    assert _kinds(damaged_cache) == {"reader_files"}


def test_a_folder_that_is_no_cache_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CacheIncomplete):
        verify_cache(tmp_path)
    with pytest.raises(UsageError):
        verify_cache(tmp_path / "nowhere")


def test_kinds_are_documented() -> None:
    assert all(meaning for meaning in KINDS.values())


def test_finds_a_sidecar_that_was_changed(damaged_cache: Path) -> None:
    sidecar = _tar(damaged_cache).with_suffix(".json")
    _edit_json(sidecar, lambda s: s["versions"].update(av="0"))
    assert _kinds(damaged_cache) == {"damaged_sidecar"}


@pytest.mark.parametrize("name", ["plan", "probes"])
def test_finds_a_changed_table(damaged_cache: Path, name: str) -> None:
    (path,) = (damaged_cache / name).iterdir()
    path.write_bytes(path.read_bytes() + b"x")
    assert "table" in _kinds(damaged_cache)


def test_a_later_run_that_has_not_finished_is_one_finding(damaged_cache: Path) -> None:
    (path,) = (damaged_cache / "probes").iterdir()
    path.with_name("000001.parquet").write_bytes(path.read_bytes())
    assert _kinds(damaged_cache) == {"unfinished"}


@pytest.mark.parametrize("name", ["rejects", "plan"])
def test_finds_tables_missing(damaged_cache: Path, name: str) -> None:
    for path in (damaged_cache / name).iterdir():
        path.unlink()
    assert _kinds(damaged_cache)
