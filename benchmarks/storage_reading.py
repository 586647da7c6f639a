"""How fast stored features become floating point in the slots of a batch that is used again."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.encode_steps import spend
from benchmarks.timing import measure_in_turn
from encoders.devices import prepare_cpu
from schemas.compact import Stored, decode_features, store_features

GRIDS = ((8, 8), (27, 27))
FRAMES, DIM = 4, 1152


def measure_reading(*, num_clips: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each grid, way of storing and kind of batch; speed by the median of CPU seconds.

    Gigabytes are those that the values take as float16, whatever they are stored as.
    """
    prepare_cpu(1)
    rows = []
    for grid in GRIDS:
        for dtype in ("float16", "int8"):
            stored = _stored(grid, dtype, num_clips=num_clips)
            ways = _ways(stored)
            timings = measure_in_turn(
                {way: functools.partial(spend, work) for way, work in ways.items()}, rounds=rounds
            )
            size = 2 * sum(one.values.size for one in stored) / 1e9
            rows += [
                {
                    "stored": dtype,
                    "grid": "x".join(map(str, grid)),
                    "way": way,
                    "gigabytes": size / statistics.median(timing.cpu),
                }
                for way, timing in timings.items()
            ]
    return rows


def _stored(grid: tuple[int, int], dtype: str, *, num_clips: int) -> list[Stored]:
    generator = np.random.default_rng(0)
    shape = (FRAMES, *grid, DIM)
    return [
        store_features(generator.standard_normal(shape, np.float32), grid=(), dtype=dtype)
        for _ in range(num_clips)
    ]


def _ways(stored: list[Stored]) -> dict[str, Callable[[], None]]:
    shape = (len(stored), *stored[0].values.shape)

    def ours(batch: np.ndarray[Any, Any]) -> None:
        for slot, one in zip(batch, stored, strict=True):
            decode_features(one.values, one.scale, out=slot)

    def by_torch(batch: torch.Tensor) -> None:
        for slot, one in zip(batch, stored, strict=True):
            values = torch.from_numpy(one.values)
            if one.scale is None:
                slot.copy_(values)
            else:
                torch.mul(values, torch.from_numpy(one.scale), out=slot)

    ways: dict[str, Callable[[], None]] = {}
    for name in ("float32", "float16"):
        batch = np.empty(shape, dtype=name)
        ways[f"decode_features into {name}"] = functools.partial(ours, batch)
    for name in ("float16", "bfloat16"):
        slots = torch.empty(shape, dtype=getattr(torch, name))
        ways[f"torch into {name}"] = functools.partial(by_torch, slots)
    return ways
