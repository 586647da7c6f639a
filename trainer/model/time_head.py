"""TimeHead: start and end of a span as numbers, from a hidden state of the language model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPS = 1e-6
"""Of a video's duration: spans below are points."""


class TimeHead(nn.Module):
    """(R, H) -> (R, 2) float32: 0 <= start <= end <= 1, over the duration of what is seen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 2)
        )

    def forward(self, hidden_RH: Tensor) -> Tensor:
        """Of two outputs a, b: start = sigmoid(a), end = start + (1 - start) sigmoid(b)."""
        dtype = next(self.layers.parameters()).dtype
        start, share = self.layers(hidden_RH.to(dtype)).float().sigmoid().unbind(-1)
        return torch.stack([start, start + (1 - start) * share], dim=-1)


def time_loss(predicted_R2: Tensor, target_R2: Tensor) -> Tensor:
    """(R,) float32: |start - start*| + |end - end*| + 1 - generalised IoU, in [0, 4].

    The losses of Moment-DETR (arXiv 2107.09609), here of start and end and with equal weights.
    """
    predicted_R2, target_R2 = predicted_R2.float(), target_R2.float()
    return (predicted_R2 - target_R2).abs().sum(-1) + 1 - generalised_iou(predicted_R2, target_R2)


def iou(one_R2: Tensor, other_R2: Tensor) -> Tensor:
    """(R,) in [0, 1]: length of the overlap over that of the union; 0 where the union is empty."""
    overlap, union, _ = _lengths(one_R2, other_R2)
    return overlap / union.clamp(min=EPS)


def generalised_iou(one_R2: Tensor, other_R2: Tensor) -> Tensor:
    """(R,) in [-1, 1]: IoU less the share of the hull that is in neither.

    arXiv 1902.09630 with lengths instead of areas. Spans that do not meet have a gradient too.
    """
    overlap, union, hull = _lengths(one_R2, other_R2)
    return overlap / union.clamp(min=EPS) - (hull - union) / hull.clamp(min=EPS)


def _lengths(one_R2: Tensor, other_R2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of overlap, union and hull."""
    (start, end), (other_start, other_end) = one_R2.unbind(-1), other_R2.unbind(-1)
    overlap = (torch.minimum(end, other_end) - torch.maximum(start, other_start)).clamp(min=0)
    union = (end - start) + (other_end - other_start) - overlap
    hull = torch.maximum(end, other_end) - torch.minimum(start, other_start)
    return overlap, union, hull
