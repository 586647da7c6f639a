"""Reducing: which clips of an item the language model sees, chosen from their features alone.

Each clip that is kept keeps its text, so its time. With view.frames_per_clip = 1 a clip is a frame
and these are reducers of frames. Shapes: C clips, L tokens of a pack, H width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.model_spec import ReduceSpec

KEPT_BINS = 10
"""Of the histogram of when clips are that were kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a reducer says of C clips."""

    mask_C: Tensor
    """(C,) bool: False is left out."""
    gate_C: Tensor
    """(C,) float32, to multiply the tokens of clips with: 1 for each that is kept, else 0. Where
    the reducer learns, its gradient is the way from the loss to it."""


class Row(NamedTuple):
    """A pack without the clips that were left out: L' tokens."""

    embeds_LH: Tensor
    """(L', H)"""
    position_ids_L: Tensor
    """(L',) int64: from 0 in each item."""
    new_of_old_L: Tensor
    """(L,) int64: where each of the tokens before is now; -1: nowhere."""


class Prune(nn.Module):
    """A learnt scorer: of each item the best share of clips is kept, ties to the earlier.

    The gate is straight-through (arXiv 1308.3432): 1 in value, so that a clip counts in full or not
    at all, in training as later, and in its gradient sigmoid((score - edge) / deviation). The edge
    lies between the worst clip that is kept and the best that is not, the deviation is that of the
    item's scores. So where a clip did harm, the next one rises, and only order counts: without the
    two, scores fall together until no gradient is left, and nothing is learnt.
    """

    def __init__(self, dim: int, *, keep: float) -> None:
        super().__init__()
        self.keep = keep
        hidden = min(dim, 256)
        self.scorer = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, 1)
        )

    def forward(self, pooled_CD: Tensor, clip_item_C: Tensor) -> Kept:
        """Features (C, D) and the item of each clip (C,) int64; an item's clips lie together."""
        dtype = next(self.scorer.parameters()).dtype
        score_C = self.scorer(pooled_CD.to(dtype)).squeeze(-1).float()
        num_clips = [len(list(clips)) for _, clips in groupby(clip_item_C.tolist())]
        gates = [self._gate(score) for score in score_C.split(num_clips)]
        gate_C = torch.cat([score_C[:0], *gates])
        return Kept(mask_C=gate_C > 0, gate_C=gate_C)

    def _gate(self, score: Tensor) -> Tensor:
        """Of one item's clips."""
        limit = num_kept(len(score), share=self.keep)
        order = score.detach().argsort(descending=True, stable=True)
        gate = torch.zeros_like(score).index_fill(0, order[:limit], 1.0)
        if limit == len(score):
            return gate
        edge = score[order[limit - 1 : limit + 1]].mean()
        deviation = (score.var(correction=0) + 1e-6).sqrt()
        soft = ((score - edge) / deviation).sigmoid()
        return gate * (1 + (soft - soft.detach()))


class Similar(nn.Module):
    """Leaves out a clip that resembles one kept before it in its window of an item.

    The rule of LongVU's choice of frames (arXiv 2410.17434), without its budget and its query: the
    windows lie back to back, and the first clip of each is kept. Nothing is learnt.
    """

    def __init__(self, *, threshold: float, window: int) -> None:
        super().__init__()
        self.threshold, self.window = threshold, window

    def forward(self, pooled_CD: Tensor, clip_item_C: Tensor) -> Kept:
        """As `Prune`."""
        # One clip decides on the next: a few numbers each, so not on a GPU.
        unit_CD = functional.normalize(pooled_CD.detach().double().cpu(), dim=-1)
        kept: list[bool] = []
        window: list[int] = []
        place, item = 0, None
        for clip, its_item in enumerate(clip_item_C.tolist()):
            place, item = (place + 1 if its_item == item else 0), its_item
            if place % self.window == 0:
                window = []
            cosines = unit_CD[window] @ unit_CD[clip]
            kept.append(not bool((cosines > self.threshold).any()))
            if kept[-1]:
                window.append(clip)
        mask_C = torch.tensor(kept, dtype=torch.bool, device=pooled_CD.device)
        return Kept(mask_C=mask_C, gate_C=mask_C.float())


def build_reducer(spec: ReduceSpec, *, dim: int) -> nn.Module | None:
    """A module of (pooled_CD, clip_item_C) -> Kept; None where nothing is left out.

    `dim` is D, the channels of the fused features.
    """
    if spec.kind == "prune":
        return Prune(dim, keep=spec.keep)
    if spec.kind == "similar":
        return Similar(threshold=spec.threshold, window=spec.window)
    return None


def num_kept(num_clips: int, *, share: float) -> int:
    """Of so many clips of an item `Prune` keeps these: the share rounded up, at least one."""
    # 0.07 * 100 is a little more than 7.
    return max(math.ceil(share * num_clips - 1e-9), min(num_clips, 1))


def kept_time_histogram(place_C: Tensor, mask_C: Tensor, *, bins: int = KEPT_BINS) -> Tensor:
    """(bins,) int64: clips that are kept, by where in [0, 1] of their video they lie.

    A scorer may learn that the middle is unimportant rather than what is: this shows it.
    """
    bin_C = (place_C[mask_C] * bins).long().clamp(0, bins - 1)
    return torch.bincount(bin_C, minlength=bins)


def drop_clips(
    embeds_LH: Tensor, *, position_ids_L: Tensor, clip_span_C2: Tensor, mask_C: Tensor
) -> Row:
    """A pack without all that belongs to the clips whose mask is False: text, video and sound.

    clip_span_C2: (C, 2) int64, [first, stop) of each clip in L, apart from each other. Items are
    told apart by position ids that start again at 0, and theirs do so again.
    """
    L = len(embeds_LH)
    left_out = clip_span_C2[~mask_C]
    ones = torch.ones_like(left_out[:, 0])
    edges = torch.zeros(L + 1, dtype=torch.int64, device=embeds_LH.device)
    edges = edges.index_add(0, left_out[:, 0], ones).index_add(0, left_out[:, 1], -ones)
    stays_L = edges.cumsum(0)[:L] == 0
    old = stays_L.nonzero().squeeze(-1)
    new_of_old_L = torch.where(stays_L, stays_L.cumsum(0) - 1, -1)
    # Tokens before an item, of those that stay.
    item_L = (position_ids_L == 0).cumsum(0) - 1
    before = torch.zeros_like(edges).index_add(0, item_L[old] + 1, torch.ones_like(old)).cumsum(0)
    position_ids = torch.arange(len(old), device=old.device) - before[item_L[old]]
    return Row(embeds_LH.index_select(0, old), position_ids, new_of_old_L)
