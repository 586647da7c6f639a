"""Which clips a reducer keeps, and what is left of a pack when the others are gone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.model.reducing import build_reducer, drop_clips, kept_time_histogram, num_kept
from trainer.model_spec import ReduceSpec

counts = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def items(num_clips: list[int]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(num_clips)), torch.tensor(num_clips))


def prune(keep: float, *, dim: int = 4):
    torch.manual_seed(0)
    return build_reducer(ReduceSpec(kind="prune", keep=keep), dim=dim)


def similar(threshold: float, *, window: int = 16):
    spec = ReduceSpec(kind="similar", threshold=threshold, window=window)
    return build_reducer(spec, dim=4)


@given(counts, st.floats(0.01, 1), st.integers(0, 99))
def test_of_each_item_the_best_share_is_kept_and_it_is_known_ahead(num_clips, keep, seed):
    item_C = items(num_clips)
    draw = torch.Generator().manual_seed(seed)
    pooled_CD = torch.randn(len(item_C), 4, generator=draw)
    reducer = prune(keep)
    kept = reducer(pooled_CD, item_C)
    scores = reducer.scorer(pooled_CD).squeeze(-1)
    for item, count in enumerate(num_clips):
        mine = item_C == item
        mask, score = kept.mask_C[mine], scores[mine]
        wanted = num_kept(count, share=keep)
        assert mask.sum() == wanted == max(1, math.ceil(keep * count - 1e-9))
        if wanted < count:
            assert score[mask].min() >= score[~mask].max()
    assert torch.equal(kept.gate_C, kept.mask_C.float())


def test_shares_are_not_a_victim_of_rounding():
    assert 0.07 * 100 > 7
    assert num_kept(100, share=0.07) == 7
    assert num_kept(1, share=0.07) == 1
    assert num_kept(0, share=0.07) == 0


def test_without_a_kind_there_is_no_reducer():
    assert build_reducer(ReduceSpec(), dim=4) is None


def test_of_equal_scores_the_earlier_is_kept():
    kept = prune(0.5)(torch.ones(7, 4), torch.tensor([0, 0, 0, 0, 1, 1, 1]))
    assert kept.mask_C.tolist() == [True, True, False, False, True, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gate_is_one_and_leads_the_loss_to_the_scorer(dtype):
    reducer = prune(0.5).to(dtype)
    pooled_CD = torch.randn(6, 4)
    tokens = torch.randn(6, 3, 5)
    kept = reducer(pooled_CD, torch.zeros(6, dtype=torch.int64))
    gated = kept.gate_C[:, None, None] * tokens
    assert torch.equal(gated[kept.mask_C], tokens[kept.mask_C])
    gated[kept.mask_C].sum().backward()
    for name, parameter in reducer.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or name.endswith("0.bias"), name


def test_a_scorer_learns_to_keep_what_the_task_needs_and_its_histogram_says_when():
    """Eight clips an item; two of its last half tell the answer, which is the mean of both."""
    torch.manual_seed(0)
    N = 8
    draw = torch.Generator().manual_seed(1)
    reducer = prune(0.25, dim=8)
    optimiser = torch.optim.Adam(reducer.parameters(), lr=1e-2)
    place_C = ((torch.arange(8) + 0.5) / 8).repeat(N)

    def make():
        useful = torch.zeros(N, 8, dtype=torch.bool)
        first = torch.randint(4, 7, (N,), generator=draw)
        useful[torch.arange(N), first] = useful[torch.arange(N), first + 1] = True
        values = torch.randn(N, 8, 4, generator=draw)
        looks = torch.randn(N, 8, 4, generator=draw)
        looks[..., 0] += 3.0 * useful
        answers = (values * useful[..., None]).sum(1) / 2
        return torch.cat([looks, values], dim=-1).flatten(0, 1), values, useful.flatten(), answers

    item_C = torch.arange(N).repeat_interleave(8)
    found = []
    for _ in range(150):
        pooled_CD, values, useful_C, answers = make()
        kept = reducer(pooled_CD, item_C)
        predicted = (kept.gate_C.view(N, 8, 1) * values).sum(1) / 2
        loss = (predicted - answers).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append((kept.mask_C & useful_C).sum().item() / useful_C.sum().item())
    assert sum(found[:5]) / 5 < 0.5
    assert sum(found[-20:]) / 20 > 0.75
    histogram = kept_time_histogram(place_C, kept.mask_C, bins=8)
    assert histogram.sum() == kept.mask_C.sum() == 2 * N
    assert histogram[4:].sum() > 0.75 * 2 * N


def greedily(pooled_CD, num_clips, *, threshold, window):
    """The rule in words: a clip stays if it is like none that stayed before it in its window."""
    kept, start = [], 0
    for count in num_clips:
        for i in range(count):
            begin = i - i % window
            before = [start + j for j in range(begin, i) if kept[start + j]]
            cosines = [
                torch.cosine_similarity(
                    pooled_CD[start + i].double(), pooled_CD[j].double(), dim=0
                ).item()
                for j in before
            ]
            kept.append(all(cosine <= threshold for cosine in cosines))
        start += count
    return kept


@given(counts, st.floats(-0.9, 0.9), st.integers(2, 9), st.integers(0, 99))
def test_clips_that_resemble_one_kept_before_are_left_out(num_clips, threshold, window, seed):
    item_C = items(num_clips)
    pooled_CD = torch.randn(len(item_C), 4, generator=torch.Generator().manual_seed(seed))
    kept = similar(threshold, window=window)(pooled_CD, item_C)
    assert kept.mask_C.tolist() == greedily(
        pooled_CD, num_clips, threshold=threshold, window=window
    )
    assert torch.equal(kept.gate_C, kept.mask_C.float())
    firsts = [sum(num_clips[:i]) for i in range(len(num_clips))]
    assert kept.mask_C[firsts].all()


def test_a_still_video_keeps_the_first_clip_of_each_window():
    kept = similar(0.83, window=4)(torch.ones(10, 4), torch.tensor([0] * 7 + [1] * 3))
    assert kept.mask_C.nonzero().squeeze(-1).tolist() == [0, 4, 7]
    assert not list(similar(0.5).parameters())


def test_a_clip_without_frames_resembles_nothing():
    pooled_CD = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.1]])
    assert similar(0.8)(pooled_CD, torch.zeros(3)).mask_C.tolist() == [True, True, False]


@pytest.mark.parametrize("reducer", [prune(0.5), similar(0.5)])
def test_there_may_be_no_clip(reducer):
    kept = reducer(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert kept.mask_C.shape == kept.gate_C.shape == (0,)
    assert kept.mask_C.dtype == torch.bool


def test_the_histogram_counts_what_is_kept_by_its_time():
    place_C = torch.tensor([0.0, 0.05, 0.55, 0.99, 1.0])
    mask_C = torch.tensor([True, False, True, True, True])
    assert kept_time_histogram(place_C, mask_C).tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 2]
    assert kept_time_histogram(place_C[:0], mask_C[:0], bins=3).tolist() == [0, 0, 0]


@st.composite
def packs(draw):
    """Items as lists of (clip or None, length): the text and the clips of which each is made."""
    made, clip = [], 0
    for _ in range(draw(st.integers(1, 4))):
        pieces = []
        for is_clip in draw(st.lists(st.booleans(), min_size=1, max_size=6)):
            pieces.append((clip if is_clip else None, draw(st.integers(1, 4))))
            clip += is_clip
        made.append(pieces)
    mask = draw(st.lists(st.booleans(), min_size=clip, max_size=clip))
    return made, mask


@given(packs())
def test_what_stays_is_as_if_the_others_had_never_been_there(pack):
    pack, mask = pack
    position_ids, spans, stays, wanted_ids = [], [], [], []
    for pieces in pack:
        place, new_place = 0, 0
        for clip, length in pieces:
            if clip is not None:
                spans.append([len(position_ids), len(position_ids) + length])
            kept = clip is None or mask[clip]
            for _ in range(length):
                position_ids.append(place)
                stays.append(kept)
                place += 1
                if kept:
                    wanted_ids.append(new_place)
                    new_place += 1
    embeds_LH = torch.arange(2.0 * len(position_ids)).view(-1, 2)
    row = drop_clips(
        embeds_LH,
        position_ids_L=torch.tensor(position_ids),
        clip_span_C2=torch.tensor(spans, dtype=torch.int64).view(-1, 2),
        mask_C=torch.tensor(mask, dtype=torch.bool),
    )
    stays_L = torch.tensor(stays)
    assert torch.equal(row.embeds_LH, embeds_LH[stays_L])
    assert row.position_ids_L.tolist() == wanted_ids
    assert (row.new_of_old_L[~stays_L] == -1).all()
    assert torch.equal(row.embeds_LH[row.new_of_old_L[stays_L]], embeds_LH[stays_L])
    if all(mask):
        assert row.position_ids_L.tolist() == position_ids
        assert row.new_of_old_L.tolist() == list(range(len(position_ids)))


def test_gradients_of_what_stays_pass_and_others_have_none():
    embeds_LH = torch.randn(5, 2, requires_grad=True)
    row = drop_clips(
        embeds_LH,
        position_ids_L=torch.arange(5),
        clip_span_C2=torch.tensor([[0, 2], [2, 4]]),
        mask_C=torch.tensor([False, True]),
    )
    row.embeds_LH.sum().backward()
    assert embeds_LH.grad.tolist() == [[0.0, 0.0]] * 2 + [[1.0, 1.0]] * 3
    assert row.position_ids_L.tolist() == [0, 1, 2]
