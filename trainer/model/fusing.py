"""Fusing: several streams of features on one grid, their channels side by side.

As Apollo joins its towers (arXiv 2412.10360, section 4): the grid is the largest of each axis, a
stream of another shape is resized, trilinear without aligned corners, and channels are joined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Fused(NamedTuple):
    """All streams of C clips of F frames on one grid."""

    features_CFND: Tensor
    """(C, F, N, D): N cells row by row; D channels of the streams in their order. Its own memory,
    also where there is one stream."""
    grid: tuple[int, int]
    """(H, W): N = H x W."""


def fuse(
    features: Mapping[str, Tensor],
    *,
    scales: Mapping[str, Tensor],
    num_frames: int,
    frames_taken: Tensor | None,
    dtype: torch.dtype,
    strided: Collection[str] = (),
) -> Fused:
    """Streams as cached -> one tensor of `dtype`.

    features: stream -> (C, F, H, W, D) float16, or int8 with its scale (C, F, D) float32.
    num_frames: frames of a cached clip. strided: streams of a temporal stride, which hold all
    grids of the sample, fewer than num_frames: they are resized to num_frames, then frames_taken
    (C, F) int64 says which of these each frame is; None: all of them, in order. The scale of such
    a stream is the sample's, so of a clip the largest counts and that of a missing frame may be 0.
    Only what is resized goes through float32 as a whole.
    """
    grid = (
        max(stored.shape[2] for stored in features.values()),
        max(stored.shape[3] for stored in features.values()),
    )
    parts = []
    for name, stored in features.items():
        scale = scales.get(name)
        if name in strided:
            if scale is not None:
                scale = scale.amax(dim=1, keepdim=True)
            part = _resize(stored, scale, num_frames=num_frames, grid=grid).to(dtype)
            if frames_taken is not None:
                part = part[torch.arange(len(part), device=part.device)[:, None], frames_taken]
        elif stored.shape[2:4] != grid:
            part = _resize(stored, scale, num_frames=stored.shape[1], grid=grid).to(dtype)
        elif scale is not None:
            part = _decode(stored, scale).to(dtype)
        else:
            part = stored.to(dtype, copy=True)
        parts.append(part.flatten(2, 3))
    return Fused(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1), grid)


def _decode(stored: Tensor, scale_CFD: Tensor) -> Tensor:
    """The float32 product of int8 with what 1 stands for."""
    return stored * scale_CFD[:, :, None, None, :]


def _resize(
    stored: Tensor, scale: Tensor | None, *, num_frames: int, grid: tuple[int, int]
) -> Tensor:
    """(C, num_frames, *grid, D) float32."""
    cells_CFHWD = stored.to(torch.float32) if scale is None else _decode(stored, scale)
    resized_CDFHW = functional.interpolate(
        cells_CFHWD.permute(0, 4, 1, 2, 3),
        size=(num_frames, *grid),
        mode="trilinear",
        align_corners=False,
    )
    return resized_CDFHW.permute(0, 2, 3, 4, 1)
