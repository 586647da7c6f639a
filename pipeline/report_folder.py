"""Write a report: a folder with a page that any browser opens, without server or network.

The page takes its data by script tags, since a page from a disk may not fetch files:

    index.html  *.css  *.js     the page
    data.js                     totals and the table of all videos
    videos/{n:06d}.js           a video's portrait; loaded when the video is opened
    videos/{n:06d}.jpg          the frames of its chosen clips; {n:06d}-small.jpg, one of them
    report.json                 what the folder is; without it nothing here is ever replaced
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pipeline.cache import FeatureCache
from pipeline.events import read_events
from pipeline.gaps import find_gaps
from pipeline.overview import take_overview
from pipeline.places import NUM_READERS, is_local
from pipeline.pool import num_cores
from pipeline.portraying import FEATURE_BYTES, portray
from pipeline.report_clusters import read_memberships
from pipeline.report_table import describe_cache, describe_rejects, describe_videos
from pipeline.storage import storage_errors
from schemas.errors import UsageError

MARK = "report.json"
PAGE = "pipeline.report_page"
PAGE_SUFFIXES = (".html", ".css", ".js")
MOST_FRAMES, LEAST_CLIPS = 192, 8
"""Of a video, that have pictures: clips of so many frames together, but not fewer clips."""

BEGINS_SECONDS = 10
"""A folder that is younger may not have its lock yet."""
MOST_BYTES = 2**30
"""Of features in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """What was written."""

    path: Path
    """The page."""
    num_videos: int
    num_portraits: int
    num_files: int
    num_bytes: int
    page_bytes: int
    """What is loaded before a video is opened, without pictures."""
    seconds: float


def write_report(
    cache: FeatureCache,
    folder: Path,
    *,
    most_clips: int | None = None,
    most_portraits: int | None = None,
    on_video: Callable[[], None] = lambda: None,
) -> WrittenReport:
    """Write the report of a cache into a folder, which appears whole or stays as it was.

    `most_clips` of a video have pictures; None: as MOST_FRAMES allow. `most_portraits`: only so
    many videos, the first by id, can be opened. `on_video` is called when one more is done.
    UsageError: the folder is there and is no report. StorageError: it cannot be written.
    CacheDamaged.
    """
    began = time.monotonic()
    check_folder(folder)
    if most_clips is None:
        most_clips = max(LEAST_CLIPS, MOST_FRAMES // cache.recipe.sampling.frames_per_clip)
    overview = take_overview(cache)
    videos = overview.videos
    gaps = find_gaps(cache, (video.probe for video in videos))
    events = read_events(cache.layout)
    drawn = videos if most_portraits is None else videos[:most_portraits]
    with storage_errors(folder), _appears_whole(folder) as partial:
        (partial / "videos").mkdir()
        page = write_page(partial)
        data = {
            "cache": describe_cache(cache, name=str(cache.layout.root), overview=overview),
            "videos": describe_videos(
                videos,
                missing={name: sum(g.num_clips for g in found) for name, found in gaps.items()},
                clusters=read_memberships(cache.layout),
                events=events,
                num_portraits=len(drawn),
            ),
            "rejects": describe_rejects(overview.rejects),
        }
        page += write_script(partial / "data.js", "take", data)

        def draw(number: int) -> int:
            video = drawn[number]
            portrait = portray(
                cache,
                video,
                most_clips=most_clips,
                events=events.get(video.video_id, ()),
                gaps=gaps.get(video.video_id, ()),
            )
            stem = partial / "videos" / f"{number:06d}"
            written = write_script(stem.with_suffix(".js"), "open", number, portrait.data)
            for suffix, picture in ((".jpg", portrait.sheet), ("-small.jpg", portrait.thumbnail)):
                if picture is not None:
                    written += stem.with_name(stem.name + suffix).write_bytes(picture)
            return written

        total = page
        with contextlib.closing(_each(draw, len(drawn), threads=_num_threads(cache))) as each:
            for written in each:
                total += written
                on_video()
        mark = {
            "made_by": "reelcache report",
            "fingerprint": cache.fingerprint,
            "videos": len(videos),
            "portraits": len(drawn),
        }
        total += (partial / MARK).write_bytes(json.dumps(mark, indent=1).encode() + b"\n")
        num_files = sum(1 for path in partial.rglob("*") if path.is_file())
    return WrittenReport(
        path=folder / "index.html",
        num_videos=len(videos),
        num_portraits=len(drawn),
        num_files=num_files,
        num_bytes=total,
        page_bytes=page,
        seconds=time.monotonic() - began,
    )


def check_folder(folder: Path) -> None:
    """UsageError: something that is no report is there, and would be lost."""
    if not folder.exists() or (folder / MARK).is_file():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder}: is a file, not a folder", hint="name another folder with -o")
    if any(folder.iterdir()):
        raise UsageError(
            f"{folder}: is there, is not empty and is no report, so it is not replaced",
            hint="name another folder with -o",
        )


def write_page(folder: Path) -> int:
    """Write the page's own files: bytes."""
    total = 0
    for file in sorted(resources.files(PAGE).iterdir(), key=lambda file: file.name):
        if file.name.endswith(PAGE_SUFFIXES):
            total += (folder / file.name).write_bytes(file.read_bytes())
    return total


def write_script(path: Path, function: str, *values: Any) -> int:
    """Write a script that calls a function of the page's with values: bytes.

    Of ASCII only: a name may hold what is no text at all.
    """
    texts = (json.dumps(v, separators=(",", ":"), allow_nan=False) for v in values)
    return path.write_bytes(f"reelcache.{function}({','.join(texts)});\n".encode("ascii"))


@contextlib.contextmanager
def _appears_whole(folder: Path) -> Iterator[Path]:
    folder = folder.resolve()  # of a link, what it leads to
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(folder)
    token = uuid.uuid4().hex[:8]
    partial = folder.with_name(f".{folder.name}.{token}.part")
    old = folder.with_name(f".{folder.name}.{token}.old")
    partial.mkdir()
    lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # of a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield partial
        check_folder(folder)  # meanwhile someone may have put something there
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
    finally:
        os.close(lock)
        shutil.rmtree(partial, ignore_errors=True)
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(old, ignore_errors=True)


def _remove_left(folder: Path) -> None:
    # What one that was killed has left may be gigabytes, and its lock went with it.
    for path in folder.parent.glob(f".{glob.escape(folder.name)}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < BEGINS_SECONDS:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _each(work: Callable[[int], int], count: int, *, threads: int) -> Generator[int, None, None]:
    with ThreadPoolExecutor(threads, thread_name_prefix="portray") as pool:
        try:
            yield from pool.map(work, range(count))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _num_threads(cache: FeatureCache) -> int:
    # Remote samples are waited for. Each thread holds the features of a video.
    threads = num_cores() if is_local(cache.layout.root) else NUM_READERS
    return min(threads, MOST_BYTES // FEATURE_BYTES)
