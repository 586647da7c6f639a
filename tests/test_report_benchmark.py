"""The benchmark of reports runs; what it measures is for `make bench`, never for a test."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from benchmarks.browsing import why_not
from benchmarks.report import measure_opening, measure_writing, write_cache
from pipeline.layout import CacheLayout


def test_a_report_is_measured(tmp_path: Path) -> None:
    layout = CacheLayout(tmp_path / "cache")
    write_cache(layout, num_videos=5)
    names = [file.name for file in resources.files("pipeline.report_page").iterdir()]
    num_page_files = sum(name.endswith((".html", ".css", ".js")) for name in names) + 2
    numbers = measure_writing(layout, tmp_path / "report")
    assert (numbers["videos"], numbers["files"]) == (5, num_page_files + 3 * 5)
    opened = measure_opening(tmp_path / "report" / "index.html")
    if why_not():
        assert opened == {"browser": why_not()}
    else:
        assert opened["said"] == []
        assert opened["open_video_seconds"] > 0
