"""Plan: which items make up which pack and which pack comes when; a function of seed and numbers.

    packs of an epoch = plan_epoch(lengths, shards, ...)
    step b of a stage = packs[b * G : (b + 1) * G] of its epochs joined; rank r takes r, r + world

No rank, worker or buffer has a part in it, so the data's state is the step alone: any number of
ranks sees the same global batches, and a run goes on in the middle of an epoch at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CHUNK_ITEMS = 512
"""Items that are packed together, first fit decreasing."""
CARRY_FILL = 0.9
"""Packs that are less full are opened again and their items packed with the next chunk."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Items of one row, in its order."""

    items: tuple[int, ...]
    epoch: int


EMPTY = Pack(items=(), epoch=0)
"""Fills up the last step of a stage that counts in epochs; weighs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """What a plan needs to know of N items."""

    lengths: Indices
    """(N,) tokens, each at most a pack's."""
    shards: Indices
    """(N,) number of the shard that the item's first clip lies in; -1: it has none."""
    weights: npt.NDArray[np.float64]
    """(N,) how often it comes in an epoch."""


def plan_epoch(
    items: Items, *, seed: int, stage: int, epoch: int, tokens_per_pack: int, window_shards: int
) -> list[Pack]:
    """The packs of one epoch of a stage; every item in as many as its weight says.

    Shards are shuffled, items within windows of shards; chunks of them are packed first fit
    decreasing, and a window's packs are shuffled.
    """
    chance = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, stage, epoch])))
    drawn = _draw(items.weights, chance)
    packs: list[Pack] = []
    carried: list[int] = []
    windows = _windows(items.shards, drawn, window_shards, chance)
    for number, window in enumerate(windows):
        made: list[list[int]] = []
        for first in range(0, len(window), CHUNK_ITEMS):
            chunk = carried + window[first : first + CHUNK_ITEMS].tolist()
            carried = []
            is_last = number == len(windows) - 1 and first + CHUNK_ITEMS >= len(window)
            for group, num_tokens in _pack(chunk, items.lengths, tokens_per_pack):
                if is_last or num_tokens >= CARRY_FILL * tokens_per_pack:
                    made.append(group)
                else:
                    carried += group
        order = np.argsort(chance.random(len(made)), kind="stable")
        packs += [Pack(items=tuple(made[i]), epoch=epoch) for i in order]
    return packs


def _draw(weights: npt.NDArray[np.float64], chance: np.random.Generator) -> Indices:
    # Whole parts of a weight are copies. Of what is left, as many items as it adds up to, so that
    # all epochs are about as long.
    whole = np.floor(weights).astype(np.int64)
    numbers = np.repeat(np.arange(len(weights)), whole)
    rest = weights - whole
    extra = np.zeros(0, dtype=np.int64)
    if rest.any():
        # Systematic sampling over a shuffled list: each item with probability `rest`.
        order = np.argsort(chance.random(len(weights)), kind="stable")
        steps = np.floor(np.concatenate([[0.0], np.cumsum(rest[order])]) + chance.random())
        extra = order[np.diff(steps) > 0]
    return np.sort(np.concatenate([numbers, extra]))


def _windows(
    shards: Indices, drawn: Indices, window_shards: int, chance: np.random.Generator
) -> list[Indices]:
    # Items without a shard (text only) are dealt to all windows, as one more shard each.
    of_drawn = shards[drawn]
    names = np.unique(of_drawn[of_drawn >= 0])
    names = names[np.argsort(chance.random(len(names)), kind="stable")]
    num_windows = max(1, -(-len(names) // window_shards))
    window_of = np.zeros(int(names.max()) + 1 if len(names) else 1, dtype=np.int64)
    window_of[names] = np.arange(len(names)) // window_shards
    loose = np.argsort(chance.random(len(drawn)), kind="stable") % num_windows
    window = np.where(of_drawn >= 0, window_of[np.maximum(of_drawn, 0)], loose)
    order = np.lexsort((chance.random(len(drawn)), window))
    bounds = np.searchsorted(window[order], np.arange(1, num_windows))
    return [drawn[part] for part in np.split(order, bounds) if len(part)]


def _pack(chunk: list[int], lengths: Indices, capacity: int) -> list[tuple[list[int], int]]:
    # Best fit decreasing by bisection; as full as first fit, in n log n.
    rooms: list[tuple[int, int]] = []
    groups: list[list[int]] = []
    for item in sorted(chunk, key=lambda item: -int(lengths[item])):
        length = int(lengths[item])
        if length > capacity:
            raise ValueError(f"item {item}: {length = } must be at most {capacity}")
        place = bisect.bisect_left(rooms, (length, -1))
        if place < len(rooms):
            room, group = rooms.pop(place)
        else:
            room, group = capacity, len(groups)
            groups.append([])
        groups[group].append(item)
        bisect.insort(rooms, (room - length, group))
    used = {group: capacity - room for room, group in rooms}
    return [(group, used[number]) for number, group in enumerate(groups)]


class PackStream:
    """The packs of a stage, epoch after epoch without a break, by step."""

    def __init__(
        self,
        items: Items,
        *,
        seed: int,
        stage: int,
        tokens_per_pack: int,
        window_shards: int,
        packs_per_step: int,
        num_epochs: int = 0,
    ) -> None:
        """`num_epochs` 0: as many as are asked for."""
        self._items = items
        self._options = {
            "seed": seed,
            "stage": stage,
            "tokens_per_pack": tokens_per_pack,
            "window_shards": window_shards,
        }
        self.packs_per_step = packs_per_step
        self._num_epochs = num_epochs
        self._packs: list[Pack] = []
        self._first_pack = 0
        self._epoch = 0
        """Of the next one to plan."""
        self._planned: tuple[int, list[Pack]] = (-1, [])
        """The epoch that was asked for last: a run counts its steps, says so, and then begins."""

    def step(self, number: int) -> list[Pack]:
        """The packs of one step, over all ranks; EMPTY ones fill up the last step.

        Steps may be asked for in any order; going back plans from the beginning again.
        """
        first = number * self.packs_per_step
        if first < self._first_pack:
            self._packs, self._first_pack, self._epoch = [], 0, 0
        while first + self.packs_per_step > self._first_pack + len(self._packs):
            if self._num_epochs and self._epoch == self._num_epochs:
                break
            passed = min(max(0, first - self._first_pack), len(self._packs))
            self._packs = self._packs[passed:] + self.epoch(self._epoch)
            self._first_pack += passed
            self._epoch += 1
        start = first - self._first_pack
        packs = self._packs[start : start + self.packs_per_step]
        return packs + [EMPTY] * (self.packs_per_step - len(packs))

    def num_steps(self) -> int:
        """Steps of all epochs together; the last one may not be full."""
        num_packs = sum(len(self.epoch(epoch)) for epoch in range(self._num_epochs))
        return -(-num_packs // self.packs_per_step)

    def epoch(self, epoch: int) -> list[Pack]:
        """The packs of one epoch; not to be changed."""
        number, packs = self._planned
        if number != epoch:
            packs = plan_epoch(self._items, epoch=epoch, **self._options)
            self._planned = (epoch, packs)
        return packs


def of_rank(packs: Sequence[Pack], *, rank: int, world: int) -> list[Pack]:
    """The packs of a step that one rank works on: every world-th, as many as every other's."""
    if len(packs) % world:
        raise ValueError(f"{len(packs)} packs cannot be dealt to {world} ranks")
    return list(packs[rank::world])
