"""A million sources planned and a hundred thousand shards finalized, on one core: seconds, memory.

    python -m benchmarks.scale [--quick] [--folder FOLDER]

The rows are synthetic; the code is that of a run. Each step is a process of its own, so that its
memory is its own. Prints a table and writes bench-results/scale.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.timing import temporary_folder, write_report
from pipeline.layout import CacheLayout
from schemas.recipe import Recipe
from schemas.sidecar import SampleEntry, Sidecar, VideoOutcome
from schemas.video import Probe, Source

RESULTS = Path("bench-results") / "scale.json"
NUM_SOURCES, QUICK_SOURCES = 1_000_000, 20_000
NUM_SHARDS, QUICK_SHARDS = 100_000, 2_000
CLIPS_A_SHARD = 10
FINGERPRINT = "f" * 64
MEMBERS = ("image.npy", "json", "mask.npy", "preview.jpg", "time.npy", "video.npy")


def probes(count: int) -> Iterator[Probe]:
    """Videos of 10 s to five minutes."""
    for number in range(count):
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        duration = 10.0 + number * 7919 % 2900 / 10
        yield Probe(
            source=Source(uri=f"s3://bucket/videos/{number % 1000:03d}/{digest[:20]}.mp4"),
            video_id=f"v{digest[:16]}",
            content_sha256=digest,
            size_bytes=number,
            mtime_ns=number,
            container="mov,mp4,m4a,3gp,3g2,mj2",
            codec="h264",
            width=1280,
            height=720,
            average_fps=30.0,
            num_packets=int(duration * 30),
            last_seconds=duration - 1 / 30,
            duration_seconds=duration,
            has_audio=True,
        )


def prepare_plan(layout: CacheLayout, count: int) -> None:
    from pipeline.probing import write_probes

    write_probes(probes(count), layout)


def plan(layout: CacheLayout, count: int) -> int:
    """What a run does between probing and building: how many shards."""
    from pipeline.encoding import stream_specs
    from pipeline.planning import estimate_clip_bytes, extend_plan, write_plan
    from pipeline.probing import read_probes

    recipe = Recipe.load("apollo")
    stamps = {name: spec.stamp() for name, spec in stream_specs(recipe).items()}
    specs = extend_plan(
        read_probes(layout),
        recipe=recipe,
        recipe_fingerprint=FINGERPRINT,
        clip_bytes=estimate_clip_bytes(recipe, stamps),
        existing=[],
    )
    write_plan(specs, layout, recipe=recipe, stamps={name: {} for name in recipe.streams})
    assert sum(len({p.video_id for p in spec.pieces}) for spec in specs) >= count
    return len(specs)


def prepare_finalize(layout: CacheLayout, count: int) -> None:
    layout.shards.mkdir(parents=True)
    for spec in _specs(count):
        video_id = spec.pieces[0].video_id
        samples = tuple(_entry(video_id, clip) for clip in range(CLIPS_A_SHARD))
        sidecar = Sidecar(
            name=spec.name,
            index=spec.index,
            split=spec.split,
            fingerprint=spec.fingerprint,
            recipe_fingerprint=spec.recipe_fingerprint,
            tar_sha256=FINGERPRINT,
            tar_bytes=1,
            samples=samples,
            videos=(
                VideoOutcome(
                    video_id=video_id,
                    num_clips=CLIPS_A_SHARD,
                    num_frames_decoded=1,
                    num_decode_errors=0,
                    truncated=False,
                    corrupt=False,
                    order="selected",
                    why="",
                ),
            ),
            missing=(),
            rejects=(),
            versions={},
        )
        layout.sidecar(spec.name).write_text(sidecar.to_json())
        layout.tar(spec.name).write_bytes(b"0")
        layout.tar_index(spec.name).write_bytes(bytes(8 * (CLIPS_A_SHARD + 1)))


def finalize(layout: CacheLayout, count: int) -> int:
    """What a run does after building: how many samples."""
    from pipeline.encoding import stamp_streams
    from pipeline.finalizing import account_for, finalize_cache, read_sidecars

    specs = _specs(count)
    recipe = Recipe.load("tiny")
    sources = [Source(uri=spec.pieces[0].uri) for spec in specs]
    found = [
        Probe(source=source, video_id=spec.pieces[0].video_id)
        for source, spec in zip(sources, specs, strict=True)
    ]
    sidecars = read_sidecars(specs, layout)
    finalize_cache(
        layout,
        recipe=recipe,
        stamps=stamp_streams(recipe),
        account=account_for(found, sidecars),
        sources=sources,
        sidecars=sidecars,
        max_reject_rate=1.0,
    )
    return sum(len(sidecar.samples) for sidecar in sidecars)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--quick", action="store_true", help="a fiftieth of it")
    parser.add_argument("--folder", type=Path, help="where the files lie; some GB")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step:
        _step(*options.step)
        return
    counts = {
        "plan": QUICK_SOURCES if options.quick else NUM_SOURCES,
        "finalize": QUICK_SHARDS if options.quick else NUM_SHARDS,
    }
    report: dict[str, Any] = {}
    print(f"{'step':10}{'rows':>12}{'gives':>12}{'CPU s':>8}{'wall s':>8}{'peak MB':>9}")
    with temporary_folder(options.folder) as folder:
        for step, count in counts.items():
            for part in (f"prepare_{step}", step):
                command = [sys.executable, "-m", "benchmarks.scale", "--step", part]
                told = subprocess.run(
                    [*command, str(folder / step), str(count)],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
            one = report[step] = json.loads(told)
            print(
                f"{step:10}{count:>12,}{one['gives']:>12,}{one['cpu_seconds']:>8.1f}"
                f"{one['wall_seconds']:>8.1f}{one['peak_mb']:>9.0f}"
            )
    write_report(report, RESULTS)


def _step(name: str, folder: str, count: str) -> None:
    layout = CacheLayout(Path(folder))
    began = time.monotonic()
    gives = globals()[name](layout, int(count))
    spent = resource.getrusage(resource.RUSAGE_SELF)
    document = {
        "rows": int(count),
        "gives": gives,
        "cpu_seconds": spent.ru_utime + spent.ru_stime,
        "wall_seconds": time.monotonic() - began,
        "peak_mb": spent.ru_maxrss / 1000,
    }
    print(json.dumps(document))


def _specs(count: int) -> list[Any]:
    from pipeline.encoding import stamp_streams
    from schemas.plan import Piece, ShardSpec

    recipe = Recipe.load("tiny")
    fingerprint = recipe.fingerprint(stamp_streams(recipe))
    return [
        ShardSpec(
            index=number,
            split="train",
            recipe_fingerprint=fingerprint,
            pieces=(
                Piece(
                    uri=f"/videos/{number}.mp4",
                    video_id=f"v{number:016x}",
                    content_sha256=f"{number:064x}",
                    size_bytes=1,
                    mtime_ns=1,
                    start_seconds=None,
                    end_seconds=None,
                    duration_seconds=20.0,
                    truncated=False,
                    has_audio=True,
                    first_clip=0,
                    num_clips=CLIPS_A_SHARD,
                    is_last=True,
                    estimated_bytes=1,
                ),
            ),
        )
        for number in range(count)
    ]


def _entry(video_id: str, clip: int) -> SampleEntry:
    return SampleEntry(
        key=f"{video_id}_{clip:06d}",
        video_id=video_id,
        clip_index=clip,
        start_seconds=2.0 * clip,
        end_seconds=2.0 * clip + 2,
        num_frames=4,
        offset=8192 * clip,
        num_bytes=8192,
        members=dict.fromkeys(MEMBERS, (8192 * clip + 512, 100)),
        truncated=False,
        corrupt=False,
    )


if __name__ == "__main__":
    main()
