"""A small finished cache, and copies of it to damage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.clips import ClipShelf


@pytest.fixture(scope="session")
def small_videos(clips: ClipShelf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos, a copy of one, a file that is no video, and one that is not media."""
    folder = tmp_path_factory.mktemp("small") / "videos"
    (folder / "more").mkdir(parents=True)
    shutil.copy(clips["25.mp4"].path, folder / "first clip.mp4")
    shutil.copy(clips["25.mp4"].path, folder / "more" / "copy.mp4")
    shutil.copy(clips["50.mp4"].path, folder / "more" / "second.mp4")
    (folder / "broken.mp4").write_text("no video")
    (folder / "notes.md").write_text("not media")
    return folder


@pytest.fixture(scope="session")
def small_cache(small_videos: Path) -> Path:
    """The cache of `small_videos` in several shards; not to be changed."""
    import beam_runner
    from pipeline.sources import read_sources
    from schemas.recipe import Recipe

    cache = small_videos.parent / "cache"
    beam_runner.run(
        read_sources([str(small_videos)]).sources,
        Recipe.load("tiny", overrides=["shards.max_seconds=4"]),
        cache_path=cache,
    )
    return cache


@pytest.fixture
def damaged_cache(small_cache: Path, tmp_path: Path) -> Path:
    """A copy of `small_cache` that a test may damage."""
    return Path(shutil.copytree(small_cache, tmp_path / "cache"))


@pytest.fixture(scope="session")
def odd_cache(clips: ClipShelf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of odd names, spans, sound, int8, damage and copies, beside its list.csv.

    Not to be changed.
    """
    from tests.pipeline.odd_videos import make_odd_cache

    return make_odd_cache(clips, tmp_path_factory.mktemp("odd"))
