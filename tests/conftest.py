"""Fixtures for all tests: synthetic clips, the corpus of real files, one thread."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

# Before anything imports numpy; child processes inherit it.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Of a job in the background a shell lets SIGINT be ignored, and child processes would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from s3fs import S3FileSystem

    from tests.clips import Clip, ClipShelf

# The same examples every time; `--hypothesis-profile=search` looks for new ones.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=3000)
settings.load_profile("fixed")

_numbers = itertools.count()
REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> ClipShelf:
    """All clips of `clips.MAKERS` by name, each made when first asked for."""
    from tests.clips import ClipShelf

    return ClipShelf(tmp_path_factory.mktemp("clips"))


@pytest.fixture(scope="session")
def plain_clip(clips: ClipShelf) -> Clip:
    """Five seconds at 25 frames a second, nothing special."""
    return clips["25.mp4"]


@pytest.fixture(scope="session")
def s3() -> Iterator[S3FileSystem]:
    """The file system of a local S3 server, to which s3:// leads."""
    from tests.stores import s3_server

    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        from s3fs import S3FileSystem

        S3FileSystem.clear_instance_cache()
        yield S3FileSystem(use_listings_cache=False)
        S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(s3: S3FileSystem) -> str:
    """The name of a new bucket."""
    name = f"bucket-{next(_numbers)}"
    s3.mkdir(name)
    return name


@pytest.fixture(scope="session")
def corpus_dir() -> Path:
    """The folder of real video files; CORPUS_DIR names it."""
    folder = Path(os.environ.get("CORPUS_DIR") or REPOSITORY.parent / "shared" / "videos")
    if not (folder / "sampling_truth.json").is_file():
        pytest.skip(f"no corpus of real videos at {folder}; set CORPUS_DIR to its folder")
    return folder
