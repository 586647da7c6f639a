"""Pooling: the two weaker resamplers that Apollo compares with its Perceiver.

Two layers on the cells of each frame, then averages over the boxes of a coarser grid of time and
space (arXiv 2412.10360, its table of resamplers).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.model.positions import Positions


class Pooling(nn.Module):
    """(C, F, N, dim_in) -> (C, K, width), as `Perceiver`.

    conv: two convolutions of 3 x 3 cells with a GELU between; mlp: two linears. Frames that do not
    exist are left out of the averages; a box that holds no other is 0.
    """

    def __init__(
        self,
        dim_in: int,
        *,
        kind: Literal["conv", "mlp"],
        width: int,
        num_tokens: int,
        positions: bool = False,
    ) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        if kind == "conv":
            first = nn.Conv2d(dim_in, width, 3, padding=1)
            second = nn.Conv2d(width, width, 3, padding=1)
        else:
            # A convolution of one cell is a linear.
            first, second = nn.Conv2d(dim_in, width, 1), nn.Conv2d(width, width, 1)
        self.first, self.second = first, second
        nn.init.kaiming_normal_(first.weight)
        nn.init.normal_(second.weight, std=second.weight[0].numel() ** -0.5)
        for layer in (first, second):
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
        self.positions = Positions(width) if positions else None

    def forward(
        self,
        features_CFND: Tensor,
        *,
        grid: tuple[int, int],
        frame_mask_CF: Tensor,
        frame_seconds_CF: Tensor,
    ) -> Tensor:
        """Tokens of each clip: boxes in order of time, then row, then column."""
        C, F, N, _ = features_CFND.shape
        cells = self.first(_as_pictures(features_CFND, grid=grid))
        if self.positions is not None:
            places_CFND = self.positions(frame_seconds_CF, grid=grid)
            cells = cells + _as_pictures(places_CFND, grid=grid)
        cells = self.second(functional.gelu(cells))
        cells_CMD = cells.permute(0, 2, 3, 1).reshape(C, F * N, cells.shape[1])
        boxes_KM = boxes(self.num_tokens, frames=F, grid=grid, device=cells.device)
        weights_CKM = boxes_KM * frame_mask_CF.repeat_interleave(N, dim=1)[:, None, :]
        weights_CKM = weights_CKM / weights_CKM.sum(dim=-1, keepdim=True).clamp(min=1)
        tokens: Tensor = weights_CKM.to(cells.dtype) @ cells_CMD
        return tokens


def _as_pictures(cells_CFND: Tensor, *, grid: tuple[int, int]) -> Tensor:
    """(C x F, D, H, W)."""
    C, F, _, D = cells_CFND.shape
    return cells_CFND.reshape(C * F, *grid, D).permute(0, 3, 1, 2)


def boxes(
    num_tokens: int, *, frames: int, grid: tuple[int, int], device: torch.device | str = "cpu"
) -> Tensor:
    """(K, F x H x W) float32: 1 where a cell lies in a box; limits as of adaptive pooling."""
    sizes = zip((frames, *grid), box_grid(num_tokens, frames=frames, grid=grid), strict=True)
    T, H, W = (_bins(cells, bins, device=device) for cells, bins in sizes)
    return torch.einsum("af,bh,cw->abcfhw", T, H, W).reshape(num_tokens, -1)


def box_grid(num_tokens: int, *, frames: int, grid: tuple[int, int]) -> tuple[int, int, int]:
    """num_tokens as a product of boxes along time, rows and columns.

    As many along time as divide it, at most a frame each; the rest as near to square boxes as its
    divisors allow.
    """
    times = max(t for t in range(1, frames + 1) if num_tokens % t == 0)
    rest = num_tokens // times
    H, W = grid
    rows = min(
        (h for h in range(1, rest + 1) if rest % h == 0),
        key=lambda h: abs(math.log((H / h) / (W / (rest // h)))),
    )
    return times, rows, rest // rows


def _bins(cells: int, bins: int, *, device: torch.device | str) -> Tensor:
    """(bins, cells): bin i holds cells from floor(i cells / bins) to ceil((i + 1) cells / bins)."""
    i = torch.arange(bins, device=device)[:, None]
    cell = torch.arange(cells, device=device)[None, :]
    first, stop = i * cells // bins, ((i + 1) * cells + bins - 1) // bins
    return ((cell >= first) & (cell < stop)).float()
