"""Where a run's clips may come from: memory, or a DataLoader of webdataset in worker processes.

Each stands in for a ClipReader, for samples that are seen whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from torch.utils.data import DataLoader

from benchmarks.timing import cpu_of
from pipeline.cache import FeatureCache
from pipeline.packing import TarWriter
from trainer.config import ViewSpec
from trainer.data.buffers import Buffers
from trainer.data.cache_shape import CacheShape
from trainer.data.clip_reader import CachedClips, ClipReader

NUM_WORKERS = 2


def clip_reader(cache: FeatureCache) -> ClipReader:
    """The product's."""
    return ClipReader(cache, shape=CacheShape.of(cache), view=ViewSpec(), with_audio=False)


class HeldReader:
    """Gives what was read before by these very numbers; each batch has memory of its own."""

    def __init__(self, cache: FeatureCache) -> None:
        self._reader = clip_reader(cache)
        self._held: dict[bytes, CachedClips] = {}
        self.rows: list[int] = []
        """Of the index, in the order in which they were read first."""

    def read(self, rows_CF: Any, frames_CF: Any, *, into: Buffers) -> CachedClips:  # noqa: ARG002
        key = rows_CF.tobytes()
        if key not in self._held:
            self._held[key] = self._reader.read(rows_CF, frames_CF, into=Buffers())
            self.rows += rows_CF[:, 0].tolist()
        return self._held[key]


def write_in_order(cache: FeatureCache, rows: Iterable[int], folder: Path) -> list[str]:
    """A tar for each worker, so that they deal out the samples in exactly this order."""
    keys = cache.index.column("key").to_pylist()
    folder.mkdir(parents=True)
    tars = [folder / f"{number:06d}.tar" for number in range(NUM_WORKERS)]
    dealt = [list(rows)[number::NUM_WORKERS] for number in range(NUM_WORKERS)]
    for tar, mine in zip(tars, dealt, strict=True):
        with TarWriter(tar) as writer:
            for row in mine:
                writer.add(cache[keys[row]])
            writer.finish()
    return [str(tar) for tar in tars]


class WebdatasetReader:
    """Stacks the next samples of webdataset, which workers have decoded; a context manager."""

    def __init__(self, cache: FeatureCache, tars: list[str]) -> None:
        self._names = list(cache.streams)
        dataset = webdataset.WebDataset(tars, shardshuffle=False, empty_check=False).decode()
        members = [*(f"{name}.npy" for name in self._names), "time.npy"]
        self._loader: Any = DataLoader(
            dataset.to_tuple(*members), batch_size=None, num_workers=NUM_WORKERS
        )
        self._samples: Iterator[Any] = iter(())
        self._pids: list[int] = []

    def start(self) -> None:
        """Begin a pass over all samples."""
        self._samples = iter(self._loader)
        self._pids = [worker.pid for worker in self._samples._workers]  # type: ignore[attr-defined]

    def cpu_seconds(self) -> float:
        """Of the workers, since they were started."""
        return cpu_of(self._pids)

    def __enter__(self) -> WebdatasetReader:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._samples._shutdown_workers()  # type: ignore[attr-defined]

    def read(self, rows_CF: Any, frames_CF: Any, *, into: Buffers) -> CachedClips:  # noqa: ARG002
        samples = list(itertools.islice(self._samples, len(rows_CF)))
        *features, times = zip(*samples, strict=True)
        return CachedClips(
            features={
                name: torch.stack(values)
                for name, values in zip(self._names, features, strict=True)
            },
            scales={},
            frame_mask=torch.from_numpy(np.ones(rows_CF.shape, dtype=np.bool_)),
            frame_times=torch.stack(times),
        )
