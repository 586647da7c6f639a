"""Ways of reading all samples of a cache once, batch by batch; each gives the same values."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import webdataset
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.timing import Spent, cpu_of
from benchmarks.train_cache import Kind
from pipeline.cache import FeatureCache
from schemas.sample import decode_npy
from trainer.config import ViewSpec
from trainer.data.buffers import Buffers
from trainer.data.cache_shape import CacheShape
from trainer.data.clip_reader import CachedClips, ClipReader
from trainer.data.read_ahead import ReadAhead, read_ahead

RAW, RAW_SAMPLE = "raw preadv, one batch's buffer", "raw preadv, one sample's buffer"
"""The latter stays in the processor's caches, where no batch does."""
OURS, AHEAD = "ClipReader", "ClipReader, 2 threads ahead"
SHUFFLED = "ClipReader, samples in any order"
GET = "read(key, buffer)"
WDS_TUPLE, WDS_BYTES = "webdataset, decoded", "webdataset, bytes"
WORKERS = "DataLoader, 2 processes"
NUM_THREADS, DEPTH = 2, 3
EPOCHS_AHEAD = 3
"""That threads which are at work already are timed over."""


@contextlib.contextmanager
def ways_of_reading(
    kind: Kind, cache: FeatureCache
) -> Iterator[tuple[dict[str, Callable[[], Spent]], int]]:
    """(way -> read all samples, bytes of them); every way was checked."""
    jobs = np.array_split(np.arange(kind.num_samples), -(-kind.num_samples // kind.clips_per_batch))
    any_order = np.array_split(np.random.default_rng(0).permutation(kind.num_samples), len(jobs))
    make, buffers = _maker(cache), Buffers()
    size = int(max(sum(cache.extents.num_bytes[job]) for job in jobs))
    # Aligned and on huge pages like ours: a shift by 16 bytes alone costs a quarter.
    memory = Buffers().take((size,), dtype=torch.uint8).numpy().data
    keys = _keys(cache)
    decoded, undecoded = _webdatasets(kind, cache)

    def read_ours(batches: list[Any]) -> None:
        for rows in batches:
            buffers.clear()
            make(rows, buffers)

    def read_by_key() -> None:
        for key in keys:
            cache.read(key, buffer=memory)

    def exhaust(iterate: Callable[[], Any]) -> None:
        for _ in iterate():
            pass

    _check(cache, [*jobs, *any_order], lambda rows: make(rows, Buffers()))
    for peer in (decoded, undecoded):
        _check_peer(cache, peer())
    with contextlib.ExitStack() as stack:
        loader = stack.enter_context(_workers(cache, jobs))
        for rows, batch in zip(jobs, loader, strict=True):
            _check_batch(cache, rows, batch)
        pids = [worker.pid for worker in loader._iterator._workers]
        raw = functools.partial(_read_raw, cache, memory)
        ways: dict[str, Callable[[], None]] = {
            RAW: functools.partial(raw, samples_at_once=len(jobs[0])),
            RAW_SAMPLE: functools.partial(raw, samples_at_once=1),
            OURS: functools.partial(read_ours, jobs),
            SHUFFLED: functools.partial(read_ours, any_order),
            GET: read_by_key,
            WDS_BYTES: functools.partial(exhaust, undecoded),
            WDS_TUPLE: functools.partial(exhaust, decoded),
            WORKERS: functools.partial(exhaust, lambda: loader),
        }
        spending = {name: functools.partial(_spend, way, pids) for name, way in ways.items()}
        spending[AHEAD] = functools.partial(_spend_ahead, jobs, make)
        yield spending, int(cache.extents.num_bytes.sum())


def _maker(cache: FeatureCache) -> Callable[[Any, Buffers], CachedClips]:
    shape = CacheShape.of(cache)
    reader = ClipReader(cache, shape=shape, view=ViewSpec(), with_audio=False)

    def make(rows: Any, into: Buffers) -> CachedClips:
        rows_CF = np.repeat(rows[:, None], shape.frames_per_clip, axis=1)
        frames_CF = np.broadcast_to(np.arange(shape.frames_per_clip), rows_CF.shape)
        return reader.read(rows_CF, frames_CF, into=into)

    return make


def _read_raw(cache: FeatureCache, memory: memoryview, *, samples_at_once: int) -> None:
    extents = cache.extents
    with contextlib.ExitStack() as stack:
        fds = []
        for name in extents.shard_names:
            fds.append(os.open(cache.layout.tar(name), os.O_RDONLY))
            stack.callback(os.close, fds[-1])
        samples = zip(
            extents.shard_codes.tolist(),
            extents.offsets.tolist(),
            extents.num_bytes.tolist(),
            strict=True,
        )
        for number, (code, offset, size) in enumerate(samples):
            if number % samples_at_once == 0:
                position = 0
            os.preadv(fds[code], [memory[position : position + size]], offset)
            position += size


def _webdatasets(
    kind: Kind, cache: FeatureCache
) -> tuple[Callable[[], Iterator[Any]], Callable[[], Iterator[Any]]]:
    """Arrays of features and scales of each sample: (its own decoder, ours)."""
    names = [f"{name}.npy" for name in cache.streams]
    if kind.dtype == "int8":
        names += [f"{name}_scale.npy" for name in cache.streams]
    urls = [str(cache.layout.tar(name)) for name in cache.extents.shard_names]

    def decoded() -> Iterator[Any]:
        dataset = webdataset.WebDataset(urls, shardshuffle=False)
        yield from dataset.decode().to_tuple(*names)

    def undecoded() -> Iterator[Any]:
        for sample in webdataset.WebDataset(urls, shardshuffle=False):
            yield tuple(decode_npy(sample[name]) for name in names)

    return decoded, undecoded


def _spend(way: Callable[[], None], pids: list[int]) -> Spent:
    """CPU seconds are of all threads and of the worker processes."""
    cpu, wall = time.process_time() + cpu_of(pids), time.perf_counter()
    way()
    return time.process_time() + cpu_of(pids) - cpu, time.perf_counter() - wall


def _spend_ahead(jobs: list[Any], make: Callable[[Any, Buffers], CachedClips]) -> Spent:
    """The mean of epochs in the middle: as much is ready when the clock starts as when it stops."""

    def take_epoch(results: ReadAhead[CachedClips]) -> None:
        for result in itertools.islice(results, len(jobs)):
            result.release()

    with read_ahead(itertools.cycle(jobs), make, num_threads=NUM_THREADS, depth=DEPTH) as results:
        for _ in range(2):
            take_epoch(results)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(EPOCHS_AHEAD):
            take_epoch(results)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu / EPOCHS_AHEAD, wall / EPOCHS_AHEAD


class _Batches(Dataset[dict[str, Tensor]]):
    """As one would write it first: samples of the cache, stacked."""

    def __init__(self, cache: FeatureCache, jobs: list[Any]) -> None:
        self.cache, self.jobs, self.keys = cache, jobs, _keys(cache)

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        samples = [self.cache[self.keys[row]] for row in self.jobs[number]]
        return {
            name: torch.from_numpy(np.stack([sample.features[name] for sample in samples]))
            for name in self.cache.streams
        }


@contextlib.contextmanager
def _workers(cache: FeatureCache, jobs: list[Any]) -> Iterator[Any]:
    loader: Any = DataLoader(
        _Batches(cache, jobs), batch_size=None, num_workers=2, persistent_workers=True
    )
    try:
        yield loader
    finally:
        loader._iterator._shutdown_workers()


def _keys(cache: FeatureCache) -> list[str]:
    keys: list[str] = cache.index.column("key").to_pylist()
    return keys


def _check(cache: FeatureCache, jobs: list[Any], read: Callable[[Any], CachedClips]) -> None:
    keys = _keys(cache)
    for rows in jobs:
        clips = read(rows)
        _check_batch(cache, rows, clips.features)
        for number, row in enumerate(rows):
            sample = cache[keys[row]]
            for name, array in sample.scales.items():
                assert (clips.scales[name][number].numpy() == array).all()
            assert (clips.frame_times[number].numpy() == sample.times).all()


def _check_batch(cache: FeatureCache, rows: Any, batch: dict[str, Tensor]) -> None:
    keys = _keys(cache)
    for number, row in enumerate(rows):
        for name, array in cache[keys[row]].features.items():
            assert _same(batch[name][number].numpy(), array)


def _check_peer(cache: FeatureCache, found: Iterator[Any]) -> None:
    for key, arrays in zip(_keys(cache), found, strict=True):
        sample = cache[key]
        wanted = [*sample.features.values(), *sample.scales.values()]
        assert all(_same(*pair) for pair in zip(arrays, wanted, strict=True))


def _same(one: Any, other: Any) -> bool:
    return one.dtype == other.dtype and bool((one.view(np.uint8) == other.view(np.uint8)).all())
