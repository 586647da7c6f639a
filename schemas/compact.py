"""How features are stored: averaged to a grid, and as float16 or as int8 with a scale a channel.

The one place that knows both ways, there and back. docs/storage.md has what each choice costs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.recipe import StreamSpec

INT8_MAX = 127
FLOAT16_EXPONENT = np.uint16(0x7C00)
"""Its bits; all are set in what is infinite or no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Features of a clip as they lie in a shard."""

    values: npt.NDArray[Any]
    """(T, H, W, D) float16 or int8."""
    scale: npt.NDArray[np.float32] | None = None
    """(D,) float32 of int8 values: what 1 stands for."""

    def decode(self) -> npt.NDArray[np.float32]:
        """(T, H, W, D) float32."""
        return decode_features(self.values, self.scale)


def as_float16(features: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Each rounded to the nearest, ties to even; what does not fit becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return features.astype(np.float16)


def store_features(
    features_THWD: npt.NDArray[np.float32],
    *,
    grid: tuple[int, ...],
    dtype: str,
    to_float16: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float16]] = as_float16,
) -> Stored:
    """Features as a recipe stores them; `grid` is (H, W), or empty for their own.

    A value that does not fit becomes infinite (float16) or its scale does (int8). `to_float16` is
    another way of doing the same.
    """
    if grid:
        features_THWD = pool_by_area(features_THWD, grid=(grid[0], grid[1]))
    if dtype != "int8":
        return Stored(values=to_float16(features_THWD))
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.abs(features_THWD).max(axis=(0, 1, 2)) / np.float32(INT8_MAX)
        steps = features_THWD * np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0)
        return Stored(values=np.rint(steps).astype(np.int8), scale=scale.astype(np.float32))


def decode_features(
    values: npt.NDArray[Any],
    scale: npt.NDArray[np.float32] | None,
    *,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Values as they are stored -> float32 of the same shape, or into `out` of any float dtype."""
    if out is None:
        out = np.empty(values.shape, dtype=np.float32)
    if scale is None:
        np.copyto(out, values, casting="same_kind")
    elif out.dtype == np.float32:
        np.copyto(
            out, values
        )  # the same product, and faster: a cast within it goes by small pieces
        np.multiply(out, scale, out=out)
    else:
        np.multiply(values, scale, out=out, casting="same_kind")
    return out


def pool_by_area(
    features_THWD: npt.NDArray[np.float32], *, grid: tuple[int, int]
) -> npt.NDArray[np.float32]:
    """(T, H, W, D) -> (T, h, w, D): each cell is the mean of what it covers, by area.

    27 -> 9 is the mean of 3 x 3 cells; 27 -> 8 takes 3.375 x 3.375, cells at the border in part.
    ValueError: a grid that is finer than the features'.
    """
    H, W = features_THWD.shape[1:3]
    rows_hH, columns_wW = area_weights(H, grid[0]), area_weights(W, grid[1])
    T, D = features_THWD.shape[0], features_THWD.shape[3]
    by_rows = rows_hH @ features_THWD.reshape(T, H, W * D)
    by_rows = by_rows.reshape(T * grid[0], W, D)
    pooled: npt.NDArray[np.float32] = np.matmul(columns_wW, by_rows).reshape(T, *grid, D)
    return pooled


def stored_shape(
    stream: StreamSpec, stamp: Mapping[str, Any], *, num_frames: int
) -> tuple[int, int, int, int]:
    """(T, H, W, D) of a clip's features as stored, by what the encoder says of itself."""
    height, width = stream.grid or stamp["grid"]
    return num_frames // stamp.get("temporal_stride", 1), height, width, stamp["dim"]


@functools.cache
def area_weights(size: int, to_size: int) -> npt.NDArray[np.float32]:
    """(to_size, size) float32, rows of sum 1: the part of each cell that lies in a larger one."""
    if not 1 <= to_size <= size:
        raise ValueError(f"{to_size = } must be in [1, {size}]")
    step = size / to_size
    starts, cells = np.arange(to_size)[:, None] * step, np.arange(size)[None, :]
    covered = np.minimum(starts + step, cells + 1) - np.maximum(starts, cells)
    weights: npt.NDArray[np.float64] = np.clip(covered, 0, None) / step
    weights[weights < 1e-9] = 0
    return weights.astype(np.float32)


def is_finite(stored: Stored) -> bool:
    """Whether no value is NaN or infinite, and none was before it was stored."""
    values = stored.values if stored.scale is None else stored.scale
    if values.dtype != np.float16:
        return bool(np.isfinite(values).all())
    # numpy.isfinite converts each float16 first, which takes ten times as long.
    bits = values.view(np.uint16) & FLOAT16_EXPONENT
    return not bool((bits == FLOAT16_EXPONENT).any())
