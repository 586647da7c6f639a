"""The benchmarks run; what they measure is for `make bench`, never for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_shards_is_measured_beside_its_floors(tmp_path: Path) -> None:
    numbers = tmp_path / "shards.json"
    command = [sys.executable, "-m", "benchmarks.shards", "--rounds", "2"]
    command += ["--folder", str(tmp_path), "--json", str(numbers)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "raw write" in done.stdout
    assert json.loads(numbers.read_text())


def test_decoding_is_measured_beside_its_floors(tmp_path: Path) -> None:
    numbers = tmp_path / "decode.json"
    command = [sys.executable, "-m", "benchmarks.decode", "--tiny", "--rounds", "2"]
    command += ["--folder", str(tmp_path), "--json", str(numbers)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(numbers.read_text())
    assert "PyAV, all frames" in done.stdout
    assert {row["order"] for row in report["rows"] if row["way"] == "ours"} == {"selected"}
    assert report["startup"]["num_files"] > 0
    assert report["memory"]["long"]["child_mb"] > 0
