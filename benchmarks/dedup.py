"""`pipeline dedup` of many clips: seconds, memory, how many planted copies it finds.

    python -m benchmarks.dedup [--sizes 5000,20000,100000] [--folder FOLDER] [--threads 1]

The cache is written by hand: videos of scenes that drift, a twentieth of them copies of another,
cut, blurred and shifted by half a step of sampling, and some that hardly change. Bare faiss is the
same search with an index of all frames in place of key frames, without aligning; `all` compares
every frame with every other. Both are measured up to `MOST_CLIPS`. Each row is a process of
its own. Prints a table and writes bench-results/dedup.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.handmade import Made, finalize, publish_shard
from benchmarks.search import peak_kilobytes
from benchmarks.timing import LoadWatch, clip_folder, write_report
from pipeline import candidates, deduplicating
from pipeline.cache import open_cache
from pipeline.encoding import stamp_streams
from pipeline.frame_sequences import FrameSequences, read_sequences
from pipeline.layout import CacheLayout
from pipeline.packing import encode_preview
from pipeline.probing import write_probes
from pipeline.vector_index import VectorIndex, load_faiss
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.video import Probe, Source, sample_key

RESULTS = Path("bench-results") / "dedup.json"
RECIPE = Recipe.load("demo", overrides=["streams.image.grid=[1,1]"])
FPS, FRAMES = 2.0, 4
PER_SHARD = 200
COPIES, STILLS = 0.05, 0.02
"""Shares of videos."""
LEAST_RECALL, MOST_TIMES_BARE = 0.99, 1.10
MOST_CLIPS = {"ours": 10**9, "bare faiss": 20_000, "all": 5_000}
"""Ways, and of how many clips at most; more take too long."""


def main() -> int:
    """Exit code 1: fewer copies are found, or more time is taken, than is promised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="5000,20000,100000", help="clips")
    parser.add_argument("--threads", type=int, default=1, help="of faiss and numpy")
    parser.add_argument("--folder", type=Path, help="where caches are kept")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        way, folder = options.measure
        print(json.dumps(measure(way, Path(folder))))
        return 0
    watch, rows = LoadWatch(), []
    with clip_folder(options.folder) as folder:
        for num_clips in (int(one) for one in options.sizes.split(",")):
            cache = folder / f"{num_clips}"
            if not (cache / "cache.json").exists():
                write_cache(CacheLayout(cache), num_clips=num_clips)
            for way in (way for way, most in MOST_CLIPS.items() if num_clips <= most):
                rows.append(in_own_process(way, cache, threads=options.threads))
                watch.look()
                show(rows[-1], first=len(rows) == 1)
    print(f"load {watch.load:.1f} on {watch.num_cores} cores, faiss {load_faiss().__version__}")
    write_report({"rows": rows, "load": watch.load, "cores": watch.num_cores}, options.json)
    return 0 if is_kept(rows) else 1


def is_kept(rows: list[dict[str, Any]]) -> bool:
    """Whether all of ours find what is promised, in no more time than bare faiss."""
    ours = [row for row in rows if row["way"] == "ours"]
    bare = {row["clips"]: row["search_cpu"] for row in rows if row["way"] == "bare faiss"}
    return all(
        row["recall"] >= LEAST_RECALL
        and row["search_cpu"] <= MOST_TIMES_BARE * bare.get(row["clips"], np.inf)
        for row in ours
    )


def in_own_process(way: str, cache: Path, *, threads: int) -> dict[str, Any]:
    """What `measure` says there."""
    command = [sys.executable, "-m", "benchmarks.dedup", "--measure", way, str(cache)]
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = os.environ | {name: str(threads) for name in names}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def measure(way: str, folder: Path) -> dict[str, Any]:
    """One row; CPU seconds of this process."""
    wanted = {tuple(pair) for pair in json.loads((folder / "planted.json").read_text())}
    with open_cache(folder) as cache:
        row: dict[str, Any] = {"way": way, "clips": len(cache), "videos": len(cache.videos)}
        before, spent = peak_kilobytes(reset=True), time.process_time()
        if way == "bare faiss":
            frames = read_sequences(cache, stream="image")
            row |= {"frames": len(frames.times), "read_cpu": time.process_time() - spent}
            frames, spent = frames.centred(set(frames.video_ids)), time.process_time()
            search_all_frames(frames)
            return row | {"search_cpu": time.process_time() - spent}

        def find(frames: FrameSequences, *, least_score: float, **_: Any) -> list[tuple[int, int]]:
            row.setdefault("read_cpu", time.process_time() - spent)
            row["frames"], begun = len(frames.times), time.process_time()
            pairs = list(candidates.find_candidates(frames, least_score=least_score))
            row["candidates"], row["search_cpu"] = len(pairs), time.process_time() - begun
            if way == "ours":
                row["key_frames"] = len(candidates.find_key_frames(frames))
            return pairs

        flat = np.inf if way == "all" else 0
        with (
            mock.patch.object(candidates, "FLAT_BELOW", flat),
            mock.patch.object(deduplicating, "find_candidates", find),
        ):
            found = deduplicating.find_duplicates(cache, stream="image")
        row["total_cpu"] = time.process_time() - spent
        row["peak_megabytes"] = (peak_kilobytes() - before) / 1000
    told = {(pair.video_a, pair.video_b) for pair in found.pairs}
    row |= {"planted": len(wanted), "recall": len(told & wanted) / len(wanted)}
    return row | {"made_up": len(told - wanted)}


def search_all_frames(frames: FrameSequences) -> None:
    """What bare faiss would do: the nearest of every frame among all frames."""
    numbers = np.arange(len(frames.times))
    index: VectorIndex = candidates.build_index(frames, numbers)
    for begin in range(0, len(numbers), candidates.FRAMES_AT_ONCE):
        part = frames.vectors(numbers[begin : begin + candidates.FRAMES_AT_ONCE])
        index.search(part, num=candidates.NUM_NEAREST)


def show(row: dict[str, Any], *, first: bool) -> None:
    if first:
        print(
            f"{'clips':>8} {'videos':>7} {'frames':>8} {'keys':>8} {'way':10} {'read':>7}"
            f" {'search':>7} {'total':>7} {'pairs':>7} {'peak MB':>8} {'recall':>7} made up"
            "   (CPU seconds)"
        )
    said = f"{row['clips']:8,} {row['videos']:7,} {row['frames']:8,} {row.get('key_frames', 0):8,}"
    said += f" {row['way']:10} {row['read_cpu']:7.1f} {row['search_cpu']:7.1f}"
    if "recall" in row:
        said += f" {row['total_cpu']:7.1f} {row['candidates']:7,} {row['peak_megabytes']:8.0f}"
        said += f" {row['recall']:7.4f} {row['made_up']}"
    print(said, flush=True)


def write_cache(layout: CacheLayout, *, num_clips: int) -> None:
    """A cache as a run leaves it, and planted.json: pairs of a copy and what it is of."""
    rng = np.random.default_rng(0)
    layout.shards.mkdir(parents=True)
    dim = stamp_streams(RECIPE)["image"]["dim"]
    topics = rng.normal(size=(max(8, num_clips // 500), dim)).astype(np.float32)
    sidecars, probes, planted, done = [], [], [], 0
    while done < num_clips:
        videos: dict[str, Video] = {}
        originals: list[str] = []
        while len(videos) < PER_SHARD and done < num_clips:
            name = f"v{len(probes):07d}"
            if originals and rng.random() < COPIES:
                of = originals.pop(0)
                videos[name] = videos[of].copy(rng)
                planted.append(sorted((of, name)))
            else:
                is_still = rng.random() < STILLS
                videos[name] = Video.invent(rng, topics, is_still=is_still)
                if not is_still:  # of which no copy can be told
                    originals.append(name)
            done += len(videos[name].scenes) // FRAMES
            probes.append(
                Probe(source=Source(uri=f"/{name}.mp4"), video_id=name, width=640, height=360)
            )
        sidecars.append(publish_shard(layout, len(sidecars), _clips(videos)))
    write_probes(probes, layout)
    finalize(layout, RECIPE, probes=probes, sidecars=sidecars)
    (layout.root / "planted.json").write_text(json.dumps(planted))  # type: ignore[union-attr]


class Video:
    """Features and pictures of frames; a still one has one scene, others a new one now and then."""

    def __init__(
        self,
        features: npt.NDArray[np.float32],
        scenes: npt.NDArray[np.uint8],
        *,
        blur: int = 1,
    ) -> None:
        self.features = features
        """(T, D)."""
        self.scenes = scenes
        """(T, 16, 28) grey."""
        self.blur = blur

    @classmethod
    def invent(
        cls, rng: np.random.Generator, topics: npt.NDArray[np.float32], *, is_still: bool
    ) -> Video:
        num = FRAMES * (2 + int(rng.gamma(1.5, 6)))
        dim = topics.shape[1]
        own = topics[rng.integers(len(topics))] + rng.normal(size=dim)
        features = np.empty((num, dim), np.float32)
        scenes = np.empty((num, 16, 28), np.uint8)
        for frame in range(num):
            if frame == 0 or (not is_still and rng.random() < 0.12):
                scene = own + rng.normal(size=dim)
                wide = rng.integers(0, 256, size=(16, 200), dtype=np.uint8)
                pan = 0 if is_still else int(rng.integers(1, 4))
                start = frame
            features[frame] = scene + (0.02 if is_still else 0.4) * rng.normal(size=dim)
            left = pan * (frame - start) % 172
            scenes[frame] = wide[:, left : left + 28]
        return cls(features, scenes)

    def copy(self, rng: np.random.Generator) -> Video:
        """A part of it, seen half a step later, through a worse encoder."""
        num = len(self.features) // FRAMES
        keep = max(2, round(num * rng.uniform(0.6, 1)))
        first = FRAMES * int(rng.integers(0, num - keep + 1))
        own = slice(first, first + FRAMES * keep)
        later = np.concatenate([self.features[1:], self.features[-1:]])
        between = (self.features + later)[own] / 2
        worse = between + 0.5 * rng.normal(size=between.shape)
        return Video(worse.astype(np.float32), self.scenes[own], blur=4)

    def preview(self, clip: int) -> bytes:
        """The strip of a clip."""
        frames = []
        for scene in self.scenes[FRAMES * clip : FRAMES * (clip + 1)]:
            picture = Image.fromarray(scene)
            if self.blur > 1:
                picture = picture.resize((28 * 2 // self.blur, 16 * 2 // self.blur))
            frames.append(np.asarray(picture.resize((114, 64)).convert("RGB")))
        return encode_preview(np.stack(frames))


def _clips(videos: dict[str, Video]) -> Iterator[Made]:
    seconds = FRAMES / FPS
    for video_id, video in videos.items():
        for clip in range(len(video.features) // FRAMES):
            starts = seconds * clip + np.arange(FRAMES) / FPS
            own = slice(FRAMES * clip, FRAMES * (clip + 1))
            sample = Sample(
                key=sample_key(video_id, clip),
                features={"image": video.features[own, None, None].astype(np.float16)},
                times=np.stack([starts, starts + 1 / FPS], axis=1),
                mask=np.ones(FRAMES, dtype=bool),
                info={"video_id": video_id, "clip_index": clip},
                preview=video.preview(clip),
            )
            yield Made(
                sample=sample,
                video_id=video_id,
                clip_index=clip,
                start_seconds=seconds * clip,
                end_seconds=seconds * (clip + 1),
            )


if __name__ == "__main__":
    sys.exit(main())
