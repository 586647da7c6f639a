"""slice, merge, diff and export as a script uses them: stdout, stderr, exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.cache import open_cache
from pipeline.cli import call
from pipeline.verifying import verify_cache

COMMANDS = ("slice", "merge", "diff", "export")


def _run(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> Any:
    assert call(list(map(str, arguments))) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return out, err


def _json(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> Any:
    out, _ = _run(capsys, *arguments, "--json", code=code)
    return json.loads(out)


def test_slice_merge_and_diff_of_one_cache(
    odd_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, rest, whole = (tmp_path / name for name in ("first", "rest", "whole"))
    told = _json(capsys, "slice", odd_cache, first, "--where", "clip_index == 0")
    assert (told["videos"], told["clips"], told["of_videos"], told["of_clips"]) == (7, 7, 7, 20)
    assert told["cache"] == str(first) and told["bytes"] > 0
    out, err = _run(capsys, "slice", odd_cache, rest, "--where", "clip_index > 0")
    assert "13 of 20" in out and err == ""
    told = _json(capsys, "merge", first, rest, whole)
    assert (told["videos"], told["clips"], told["shared_clips"]) == (7, 20, 0)
    assert verify_cache(whole).findings == []
    assert _json(capsys, "diff", odd_cache, whole)["same"] is True
    out, _ = _run(capsys, "diff", odd_cache, first, code=1)
    assert "1 the same" in out and "6 in both that differ" in out
    assert "7 compared, 7 equal to the byte" in out
    assert "2 only in A" in out
    told = _json(capsys, "diff", first, odd_cache, "--videos-only", code=1)
    assert {video["only_b"] for video in told["videos"]} <= {0, 1, 2, 5}
    assert (told["num_common"], told["num_compared"]) == (7, 0)


def test_a_dry_run_writes_nothing_and_says_the_same(
    odd_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("slice", odd_cache, tmp_path / "out", "--where", "loudness > -300")
    dry, err = _run(capsys, *arguments, "--dry-run")
    assert "none is written" in dry
    assert "clips left out: a value that is compared is null." in err
    assert not (tmp_path / "out").exists()
    wet, err = _run(capsys, *arguments, "-q")
    assert err == ""
    facts = [line for line in dry.splitlines() if line.startswith(("videos", "clips", "bytes"))]
    assert facts == wet.splitlines()[1:4]
    out, _ = _run(capsys, "merge", odd_cache, odd_cache, tmp_path / "all", "--dry-run")
    assert "20; 20 that were in two are taken once" in out
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("command", ["slice", "merge"])
def test_check_reads_all_that_is_taken_from(
    odd_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    copy = Path(shutil.copytree(odd_cache, tmp_path / "cache"))
    arguments: tuple[str | Path, ...] = {
        "slice": ("slice", copy, tmp_path / "out", "--where", "clip_index == 0"),
        "merge": ("merge", copy, odd_cache, tmp_path / "out", "--link"),
    }[command]
    _run(capsys, *arguments, "--check", "--dry-run")
    tar = max((copy / "shards").glob("*.tar"))
    data = bytearray(tar.read_bytes())
    data[-2000] ^= 1
    tar.write_bytes(data)
    _, err = _run(capsys, *arguments, "--check", code=4)
    assert f"{tar}: its bytes are not those that were written" in err
    assert not (tmp_path / "out").exists()
    _run(capsys, *arguments)


def test_slice_tells_of_rows_and_rejects(
    odd_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "list.csv"
    manifest.write_text("id\nlate\nbroken\nnowhere\n")
    arguments = ("slice", odd_cache, tmp_path / "out", "--manifest", manifest)
    _, err = _run(capsys, *arguments, code=2)
    assert "1 of 3 rows match nothing" in err and "list.csv:4: 'nowhere'" in err
    _, err = _run(capsys, *arguments, "--skip-missing", "-v")
    assert "1 row of the manifest matched nothing.\n" in err and "list.csv:4" in err
    assert "1 rejected source of those named: rejected in the slice too." in err
    with open_cache(tmp_path / "out") as cache:
        assert list(cache.videos) == ["late"]
        assert cache.info.counts["rejected"] == 1


def test_a_manifest_on_stdin(odd_cache: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline", "slice", str(odd_cache), str(tmp_path / "out")]
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [*command, "--manifest", "-"],
        input="late\n50.mp4\n",
        capture_output=True,
        text=True,
        cwd=odd_cache.parent,
        env=os.environ | {"PYTHONPATH": root},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with open_cache(tmp_path / "out") as cache:
        assert len(cache.videos) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("slice", "{cache}", "{out}"), "nothing says which clips"),
        (("slice", "{cache}", "{out}", "--where", "stat < 1"), "did you mean 'static'"),
        (("slice", "{cache}", "{out}", "--where", "static <"), "is no expression"),
        (("slice", "{cache}", "{out}", "--where", "false"), "no clip is chosen"),
        (("slice", "{cache}", "{cache}", "--where", "true"), "holds a cache already"),
        (("slice", "{out}", "{out}2", "--where", "true"), "no such folder"),
        (("slice", "{cache}", "", "--where", "true"), "CACHE is empty"),
        (("merge", "{cache}", "{out}"), "two caches or more"),
        (("merge", "{cache}", "{out}", "{out}2"), "no such folder"),
        (("export", "{cache}", "{out}"), "Missing option '--to'"),
        (("export", "{cache}", "{out}", "--to", "npy", "--stream", "x"), "no stream 'x'"),
        (("export", "{cache}", "{cache}", "--to", "npy"), "is the cache itself"),
        (("export", "{cache}", "{out}", "--to", "npy", "--compression", "zstd"), "of parquet"),
        (("diff", "{cache}", "{out}"), "no such folder"),
    ],
)
def test_wrong_use(
    odd_cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    places = {"cache": odd_cache, "out": tmp_path / "out"}
    out, err = _run(capsys, *(one.format(**places) for one in arguments), code=2)
    assert out == "" and words in err
    assert list(tmp_path.iterdir()) == []


def test_export_in_two_ways(
    odd_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("export", odd_cache, tmp_path / "one", "--to", "npy", "--pooled")
    told = _json(capsys, *arguments, "--stream", "video", "--where", "clip_index == 0")
    assert (told["clips"], told["format"]) == (7, "npy")
    assert told["files"] == ["video.npy", "time.npy", "mask.npy", "index.parquet"]
    out, _ = _run(capsys, "export", odd_cache, tmp_path / "two", "--to", "parquet")
    assert "and 3 more" in out and "20" in out
    _, err = _run(capsys, "export", odd_cache, tmp_path / "one", "--to", "npy", code=2)
    assert "holds an export already" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_and_it_goes_on(
    odd_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    arguments = ["slice", str(odd_cache), str(tmp_path / "out"), "--where", "clip_index < 3"]
    code = (
        "import os, sys\nfrom pipeline import repacking\nfrom pipeline.cli import call\n"
        "old = repacking.publish_bytes\n"
        "def publish_bytes(*arguments, **named):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    return old(*arguments, **named)\n"
        f"repacking.publish_bytes = publish_bytes\nsys.exit(call({arguments!r}))\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.returncode == 128 + number
    assert done.stderr.strip().startswith("Interrupted. What is committed is kept")
    assert not (tmp_path / "out" / ".tmp").exists()
    assert not (tmp_path / "out" / "cache.json").exists()
    _run(capsys, *arguments)
    assert verify_cache(tmp_path / "out").findings == []


@pytest.mark.parametrize("to", ["parquet", "safetensors", "npy"])
def test_an_export_that_is_interrupted_leaves_no_temporary_file(
    odd_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    arguments = ["export", str(odd_cache), str(tmp_path / "out"), "--to", to]
    code = (
        "import os, signal, sys\nfrom pipeline import exporting\nfrom pipeline.cli import call\n"
        "old, count = exporting._read, 0\n"
        "def read(*arguments):\n"
        "    global count\n    count += 1\n"
        "    if count == 8:\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return old(*arguments)\n"
        f"exporting._read = read\nsys.exit(call({arguments!r}))\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.returncode == 130
    assert "Interrupted. What is committed is kept" in done.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert not names & {".tmp", "_export.json"}
    _run(capsys, *arguments)


@pytest.mark.parametrize("command", COMMANDS)
def test_loads_neither_torch_nor_beam(odd_cache: Path, tmp_path: Path, command: str) -> None:
    out = str(tmp_path / "out")
    arguments = {
        "slice": ["slice", str(odd_cache), out, "--where", "clip_index == 0"],
        "merge": ["merge", str(odd_cache), str(odd_cache), out],
        "diff": ["diff", str(odd_cache), str(odd_cache)],
        "export": ["export", str(odd_cache), out, "--to", "parquet"],
    }[command]
    code = (
        f"import sys; from pipeline.cli import call; code = call({arguments!r});"
        "print(code, sorted({'torch', 'apache_beam', 'av'} & set(sys.modules)))"
    )
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"
