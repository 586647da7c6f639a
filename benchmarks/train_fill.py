"""How full packs are, beside padding and packing in order; and what planning an epoch costs.

Fill is tokens over the places for tokens. No packing does better than `bound`: as many packs as the
sum of all lengths needs, or as the items need that are longer than half a pack. Batches of items of
like length are hardly padded, but hold very different numbers of tokens, and the largest bounds
memory: `its spread` is that one over the mean.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.encode_steps import spend
from benchmarks.timing import measure_in_turn
from benchmarks.train_lengths import (
    Lengths,
    charades_lengths,
    learning_lengths,
    mixed_lengths,
)
from trainer.data.planning import Items, Pack, plan_epoch

LEAST_FILL = 0.9
OURS, BOUND = "ours", "bound"
IN_ORDER, PADDED, GROUPED = "in order", "padded 4", "like length 4"
SPREAD = "its spread"
WAYS = (OURS, BOUND, IN_ORDER, PADDED, GROUPED, SPREAD)
LEARNING_CAPACITY = 512
"""Of the learning task's own runs."""
BATCH = 4
MEGABATCH = 50 * BATCH
"""Items that are sorted by length together, where batches are of like length."""
SHARD_ITEMS = 500
WINDOW_SHARDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FillScope:
    """How much is measured."""

    num_items: int
    num_videos: int
    """Of the learning task; six or seven items each."""
    capacities: tuple[int, ...]
    planned: tuple[int, ...]
    """Items of the epochs whose planning is timed."""


FULL = FillScope(
    num_items=40_000, num_videos=1500, capacities=(4096, 8192), planned=(100_000, 1_000_000)
)
TINY = FillScope(num_items=2_000, num_videos=20, capacities=(4096,), planned=(1_000, 2_000))


def measure_fill(scope: FillScope, *, rounds: int) -> dict[str, Any]:
    """Rows of all lengths and packs, the targets, and seconds of planning."""
    learning = learning_lengths(scope.num_videos)
    rows = [_row("learning task", learning, LEARNING_CAPACITY)]
    for capacity in scope.capacities:
        generator = np.random.default_rng(0)
        drawn = {
            "learning task": learning,
            "mix of texts and videos": mixed_lengths(
                scope.num_items, capacity=capacity, generator=generator
            ),
            "questions of 30 s videos": charades_lengths(
                scope.num_items, capacity=capacity, generator=generator
            ),
        }
        for name, lengths in drawn.items():
            rows.append(_row(name, lengths, capacity))
    targets = [
        {
            "lengths": row["lengths"],
            "tokens_per_pack": row["tokens_per_pack"],
            "least": LEAST_FILL,
            "fill": row["fill"][OURS],
            "verdict": "met" if row["fill"][OURS] >= LEAST_FILL else "missed",
        }
        for row in rows
    ]
    return {"rows": rows, "targets": targets, "planning": _time_planning(scope, rounds=rounds)}


def show_fill(report: dict[str, Any], *, is_reliable: bool) -> None:
    print(f"{'fill of packs':34}{'items':>8}{'median':>8}" + "".join(f"{way:>15}" for way in WAYS))
    for row in report["rows"]:
        name = f"{row['lengths']}, {row['tokens_per_pack']}"
        fills = "".join(f"{row['fill'][way]:15.3f}" for way in WAYS)
        print(f"{name:34}{row['num_items']:8}{row['quartiles'][1]:8.0f}{fills}")
    for target in report["targets"]:
        print(
            f"{target['verdict']}: {target['lengths']}, {target['tokens_per_pack']}: fill >="
            f" {target['least']:g}: {target['fill']:.3f}"
        )
    for row in report["planning"]:
        wall = f", {row['wall_seconds']['median']:.2f} s" if is_reliable else ""
        print(
            f"planning an epoch of {row['num_items']:,} items:"
            f" {row['cpu_seconds']['median']:.2f} CPU s{wall}"
        )


def _row(name: str, lengths: Lengths, capacity: int) -> dict[str, Any]:
    return {
        "lengths": name,
        "tokens_per_pack": capacity,
        "num_items": len(lengths),
        "quartiles": np.percentile(lengths, [25, 50, 75, 100]).tolist(),
        "fill": _fills(lengths, capacity),
    }


def _fills(lengths: Lengths, capacity: int) -> dict[str, float]:
    packs = _plan(lengths, capacity)
    _check(packs, lengths, capacity)
    total = int(lengths.sum())
    shuffled = np.random.default_rng(1).permutation(lengths)
    grouped = _of_like_length(shuffled)
    least = max(-(-total // capacity), int((lengths > capacity // 2).sum()))
    return {
        OURS: total / (len(packs) * capacity),
        BOUND: total / (least * capacity),
        IN_ORDER: total / (_num_in_order(shuffled, capacity) * capacity),
        PADDED: total / _padded(shuffled),
        GROUPED: total / _padded(grouped),
        SPREAD: BATCH * int(lengths.max()) / (_padded(grouped) / (len(grouped) / BATCH)),
    }


def _plan(lengths: Lengths, capacity: int) -> list[Pack]:
    items = Items(
        lengths=lengths,
        shards=np.arange(len(lengths)) // SHARD_ITEMS,
        weights=np.ones(len(lengths)),
    )
    return plan_epoch(
        items, seed=0, stage=0, epoch=0, tokens_per_pack=capacity, window_shards=WINDOW_SHARDS
    )


def _check(packs: list[Pack], lengths: Lengths, capacity: int) -> None:
    """Every item once, and no pack too long."""
    packed = np.concatenate([pack.items for pack in packs])
    assert (np.sort(packed) == np.arange(len(lengths))).all()
    assert all(lengths[list(pack.items)].sum() <= capacity for pack in packs)


def _num_in_order(lengths: Lengths, capacity: int) -> int:
    """Packs, where the next item that does not fit begins the next one."""
    num_packs, room = 0, 0
    for length in lengths.tolist():
        if length > room:
            num_packs, room = num_packs + 1, capacity
        room -= length
    return num_packs


def _padded(lengths: Lengths) -> int:
    """Places for tokens, where each batch is as long as its longest item."""
    places = 0
    for first in range(0, len(lengths), BATCH):
        batch = lengths[first : first + BATCH]
        places += len(batch) * int(batch.max())
    return places


def _of_like_length(lengths: Lengths) -> Lengths:
    parts = [lengths[i : i + MEGABATCH] for i in range(0, len(lengths), MEGABATCH)]
    return np.concatenate([np.sort(part) for part in parts])


def _time_planning(scope: FillScope, *, rounds: int) -> list[dict[str, Any]]:
    capacity = scope.capacities[0]
    generator = np.random.default_rng(2)
    ways: dict[str, Callable[[], Any]] = {}
    for num_items in scope.planned:
        lengths = mixed_lengths(num_items, capacity=capacity, generator=generator)
        plan = functools.partial(_plan, lengths, capacity)
        ways[str(num_items)] = functools.partial(spend, plan)
    timings = measure_in_turn(ways, rounds=rounds)
    return [
        {
            "num_items": num_items,
            "cpu_seconds": timings[str(num_items)].summary("cpu"),
            "wall_seconds": timings[str(num_items)].summary("wall"),
            "rounds": asdict(timings[str(num_items)]),
        }
        for num_items in scope.planned
    ]
