"""Writing and reading shards, beside the raw system calls and webdataset.

    python -m benchmarks.shards [--folder FOLDER] [--rounds 11]

Everything runs in one process, in rounds: each way once a round, in shuffled order; the first
round is dropped. Arrays and bytes are compared before anything is timed. Prints a table and
writes bench-results/shards.json.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import webdataset

from benchmarks.handmade import Made, publish_shard
from benchmarks.timing import (
    LoadWatch,
    Spent,
    Timing,
    measure_in_turn,
    temporary_folder,
    write_report,
)
from pipeline.cache import FeatureCache, open_cache
from pipeline.layout import CacheLayout
from pipeline.packing import TarWriter
from pipeline.storage import publish_bytes, publish_rows
from schemas.cache_info import CacheInfo
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.tables import INDEX_SCHEMA, index_rows

NUM_SAMPLES = 20
READ_PASSES = 4
SHAPES = {"image": (4, 16, 16, 1152), "video": (4, 16, 16, 1408)}
SHARD = "train-000000-00000000"
RESULTS = Path("bench-results") / "shards.json"

RAW_WRITE, RAW_HASHED = "raw write", "raw write, then sha256"
OUR_WRITE, OUR_UNHASHED = "TarWriter", "TarWriter without sha256"
WDS_WRITE = "webdataset.TarWriter"
RAW_READ, OUR_READ, OUR_GET = "raw preadv, reused buffer", "read(key, buffer)", "cache[key]"
WDS_READ, WDS_BYTES = "webdataset, decoded", "webdataset, bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`way` reaches `least` of the speed of `floor`, by wall and by CPU seconds."""

    way: str
    floor: str
    least: float
    by: str
    """`wall` or `cpu`."""


TARGETS = (
    Target(way=OUR_WRITE, floor=RAW_WRITE, least=0.75, by="wall"),
    Target(way=OUR_UNHASHED, floor=RAW_WRITE, least=0.75, by="wall"),
    # The digest is part of the format, so its CPU seconds are part of the floor.
    Target(way=OUR_WRITE, floor=RAW_HASHED, least=0.75, by="cpu"),
    Target(way=OUR_READ, floor=RAW_READ, least=0.8, by="wall"),
    Target(way=OUR_READ, floor=RAW_READ, least=0.8, by="cpu"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=11, help="the first is dropped")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2")
    watch = LoadWatch()
    samples = make_samples()
    with temporary_folder(options.folder) as folder:
        layout = write_cache(samples, CacheLayout(folder / "cache"))
        num_bytes = layout.tar(SHARD).stat().st_size
        target = folder / "written.tar"
        ways = write_ways(samples, layout, target)
        writes = time_in_turn(
            ways, rounds=options.rounds, before=lambda: target.unlink(missing_ok=True)
        )
        target.unlink()
        with open_cache(layout.root) as cache:
            ways = read_ways(samples, cache)
            reads = time_in_turn(ways, rounds=options.rounds, repeats=READ_PASSES)
    report = make_report(writes, reads, num_bytes=num_bytes, watch=watch)
    show(report)
    write_report(report, options.json)


def make_samples() -> list[Sample]:
    """Samples of 5.2 MB, each with its own arrays."""
    generator = np.random.default_rng(0)
    return [
        Sample(
            key=f"v0_{number:06d}",
            features={
                name: generator.standard_normal(shape, np.float32).astype(np.float16)
                for name, shape in SHAPES.items()
            },
            times=np.arange(8.0).reshape(4, 2) + number,
            mask=np.ones(4, bool),
            info={
                "video_id": "v0",
                "clip_index": number,
                "fps": 2.0,
                "start_seconds": 2.0 * number,
            },
            preview=generator.bytes(8000),
        )
        for number in range(NUM_SAMPLES)
    ]


def write_cache(samples: Sequence[Sample], layout: CacheLayout) -> CacheLayout:
    """A cache of one shard, as a run writes it, so far as a reader needs it."""
    layout.shards.mkdir(parents=True)
    made = (
        Made(
            sample=sample,
            video_id="v0",
            clip_index=number,
            start_seconds=2.0 * number,
            end_seconds=2.0 * number + 2,
        )
        for number, sample in enumerate(samples)
    )
    sidecar = publish_shard(layout, 0, made)
    publish_rows(index_rows(sidecar), INDEX_SCHEMA, layout.index, scratch=layout.scratch)
    info = CacheInfo(
        fingerprint="",
        recipe=Recipe.load("tiny").to_mapping(),
        stamps={name: {"grid": shape[1:3], "dim": shape[3]} for name, shape in SHAPES.items()},
        counts={},
        shards=(),
        index_sha256="",
    )
    publish_bytes(info.to_json().encode(), layout.info, scratch=layout.scratch)
    return layout


def write_ways(
    samples: Sequence[Sample], layout: CacheLayout, path: Path
) -> dict[str, Callable[[], None]]:
    """Name -> write all samples to a new file and flush it to the disk; each is checked here."""
    tar = layout.tar(SHARD).read_bytes()

    def write_raw() -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        rest = memoryview(tar)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
        os.close(fd)

    def write_and_hash() -> None:
        write_raw()
        hashlib.sha256(tar).hexdigest()

    def write_ours() -> None:
        with TarWriter(path) as writer:
            for sample in samples:
                writer.add(sample)
            writer.finish()

    def write_ours_unhashed() -> None:
        with mock.patch.object(TarWriter, "_hash", lambda *_: None):
            write_ours()

    def write_webdataset() -> None:
        with path.open("wb") as file:
            with webdataset.TarWriter(file, mtime=0) as writer:
                for sample in samples:
                    writer.write(to_webdataset(sample))
            file.flush()
            os.fsync(file.fileno())

    ways: dict[str, Callable[[], None]] = {
        RAW_WRITE: write_raw,
        RAW_HASHED: write_and_hash,
        OUR_WRITE: write_ours,
        OUR_UNHASHED: write_ours_unhashed,
        WDS_WRITE: write_webdataset,
    }
    for name, write in ways.items():
        path.unlink(missing_ok=True)
        write()
        if name == WDS_WRITE:
            check_same(samples, (from_webdataset(row) for row in decoded(path)))
        else:
            assert path.read_bytes() == tar, name
    return ways


def read_ways(samples: Sequence[Sample], cache: FeatureCache) -> dict[str, Callable[[], None]]:
    """Name -> read all samples, in the order of the tar, from a warm page cache; checked here."""
    keys = [sample.key for sample in samples]
    ranges = [(row.offset, row.num_bytes) for row in map(cache.row, keys)]
    path = cache.layout.tar(SHARD)
    buffer = bytearray(max(size for _, size in ranges))  # the same: one may lie on huge pages

    def read_raw() -> None:
        fd = os.open(path, os.O_RDONLY)
        view = memoryview(buffer)
        for offset, size in ranges:
            os.preadv(fd, [view[:size]], offset)
        os.close(fd)

    def read_ours() -> None:
        for key in keys:
            cache.read(key, buffer=buffer)

    def get_ours() -> None:
        for key in keys:
            cache[key]

    def read_webdataset() -> None:
        for _ in decoded(path):
            pass

    def read_webdataset_bytes() -> None:
        for _ in undecoded(path):
            pass

    check_same(samples, (cache[key] for key in keys))
    check_same(samples, (cache.read(key, buffer=buffer) for key in keys))
    check_same(samples, (from_webdataset(row) for row in decoded(path)))
    tar = path.read_bytes()
    with path.open("rb") as file:
        for offset, size in ranges:
            os.preadv(file.fileno(), [memoryview(buffer)[:size]], offset)
            assert buffer[:size] == tar[offset : offset + size]
    return {
        RAW_READ: read_raw,
        OUR_READ: read_ours,
        OUR_GET: get_ours,
        WDS_BYTES: read_webdataset_bytes,
        WDS_READ: read_webdataset,
    }


def undecoded(path: Path) -> Any:
    return webdataset.WebDataset(str(path), shardshuffle=False)


def decoded(path: Path) -> Any:
    return undecoded(path).decode()


def to_webdataset(sample: Sample) -> dict[str, Any]:
    arrays = {f"{name}.npy": array for name, array in sample.features.items()}
    return {
        "__key__": sample.key,
        **arrays,
        "json": sample.info,
        "mask.npy": sample.mask,
        "preview.jpg": sample.preview,
        "time.npy": sample.times,
    }


def from_webdataset(row: dict[str, Any]) -> Sample:
    return Sample(
        key=row["__key__"],
        features={name: row[f"{name}.npy"] for name in SHAPES},
        times=row["time.npy"],
        mask=row["mask.npy"],
        info=row["json"],
        preview=row["preview.jpg"],
    )


def check_same(samples: Sequence[Sample], found: Iterator[Sample]) -> None:
    for expected, sample in zip(samples, found, strict=True):
        assert (sample.key, sample.info) == (expected.key, expected.info)
        assert sample.preview == expected.preview
        for name, array in expected.features.items():
            np.testing.assert_array_equal(sample.features[name], array, strict=True)
        np.testing.assert_array_equal(sample.times, expected.times, strict=True)
        np.testing.assert_array_equal(sample.mask, expected.mask, strict=True)


def time_in_turn(
    ways: dict[str, Callable[[], None]],
    *,
    rounds: int,
    repeats: int = 1,
    before: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Seconds of each way in each round but the first; CPU seconds are of all threads.

    A round does each way `repeats` times and takes the mean; `before` each it does what is not
    timed.
    """

    def spend(way: Callable[[], None]) -> Spent:
        before()
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(repeats):
            way()
        return (time.process_time() - cpu) / repeats, (time.perf_counter() - wall) / repeats

    return measure_in_turn(
        {name: functools.partial(spend, way) for name, way in ways.items()}, rounds=rounds
    )


def make_report(
    writes: dict[str, Timing], reads: dict[str, Timing], *, num_bytes: int, watch: LoadWatch
) -> dict[str, Any]:
    reliable = watch.look()
    timings = writes | reads
    medians = {
        by: {name: statistics.median(getattr(timing, by)) for name, timing in timings.items()}
        for by in ("wall", "cpu")
    }
    rows = [
        {
            "group": group,
            "way": name,
            "floor": next(iter(ways)),
            "wall_seconds": timing.summary("wall"),
            "cpu_seconds": timing.summary("cpu"),
            "gigabytes_per_wall_second": num_bytes / medians["wall"][name] / 1e9,
            "wall_ratio": medians["wall"][next(iter(ways))] / medians["wall"][name],
            "cpu_ratio": medians["cpu"][next(iter(ways))] / medians["cpu"][name],
            "rounds": asdict(timing),
        }
        for group, ways in (("write", writes), ("read", reads))
        for name, timing in ways.items()
    ]
    targets = []
    for target in TARGETS:
        ratio = medians[target.by][target.floor] / medians[target.by][target.way]
        verdict = "met" if ratio >= target.least else "missed"
        if target.by == "wall" and not reliable:
            verdict = "unknown"
        targets.append(asdict(target) | {"ratio": ratio, "verdict": verdict})
    return {
        "name": "shards",
        "num_samples": NUM_SAMPLES,
        "sample_bytes": num_bytes // NUM_SAMPLES,
        "num_rounds": len(next(iter(writes.values())).wall),
        "num_cores": watch.num_cores,
        "load_average": watch.load,
        "wall_ratios_reliable": reliable,
        "python": platform.python_version(),
        "webdataset": webdataset.__version__,
        "rows": rows,
        "targets": targets,
    }


def show(report: dict[str, Any]) -> None:
    size, load = report["sample_bytes"] / 1e6, report["load_average"]
    print(
        f"{report['num_samples']} samples of {size:.2f} MB, {report['num_rounds']} rounds;"
        f" {report['num_cores']} cores, load {load:.2f}"
    )
    print(f"{'':32}{'wall ms':>16}{'CPU ms':>16}{'GB/s':>8}{'of raw:':>9}")
    print(f"{'':32}{'median':>8}{'min':>8}{'median':>8}{'min':>8}{'wall':>8}{'wall':>9}{'CPU':>6}")
    for row in report["rows"]:
        wall, cpu = row["wall_seconds"], row["cpu_seconds"]
        wall_ratio = f"{row['wall_ratio']:.2f}" if report["wall_ratios_reliable"] else "-"
        print(
            f"{row['group'] + ': ' + row['way']:32}"
            f"{wall['median'] * 1e3:8.1f}{wall['minimum'] * 1e3:8.1f}"
            f"{cpu['median'] * 1e3:8.1f}{cpu['minimum'] * 1e3:8.1f}"
            f"{row['gigabytes_per_wall_second']:8.2f}{wall_ratio:>9}{row['cpu_ratio']:6.2f}"
        )
    for target in report["targets"]:
        print(
            f"{target['verdict']}: {target['way']} >= {target['least']} x {target['floor']}"
            f" by {target['by']}: {target['ratio']:.2f}"
        )
    if not report["wall_ratios_reliable"]:
        print("More load than cores: no ratio of wall seconds can be relied on.")


if __name__ == "__main__":
    main()
