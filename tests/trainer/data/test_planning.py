"""Plans: every item as often as its weight says, no pack too long, the same for everybody."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.planning import EMPTY, Items, PackStream, of_rank, plan_epoch

OPTIONS = {"seed": 3, "stage": 0, "window_shards": 2}


@st.composite
def some_items(draw: st.DrawFn, *, whole_weights: bool = False) -> Items:
    count = draw(st.integers(1, 60))
    weight = st.integers(1, 3) if whole_weights else st.floats(0.05, 3.0)
    lists = [
        draw(st.lists(values, min_size=count, max_size=count))
        for values in (st.integers(1, 100), st.integers(-1, 6), weight)
    ]
    return Items(
        lengths=np.array(lists[0]),
        shards=np.array(lists[1]),
        weights=np.array(lists[2], dtype=np.float64),
    )


@given(some_items(whole_weights=True), st.integers(0, 2**31), st.integers(100, 300))
def test_every_item_as_often_as_its_weight_says(items, seed, capacity):
    packs = plan_epoch(
        items, seed=seed, stage=1, epoch=2, tokens_per_pack=capacity, window_shards=2
    )
    counts = Counter(item for pack in packs for item in pack.items)
    assert counts == dict(enumerate(items.weights.astype(int).tolist()))
    assert all(pack.items and items.lengths[list(pack.items)].sum() <= capacity for pack in packs)
    assert all(pack.epoch == 2 for pack in packs)


@given(some_items(), st.integers(0, 100))
def test_parts_of_weights_are_drawn(items, seed):
    packs = plan_epoch(items, **OPTIONS | {"seed": seed}, epoch=0, tokens_per_pack=100)
    counts = Counter(item for pack in packs for item in pack.items)
    for item, weight in enumerate(items.weights):
        assert np.floor(weight) <= counts[item] <= np.ceil(weight)
    assert abs(counts.total() - items.weights.sum()) < 1 + 1e-6


def test_parts_of_weights_are_fair():
    weights = np.array([0.25, 0.5, 1.5])
    items = Items(lengths=np.ones(3, dtype=np.int64), shards=np.zeros(3, np.int64), weights=weights)
    counts = np.zeros(3)
    for epoch in range(2000):
        for pack in plan_epoch(items, **OPTIONS, epoch=epoch, tokens_per_pack=4):
            counts += np.bincount(pack.items, minlength=3)
    assert counts / 2000 == pytest.approx(weights, abs=0.05)


@given(some_items(), st.integers(0, 5))
def test_the_same_again_and_another_in_another_epoch(items, epoch):
    one, again = (plan_epoch(items, **OPTIONS, epoch=epoch, tokens_per_pack=150) for _ in range(2))
    assert one == again


def realistic(count: int) -> Items:
    """Clips of 80 tokens, 1 to 60 of them, and a question; a tenth is text; 400 a shard."""
    chance = np.random.default_rng(0)
    clips = np.minimum(60, chance.lognormal(2.0, 1.0, count).astype(int) + 1)
    shards = np.arange(count) // 400
    is_text = chance.random(count) < 0.1
    lengths = np.where(is_text, 0, clips * 80) + chance.integers(20, 200, count)
    return Items(lengths=lengths, shards=np.where(is_text, -1, shards), weights=np.ones(count))


def test_packs_are_full_also_over_windows():
    items = realistic(10_000)
    packs = plan_epoch(items, seed=0, stage=0, epoch=0, tokens_per_pack=8192, window_shards=8)
    fill = items.lengths.sum() / (8192 * len(packs))
    assert fill >= 0.95, fill
    # In order and one by one, as a loader without a plan would.
    plain, room = 1, 8192
    for length in items.lengths:
        if length > room:
            plain, room = plain + 1, 8192
        room -= length
    assert len(packs) < 0.92 * plain


def test_items_are_shuffled_among_windows_of_shards():
    items = realistic(4_000)
    packs = plan_epoch(items, seed=0, stage=0, epoch=0, tokens_per_pack=8192, window_shards=2)
    tenth = [item for pack in packs[: len(packs) // 10] for item in pack.items]
    shards = set(items.shards[tenth].tolist()) - {-1}
    assert len(shards) <= 2  # of ten: few files are open at a time
    assert tenth != sorted(tenth)


def stream(items: Items, *, packs: int = 4, epochs: int = 0) -> PackStream:
    return PackStream(
        items, **OPTIONS, tokens_per_pack=150, packs_per_step=packs, num_epochs=epochs
    )


@settings(max_examples=30)
@given(some_items(), st.integers(1, 8), st.data())
def test_steps_do_not_depend_on_the_way_to_them(items, packs, data):
    whole = [stream(items, packs=packs).step(number) for number in range(12)]
    wanted = data.draw(st.lists(st.integers(0, 11), max_size=6))
    other = stream(items, packs=packs)
    assert [other.step(number) for number in wanted] == [whole[number] for number in wanted]


@given(some_items(whole_weights=True), st.sampled_from([1, 2, 3, 6]))
def test_epochs_follow_each_other_and_ranks_share_them(items, world):
    one = stream(items, packs=6, epochs=3)
    steps = [one.step(number) for number in range(one.num_steps())]
    assert all(len(step) == 6 for step in steps)
    planned = [pack for epoch in range(3) for pack in one.epoch(epoch)]
    flat = [pack for step in steps for pack in step]
    assert flat[: len(planned)] == planned
    assert all(pack == EMPTY for pack in flat[len(planned) :])
    assert len(flat) - len(planned) < 6
    for step in steps:
        shares = [of_rank(step, rank=rank, world=world) for rank in range(world)]
        assert {len(share) for share in shares} == {6 // world}
        assert [shares[i % world][i // world] for i in range(6)] == step


def test_an_item_that_no_pack_holds_is_a_bug():
    items = Items(lengths=np.array([5]), shards=np.array([0]), weights=np.ones(1))
    with pytest.raises(ValueError, match="at most 4"):
        plan_epoch(items, **OPTIONS, epoch=0, tokens_per_pack=4)
