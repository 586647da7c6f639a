"""The benchmark of training runs; what it measures is for `make bench`, never for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def test_reading_is_measured_beside_its_floors(tmp_path: Path) -> None:
    said, report = _measure(tmp_path, "reading")
    assert "raw preadv" in said
    ways = {row["way"] for row in report["reading"]["rows"]}
    assert {"ClipReader", "ClipReader, 2 threads ahead", "webdataset, decoded"} <= ways


def test_runs_wait_fill_and_encode_beside_their_floors(tmp_path: Path) -> None:
    said, report = _measure(tmp_path, "wait", "fill", "in_loop")
    assert "packs" in said and "tokens a frame" in said
    shares = {row["way"]: row["wait_share"] for row in report["wait"]["rows"]}
    assert len(shares) == 3 and all(0 <= share < 1 for share in shares.values())
    for row in report["fill"]["rows"]:
        fill = row["fill"]
        assert fill["padded 4"] < fill["ours"] <= fill["bound"] <= 1, row
        assert fill["in order"] <= fill["ours"]
    (row,) = report["in_loop"]["rows"]
    assert 0 < row["encode_cpu_seconds"] < row["in_loop_cpu_seconds"]
    for ratios in report["in_loop"]["estimates"].values():
        assert 1 < ratios[0] < ratios[1] < ratios[2], "fewer tokens, more to gain"


def test_a_run_goes_on_at_once(tmp_path: Path) -> None:
    _, report = _measure(tmp_path, "resume")
    found = report["resume"]
    assert 2 * found["packs_per_epoch"] < 4 * found["step"] < 3 * found["packs_per_epoch"]
    assert found["samples_before"] > 0
    starts = found["starts"].values()
    assert [start["tars_opened_before"] for start in starts] == [0, 0]
    assert [start["epoch"] for start in starts] == [0, 2]
    assert all(0 < start["num_samples"] < 50 for start in starts)
    assert {row["way"] for row in found["commands"]} == set(found["starts"])


def _measure(folder: Path, *sections: str) -> tuple[str, dict[str, Any]]:
    """What is printed and what is written; a tiny run, which leaves nothing else behind."""
    numbers = folder / "train.json"
    command = [sys.executable, "-m", "benchmarks.train", "--tiny", "--rounds", "2"]
    command += [word for section in sections for word in ("--only", section)]
    command += ["--folder", str(folder), "--json", str(numbers)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["train.json"], "nothing is left"
    return done.stdout, json.loads(numbers.read_text())
