"""`pipeline report` as a script uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.cli import call


def test_report_writes_a_folder_and_says_what(
    small_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "report"
    assert call(["report", str(small_cache), "-o", str(folder), "--json"]) == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert err == ""
    assert value["report"] == str(folder / "index.html")
    assert (value["videos"], value["portraits"], value["files"]) == (2, 2, len(files))
    assert value["bytes"] == sum(path.stat().st_size for path in files)
    assert {"page_bytes", "seconds"} < set(value)
    arguments = ["report", str(small_cache), "-o", str(folder), "--limit", "1", "--clips", "2"]
    assert call(arguments) == 0
    out = capsys.readouterr().out
    assert "2, of which 1 can be opened" in out
    assert out.splitlines()[-1].split() == ["open", str(folder / "index.html")]
    assert len(list((folder / "videos").glob("*.js"))) == 1


def test_report_replaces_nothing_of_anyone(
    small_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert call(["report", str(small_cache), "-o", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "is no report, so it is not replaced" in err
    assert call(["report", str(tmp_path / "no"), "-o", str(tmp_path / "r")]) == 2
    assert not (tmp_path / "r").exists()
    assert call(["report", str(small_cache), "-o", str(tmp_path / "r"), "--clips", "0"]) == 2
    assert call(["report", str(small_cache), "-o", "s3://bucket/report"]) == 2
    assert "of this machine" in capsys.readouterr().err
    assert call(["report", str(small_cache), "-o", (tmp_path / "url").as_uri(), "-q"]) == 0
    assert (tmp_path / "url" / "index.html").is_file()
