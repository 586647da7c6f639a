"""How fast a batch is read from a cache: beside raw `preadv`, webdataset and worker processes."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.timing import Spent, Timing, measure_in_turn, temporary_folder
from pipeline.cache import FeatureCache, open_cache
from pipeline.layout import CacheLayout
from pipeline.packing import TarWriter
from pipeline.storage import publish_bytes, publish_rows
from schemas.cache_info import CacheInfo
from schemas.recipe import Recipe
from schemas.sample import Sample, decode_npy
from schemas.sidecar import SampleEntry, Sidecar
from schemas.tables import INDEX_SCHEMA, index_rows
from trainer.config import ViewSpec
from trainer.data.buffers import Buffers
from trainer.data.cache_shape import CacheShape
from trainer.data.clip_reader import CachedClips, ClipReader
from trainer.data.read_ahead import read_ahead

RAW, RAW_BATCH = "raw preadv, one sample's buffer", "raw preadv, one batch's buffer"
OURS, AHEAD = "ClipReader", "ClipReader, 2 threads ahead"
SHUFFLED = "ClipReader, samples in any order"
GET = "read(key, buffer)"
WDS_TUPLE, WDS_BYTES = "webdataset, decoded", "webdataset, bytes"
WORKERS = "DataLoader, 2 processes"
NUM_THREADS, DEPTH = 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A cache that is read."""

    name: str
    streams: dict[str, tuple[int, ...]]
    """Of the recipe `apollo`: (T, H, W, D)."""
    dtype: str
    num_samples: int
    clips_per_batch: int
    num_shards: int = 3
    preview_bytes: int = 8000


LARGE = {"internvideo2": (4, 16, 16, 1024), "siglip": (4, 27, 27, 512)}
SMALL = {"internvideo2": (4, 4, 4, 64), "siglip": (4, 4, 4, 64)}
KINDS = (
    Kind(name="5 MB", streams=LARGE, dtype="float16", num_samples=120, clips_per_batch=16),
    Kind(name="5 MB as int8", streams=LARGE, dtype="int8", num_samples=120, clips_per_batch=16),
    Kind(
        name="16 kB",
        streams=SMALL,
        dtype="float16",
        num_samples=4096,
        clips_per_batch=128,
        preview_bytes=0,
    ),
)
TINY_KINDS = (
    Kind(name="16 kB", streams=SMALL, dtype="float16", num_samples=48, clips_per_batch=16),
    Kind(name="16 kB as int8", streams=SMALL, dtype="int8", num_samples=48, clips_per_batch=16),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The better of `ways` reaches `least` of the speed of `floor`, by wall seconds."""

    kind: str
    ways: tuple[str, ...]
    floor: str
    least: float


TARGETS = tuple(
    Target(kind=kind, ways=(OURS, AHEAD), floor=floor, least=least)
    for kind in ("5 MB", "5 MB as int8")
    for floor, least in ((RAW, 0.9), (WDS_BYTES, 6.0), (WDS_TUPLE, 6.0))
)


def measure_reading(
    kinds: tuple[Kind, ...], *, rounds: int, folder: Path | None, is_reliable: Callable[[], bool]
) -> dict[str, Any]:
    """Rows of all ways and kinds, and the targets; every way is checked before it is timed."""
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        with temporary_folder(folder) as place:
            layout = _write_cache(kind, CacheLayout(place / "cache"))
            with open_cache(layout.root) as cache, _ways(kind, cache) as (ways, num_bytes):
                timings = measure_in_turn(ways, rounds=rounds)
        rows += [
            _row(kind, way, timing, floor=timings[RAW], num_bytes=num_bytes)
            for way, timing in timings.items()
        ]
    return {"rows": rows, "targets": _verdicts(rows, is_reliable())}


def show_reading(report: dict[str, Any], *, is_reliable: bool) -> None:
    print(f"{'reading, warm':48}{'GB/s':>12}{'us a sample':>14}{'of raw':>14}")
    print(f"{'':48}{'wall':>6}{'CPU':>6}{'wall':>7}{'CPU':>7}{'wall':>7}{'CPU':>7}")
    for row in report["rows"]:
        ratio = f"{row['wall_ratio']:.2f}" if is_reliable else "-"
        print(
            f"{row['kind'] + ': ' + row['way']:48}"
            f"{row['gigabytes_per_wall_second']:6.2f}{row['gigabytes_per_cpu_second']:6.2f}"
            f"{row['wall_seconds']['median'] / row['num_samples'] * 1e6:7.0f}"
            f"{row['cpu_seconds']['median'] / row['num_samples'] * 1e6:7.0f}"
            f"{ratio:>7}{row['cpu_ratio']:7.2f}"
        )
    for target in report["targets"]:
        ways = " or ".join(target["ways"])
        print(
            f"{target['verdict']}: {target['kind']}: {ways} >= {target['least']:g} x"
            f" {target['floor']}: {target['ratio']:.2f}"
        )


def _row(kind: Kind, way: str, timing: Timing, *, floor: Timing, num_bytes: int) -> dict[str, Any]:
    wall, cpu = statistics.median(timing.wall), statistics.median(timing.cpu)
    return {
        "kind": kind.name,
        "way": way,
        "num_samples": kind.num_samples,
        "num_bytes": num_bytes,
        "wall_seconds": timing.summary("wall"),
        "cpu_seconds": timing.summary("cpu"),
        "gigabytes_per_wall_second": num_bytes / wall / 1e9,
        "gigabytes_per_cpu_second": num_bytes / max(cpu, 1e-9) / 1e9,
        "wall_ratio": statistics.median(floor.wall) / wall,
        "cpu_ratio": statistics.median(floor.cpu) / max(cpu, 1e-9),
        "rounds": asdict(timing),
    }


def _verdicts(rows: list[dict[str, Any]], is_reliable: bool) -> list[dict[str, Any]]:  # noqa: FBT001
    speeds = {(row["kind"], row["way"]): row["gigabytes_per_wall_second"] for row in rows}
    verdicts = []
    for target in TARGETS:
        if (target.kind, target.floor) in speeds:
            best = max(speeds[target.kind, way] for way in target.ways)
            ratio = best / speeds[target.kind, target.floor]
            verdict = ("met" if ratio >= target.least else "missed") if is_reliable else "unknown"
            verdicts.append(asdict(target) | {"ratio": ratio, "verdict": verdict})
    return verdicts


@contextlib.contextmanager
def _ways(kind: Kind, cache: FeatureCache) -> Iterator[tuple[dict[str, Callable[[], Spent]], int]]:
    """(way -> read all samples once, bytes of them)."""
    shape = CacheShape.of(cache)
    extents, N, T = cache.extents, kind.num_samples, shape.frames_per_clip
    shards = [cache.layout.tar(extents.shard_names[code]) for code in extents.shard_codes]
    ranges = list(zip(shards, extents.offsets.tolist(), extents.num_bytes.tolist(), strict=True))
    keys = cache.index.column("key").to_pylist()
    reader = ClipReader(cache, shape=shape, view=ViewSpec(), with_audio=False)
    jobs = np.array_split(np.arange(N), -(-N // kind.clips_per_batch))
    any_order = np.array_split(np.random.default_rng(0).permutation(N), len(jobs))
    buffers = Buffers()
    room = max(sum(extents.num_bytes[job]) for job in jobs)
    memory = torch.empty(int(room), dtype=torch.uint8).fill_(1).numpy().data

    def make(rows: Any, into: Buffers) -> CachedClips:
        rows_CF = np.repeat(rows[:, None], T, axis=1)
        return reader.read(rows_CF, np.broadcast_to(np.arange(T), rows_CF.shape), into=into)

    def read_raw(*, samples_at_once: int) -> None:
        with contextlib.ExitStack() as stack:
            fds = {}
            for path in dict.fromkeys(shards):
                fds[path] = os.open(path, os.O_RDONLY)
                stack.callback(os.close, fds[path])
            position = 0
            for number, (path, offset, size) in enumerate(ranges):
                if number % samples_at_once == 0:
                    position = 0
                os.preadv(fds[path], [memory[position : position + size]], offset)
                position += size

    def read_ours(batches: list[Any]) -> None:
        for rows in batches:
            buffers.clear()
            make(rows, buffers)

    def read_ours_ahead() -> None:
        with read_ahead(jobs, make, num_threads=NUM_THREADS, depth=DEPTH) as results:
            for result in results:
                result.release()

    def read_by_key() -> None:
        for key in keys:
            cache.read(key, buffer=memory)

    def read_webdataset(pipeline: Callable[[], Any]) -> None:
        for _ in pipeline():
            pass

    names = [f"{name}.npy" for name in shape.streams]
    if kind.dtype == "int8":
        names += [f"{name}_scale.npy" for name in shape.streams]
    urls = [str(path) for path in dict.fromkeys(shards)]

    def decoded() -> Iterator[tuple[Any, ...]]:
        dataset = webdataset.WebDataset(urls, shardshuffle=False)
        yield from dataset.decode().to_tuple(*names)

    def undecoded() -> Iterator[tuple[Any, ...]]:
        for sample in webdataset.WebDataset(urls, shardshuffle=False):
            yield tuple(decode_npy(sample[name]) for name in names)

    _check(cache, jobs, lambda rows: make(rows, Buffers()))
    _check(cache, any_order, lambda rows: make(rows, Buffers()))
    for ours in (decoded, undecoded):
        for key, arrays in zip(keys, ours(), strict=True):
            sample = cache[key]
            wanted = [*sample.features.values(), *sample.scales.values()]
            assert all(_same(*pair) for pair in zip(arrays, wanted, strict=True))
    read_ours_ahead()
    with _worker_loader(cache, jobs) as loader:
        for rows, batch in zip(jobs, loader, strict=True):
            for name, tensor in batch.items():
                assert _same(
                    tensor.numpy(), np.stack([cache[keys[r]].features[name] for r in rows])
                )

        def read_by_workers() -> None:
            for _ in loader:
                pass

        plain: dict[str, Callable[[], None]] = {
            RAW: functools.partial(read_raw, samples_at_once=1),
            RAW_BATCH: functools.partial(read_raw, samples_at_once=kind.clips_per_batch),
            OURS: functools.partial(read_ours, jobs),
            AHEAD: read_ours_ahead,
            SHUFFLED: functools.partial(read_ours, any_order),
            GET: read_by_key,
            WDS_BYTES: functools.partial(read_webdataset, undecoded),
            WDS_TUPLE: functools.partial(read_webdataset, decoded),
            WORKERS: read_by_workers,
        }
        pids = [worker.pid for worker in loader._iterator._workers]
        ways = {name: functools.partial(_spend, way, pids) for name, way in plain.items()}
        yield ways, sum(size for *_, size in ranges)


def _spend(way: Callable[[], None], pids: list[int]) -> Spent:
    """CPU seconds are of all threads and of the worker processes."""
    cpu, wall = time.process_time() + _cpu_of(pids), time.perf_counter()
    way()
    return time.process_time() + _cpu_of(pids) - cpu, time.perf_counter() - wall


def _cpu_of(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class _Batches(Dataset[dict[str, Tensor]]):
    """As one would write it first: samples of the cache, stacked."""

    def __init__(self, cache: FeatureCache, jobs: list[Any]) -> None:
        self.cache, self.jobs = cache, jobs
        self.keys = cache.index.column("key").to_pylist()

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        samples = [self.cache[self.keys[row]] for row in self.jobs[number]]
        return {
            name: torch.from_numpy(np.stack([sample.features[name] for sample in samples]))
            for name in self.cache.streams
        }


@contextlib.contextmanager
def _worker_loader(cache: FeatureCache, jobs: list[Any]) -> Iterator[Any]:
    loader: Any = DataLoader(
        _Batches(cache, jobs), batch_size=None, num_workers=2, persistent_workers=True
    )
    try:
        yield loader
    finally:
        loader._iterator._shutdown_workers()


def _check(cache: FeatureCache, jobs: list[Any], read: Callable[[Any], CachedClips]) -> None:
    keys = cache.index.column("key").to_pylist()
    for rows in jobs:
        clips = read(rows)
        for number, row in enumerate(rows):
            sample = cache[keys[row]]
            for name, array in sample.features.items():
                assert _same(clips.features[name][number].numpy(), array)
            for name, array in sample.scales.items():
                assert (clips.scales[name][number].numpy() == array).all()
            assert (clips.frame_times[number].numpy() == sample.times).all()


def _same(one: Any, other: Any) -> bool:
    return one.dtype == other.dtype and bool((one.view(np.uint8) == other.view(np.uint8)).all())


def _write_cache(kind: Kind, layout: CacheLayout) -> CacheLayout:
    """As a run writes it, so far as a reader needs it."""
    layout.shards.mkdir(parents=True)
    overrides = [f"streams.{name}.dtype={kind.dtype}" for name in kind.streams]
    recipe = Recipe.load("apollo", overrides=overrides)
    generator, index = np.random.default_rng(0), []
    for shard, numbers in enumerate(np.array_split(np.arange(kind.num_samples), kind.num_shards)):
        name, entries = f"train-{shard:06d}-00000000", []
        with TarWriter(layout.tar(name)) as writer:
            for number in numbers.tolist():
                sample = _make_sample(kind, number, generator)
                extent = writer.add(sample)
                entries.append(
                    SampleEntry(
                        key=sample.key,
                        video_id="v0",
                        clip_index=number,
                        start_seconds=2.0 * number,
                        end_seconds=2.0 * number + 2,
                        num_frames=4,
                        offset=extent.offset,
                        num_bytes=extent.num_bytes,
                        members=extent.members,
                        truncated=False,
                        corrupt=False,
                    )
                )
            sha256, tar_bytes = writer.finish()
        sidecar = Sidecar(
            name=name,
            index=shard,
            split="train",
            fingerprint="",
            recipe_fingerprint="",
            tar_sha256=sha256,
            tar_bytes=tar_bytes,
            samples=tuple(entries),
            videos=(),
            missing=(),
            rejects=(),
            versions={},
        )
        index += index_rows(sidecar)
    publish_rows(index, INDEX_SCHEMA, layout.index, scratch=layout.scratch)
    info = CacheInfo(
        fingerprint="",
        recipe=recipe.to_mapping(),
        stamps={
            name: {"grid": list(shape[1:3]), "dim": shape[3]}
            for name, shape in kind.streams.items()
        },
        counts={},
        shards=(),
        index_sha256="",
    )
    publish_bytes(info.to_json().encode(), layout.info, scratch=layout.scratch)
    return layout


def _make_sample(kind: Kind, number: int, generator: np.random.Generator) -> Sample:
    features: dict[str, Any] = {}
    for name, shape in kind.streams.items():
        if kind.dtype == "int8":
            features[name] = generator.integers(-127, 128, shape, dtype=np.int8)
        else:
            bits = generator.integers(0, 0x7C00, shape, dtype=np.uint16)  # all finite
            features[name] = bits.view(np.float16)
    is_int8 = kind.dtype == "int8"
    return Sample(
        key=f"v0_{number:06d}",
        features=features,
        scales={
            name: generator.random(shape[3], np.float32)
            for name, shape in kind.streams.items()
            if is_int8
        },
        times=np.arange(8.0).reshape(4, 2) + number,
        mask=np.ones(4, bool),
        info={"video_id": "v0", "clip_index": number, "fps": 2.0},
        preview=generator.bytes(kind.preview_bytes) if kind.preview_bytes else None,
    )
