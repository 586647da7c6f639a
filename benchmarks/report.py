"""A report of many videos: seconds, bytes and memory to write it, and to open it in a browser.

    python -m benchmarks.report [--videos N] [--folder FOLDER]

The cache is written by hand: previews of noise that is as large as real ones, random features of
small grids, mostly short videos and some long ones. The browser is Chromium, where it and the
Python package playwright are installed. Prints a table and writes bench-results/report.json.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.browsing import open_browser, visit, why_not
from benchmarks.handmade import Made, finalize, publish_shard
from benchmarks.timing import LoadWatch, clip_folder, write_report
from pipeline.cache import open_cache
from pipeline.layout import CacheLayout
from pipeline.packing import encode_preview
from pipeline.probing import write_probes
from pipeline.report_folder import write_report as write_page
from schemas.quality import Quality
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.video import Probe, Source, sample_key

RESULTS = Path("bench-results") / "report.json"
RECIPE = Recipe.load("tiny")
SECONDS = 2.0
"""Of a clip."""
PER_SHARD = 200
CODECS, SIZES = ("h264", "hevc", "vp9", "av1"), ((1920, 1080), (1280, 720), (640, 360), (720, 1280))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--videos", type=int, default=10_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    load = LoadWatch()
    with clip_folder(options.folder) as folder:
        layout = CacheLayout(folder / "cache")
        write_cache(layout, num_videos=options.videos)
        numbers = measure_writing(layout, folder / "report")
        numbers |= measure_opening(folder / "report" / "index.html")
        shutil.rmtree(folder / "cache")
    numbers["load_was_low"] = load.look()
    for name, value in numbers.items():
        print(f"{name:28} {value:,.3f}" if isinstance(value, float) else f"{name:28} {value}")
    write_report(numbers, options.json)


def measure_writing(layout: CacheLayout, folder: Path) -> dict[str, Any]:
    """Of the whole report; memory is the highest of this process."""
    began_cpu = time.process_time()
    with open_cache(layout.root) as cache:
        written = write_page(cache, folder)
        clips = len(cache)
    videos = max(1, written.num_videos)
    return {
        "videos": written.num_videos,
        "clips": clips,
        "seconds": written.seconds,
        "cpu_seconds": time.process_time() - began_cpu,
        "milliseconds_a_video": 1000 * written.seconds / videos,
        "files": written.num_files,
        "page_mb": written.page_bytes / 1e6,
        "report_mb": written.num_bytes / 1e6,
        "kb_a_video": (written.num_bytes - written.page_bytes) / videos / 1e3,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def measure_opening(page: Path) -> dict[str, Any]:
    """Until the table is there, until it is filtered and sorted, until a video is open."""
    if reason := why_not():
        return {"browser": reason}
    with open_browser() as browser:
        began = time.perf_counter()
        opened = visit(browser, page)
        opened.page.wait_for_selector("#videos tbody tr")
        loaded = time.perf_counter() - began
        inside = opened.page.context.new_cdp_session(opened.page)
        inside.send("Performance.enable")
        metrics = inside.send("Performance.getMetrics")["metrics"]
        heap = next(one["value"] for one in metrics if one["name"] == "JSHeapUsedSize") / 1e6
        acts = {
            "filter": "document.getElementById('search').value = '77';"
            " document.getElementById('search').dispatchEvent(new Event('input'))",
            "sort": "document.querySelector('th.seconds button').click()",
            "bar": "document.querySelector('#charts .bar:not(:disabled)').click()",
        }
        numbers = {"browser": browser.version, "load_seconds": loaded, "heap_mb": heap}
        for name, act in acts.items():
            numbers[f"{name}_ms"] = opened.page.evaluate(
                f"() => {{ const t = performance.now(); {act};"
                " document.body.offsetHeight; return performance.now() - t; }"
            )
        opened.page.evaluate("document.getElementById('chips').querySelector('button').click()")
        began = time.perf_counter()
        opened.page.click("#videos tbody a")
        opened.page.wait_for_selector("#video .frame")
        numbers["open_video_seconds"] = time.perf_counter() - began
        numbers["said"] = opened.said
    return numbers


def write_cache(layout: CacheLayout, *, num_videos: int) -> None:
    """A cache as a run leaves it: tars, sidecars, probes, index."""
    rng = np.random.default_rng(0)
    layout.shards.mkdir(parents=True)
    previews = [_preview(rng) for _ in range(64)]
    sidecars, probes = [], []
    for index, first in enumerate(range(0, num_videos, PER_SHARD)):
        videos = {}
        for number in range(first, min(num_videos, first + PER_SHARD)):
            num_clips = 900 if number % 1000 == 7 else 1 + int(rng.gamma(1.5, 4))
            probe = _probe(number, num_clips, rng)
            probes.append(probe)
            videos[probe.video_id] = num_clips
        sidecars.append(publish_shard(layout, index, _clips(videos, previews, rng)))
    write_probes(probes, layout)
    finalize(layout, RECIPE, probes=probes, sidecars=sidecars)


def _clips(
    videos: dict[str, int], previews: list[bytes], rng: np.random.Generator
) -> Iterator[Made]:
    for video_id, num_clips in videos.items():
        for clip_index in range(num_clips):
            starts = SECONDS * clip_index + np.arange(4) / 2
            sample = Sample(
                key=sample_key(video_id, clip_index),
                features={
                    "image": rng.random((4, 4, 4, 32), np.float32).astype(np.float16),
                    "video": rng.random((4, 3, 3, 48), np.float32).astype(np.float16),
                },
                times=np.stack([starts, starts + 0.04], axis=1),
                mask=np.ones(4, dtype=bool),
                info={
                    "video_id": video_id,
                    "clip_index": clip_index,
                    "start_seconds": SECONDS * clip_index,
                    "end_seconds": SECONDS * (clip_index + 1),
                    "fps": 2.0,
                    "has_audio": True,
                    "decoder": "pyav",
                },
                preview=previews[rng.integers(len(previews))],
            )
            parts = [round(float(value), 4) for value in rng.random(4)]
            brightness, black, static, blur = parts
            yield Made(
                sample=sample,
                video_id=video_id,
                clip_index=clip_index,
                start_seconds=SECONDS * clip_index,
                end_seconds=SECONDS * (clip_index + 1),
                quality=Quality(brightness=brightness, black=black, static=static, blur=blur),
            )


def _probe(number: int, num_clips: int, rng: np.random.Generator) -> Probe:
    width, height = SIZES[rng.integers(len(SIZES))]
    uri = f"/videos/batch-{number // 500:03d}/recording {number:05d}.mp4"
    return Probe(
        source=Source(uri=uri),
        video_id=f"v{number * 2654435761 % 2**64:016x}",
        size_bytes=10**6,
        container="mov,mp4",
        codec=CODECS[rng.integers(len(CODECS))],
        width=width,
        height=height,
        average_fps=float(rng.choice([23.976, 25, 29.97, 30, 60])),
        num_packets=100,
        last_seconds=SECONDS * num_clips - 0.04,
        duration_seconds=SECONDS * num_clips,
        has_audio=bool(rng.integers(2)),
    )


def _preview(rng: np.random.Generator) -> bytes:
    # Blobs, whose JPEG is as large as that of real pictures: 7 kB.
    blobs = rng.integers(0, 256, (4, 16, 28, 3), dtype=np.uint8)
    frames = [Image.fromarray(one).resize((114, 64)) for one in blobs]
    return encode_preview(np.stack([np.asarray(frame) for frame in frames]))


if __name__ == "__main__":
    main()
