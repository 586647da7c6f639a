"""The benchmark of training runs; what it measures is for `make bench`, never for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_reading_is_measured_beside_its_floors(tmp_path: Path) -> None:
    numbers = tmp_path / "train.json"
    command = [sys.executable, "-m", "benchmarks.train", "--tiny", "--rounds", "2"]
    command += ["--only", "reading", "--folder", str(tmp_path), "--json", str(numbers)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "raw preadv" in done.stdout
    ways = {row["way"] for row in json.loads(numbers.read_text())["reading"]["rows"]}
    assert {"ClipReader", "ClipReader, 2 threads ahead", "webdataset, decoded"} <= ways
    assert [path.name for path in tmp_path.iterdir()] == ["train.json"], "nothing is left"
