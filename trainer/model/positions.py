"""Positions: where a cell lies in its frame, and how many seconds after the clip's start it is."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SPACE_BANDS = 5
"""Of each axis: 1, 2, 4, ... half waves over the picture."""
PERIODS_SECONDS = tuple(0.25 * 2**k for k in range(9))
"""0.25 to 64. Time is in seconds, so that another rate of frames is no other clock."""


class Positions(nn.Module):
    """A vector for each cell of each frame: projected Fourier features of place and time."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.space = nn.Linear(4 * SPACE_BANDS, dim, bias=False)
        self.time = nn.Linear(2 * len(PERIODS_SECONDS), dim, bias=False)
        for linear in (self.space, self.time):
            # Sine and cosine have a mean square of 1/2: each sum of them then has one of 1.
            nn.init.normal_(linear.weight, std=math.sqrt(2 / linear.in_features))

    def forward(self, frame_seconds_CF: Tensor, *, grid: tuple[int, int]) -> Tensor:
        """Seconds since the clip's start -> (C, F, H x W, dim), cells row by row."""
        dtype, device = self.space.weight.dtype, frame_seconds_CF.device
        H, W = grid
        rows = _place(H, device=device)[:, None, :].expand(H, W, -1)
        columns = _place(W, device=device)[None, :, :].expand(H, W, -1)
        space_ND = self.space(torch.cat([rows, columns], dim=-1).flatten(0, 1).to(dtype))
        periods = torch.tensor(PERIODS_SECONDS, device=device)
        time_CFD = self.time(_waves(frame_seconds_CF.float()[..., None] * 2 / periods).to(dtype))
        out: Tensor = space_ND + time_CFD[:, :, None, :]
        return out


def _place(cells: int, *, device: torch.device) -> Tensor:
    """(cells, 2 x SPACE_BANDS): of their middles, in [0, 1]."""
    middles = (torch.arange(cells, device=device) + 0.5) / cells
    return _waves(middles[:, None] * 2.0 ** torch.arange(SPACE_BANDS, device=device))


def _waves(half_turns: Tensor) -> Tensor:
    angles = half_turns * math.pi
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
