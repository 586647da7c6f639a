"""Feature maps: grids of features as pictures, in colours by their principal components.

Cells of like features have like colours, all over one video: the first component is lightness, the
second goes from green to red and the third from blue to yellow (the axes of Oklab, Ottosson 2020,
in which equal steps look equal). Between videos, and between streams, colours say nothing.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.compact import decode_features

MOST_CELLS = 256
"""Cells of a video that its components are taken from; more change no colour that an eye sees."""
LEVELS = (10, 5, 5)
"""Of the three components: the 250 colours fit into one byte a cell."""
_SHOWN = (2, 50, 98)
"""Percentiles that become 0, a half and 1: a few cells are far from all others."""

Stored = tuple[npt.NDArray[np.generic], npt.NDArray[np.float32] | None]
"""(G, H, W, D) features as they lie in a shard, and their scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColouredGrids:
    """The grids of N clips of one stream of one video."""

    levels: npt.NDArray[np.uint8]
    """(N, G, H, W, 3) in [0, LEVELS)."""
    means: npt.NDArray[np.float32]
    """(N, G, D): the mean feature of each grid."""


def colour_grids(clips: Sequence[Stored]) -> ColouredGrids:
    """The colours of the grids of one stream of one video, of N >= 1 clips.

    Along the three directions of greatest variance; of each the sign is such that its entry of
    greatest size is positive, so the same features have the same colours every time. What is NaN or
    infinite is 0.
    """
    cells_SD = _sample_cells(clips)
    mean_D = cells_SD.mean(axis=0)
    components_DC = principal_components(cells_SD - mean_D, most=3)
    shape, dim = clips[0][0].shape[:3], cells_SD.shape[1]
    values = np.zeros((len(clips), *shape, 3), dtype=np.float32)
    means = np.empty((len(clips), shape[0], dim), dtype=np.float32)
    buffer = np.empty(clips[0][0].shape, dtype=np.float32)
    for number, (features, scale) in enumerate(clips):
        _make_finite(decode_features(features, scale, out=buffer))
        buffer.mean(axis=(1, 2), out=means[number])
        values[number, ..., : components_DC.shape[1]] = buffer @ components_DC
    values[..., : components_DC.shape[1]] -= mean_D @ components_DC
    return ColouredGrids(levels=_to_levels(values), means=means)


def principal_components(
    centred_SD: npt.NDArray[np.float32], *, most: int
) -> npt.NDArray[np.float32]:
    """(D, C <= most) orthonormal columns, by falling variance; fewer where there is no variance.

    By the eigenvectors of the smaller one of the two products of the matrix with itself.
    """
    num_cells, dim = centred_SD.shape
    wide = dim > num_cells
    product = centred_SD @ centred_SD.T if wide else centred_SD.T @ centred_SD
    variances, vectors = np.linalg.eigh(product.astype(np.float64))
    order = np.argsort(variances)[::-1][:most]
    order = order[variances[order] > max(1e-6 * variances[-1], 1e-12)]
    components = vectors[:, order]
    if wide:
        components = centred_SD.T.astype(np.float64) @ components
    components /= np.linalg.norm(components, axis=0, keepdims=True)
    largest = np.abs(components).argmax(axis=0)
    components *= np.sign(components[largest, np.arange(len(order))])
    return components.astype(np.float32)


def encode_maps(levels: npt.NDArray[np.uint8]) -> bytes:
    """(N, G, H, W, 3) of `colour_grids` -> PNG: a row of pictures for each clip, G side by side."""
    from PIL import Image

    num_clips, num_grids, height, width, _ = levels.shape
    codes = levels.astype(np.int32) @ np.array([LEVELS[1] * LEVELS[2], LEVELS[2], 1])
    sheet = codes.transpose(0, 2, 1, 3).reshape(num_clips * height, num_grids * width)
    image = Image.fromarray(sheet.astype(np.uint8), mode="P")
    image.putpalette(_PALETTE)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=False, compress_level=6)
    return buffer.getvalue()


def _sample_cells(clips: Sequence[Stored]) -> npt.NDArray[np.float32]:
    # Evenly over all clips and all of each: the same cells every time.
    per_clip = max(1, MOST_CELLS // len(clips))
    parts = []
    for features, scale in clips:
        flat = features.reshape(-1, features.shape[-1])
        which = np.linspace(0, len(flat) - 1, min(per_clip, len(flat))).round().astype(np.int64)
        parts.append(decode_features(flat[which], scale))
    cells_SD: npt.NDArray[np.float32] = np.concatenate(parts)
    _make_finite(cells_SD)
    return cells_SD


def _make_finite(values: npt.NDArray[np.float32]) -> None:
    # A sum that is finite saves most arrays a second look.
    if not np.isfinite(values.sum(dtype=np.float64)):
        values[~np.isfinite(values)] = 0


def _to_levels(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    levels = np.empty(values.shape, dtype=np.uint8)
    for channel, most in enumerate(LEVELS):
        own = values[..., channel]
        low, middle, high = np.percentile(own, _SHOWN).tolist()
        if high > low:
            # Half of the cells on either side of the middle: features that are mostly 0 are skewed.
            # Half way to that, so that what is alike stays alike.
            straight = np.clip((own - low) / (high - low), 0, 1)
            evened = np.interp(own, [low, max(low, middle), high], [0, 0.5, 1])
            shares = (straight + evened) / 2
        else:
            shares = np.full(own.shape, 0.5)  # no variance in this direction
        levels[..., channel] = np.minimum((shares * most).astype(np.uint8), most - 1)
    return levels


def _palette() -> bytes:
    lightness, reds, yellows = (np.linspace(0, 1, count) for count in LEVELS)
    steps = np.stack(np.meshgrid(lightness, reds, yellows, indexing="ij"), axis=-1).reshape(-1, 3)
    lab = np.array([0.30, -0.13, -0.13]) + steps * np.array([0.62, 0.27, 0.25])
    linear = (lab @ _LAB_TO_LMS.T) ** 3 @ _LMS_TO_RGB.T
    clipped = np.clip(linear, 0, 1)
    encoded = np.where(
        clipped <= 0.0031308, 12.92 * clipped, 1.055 * clipped ** (1 / 2.4) - 0.055
    )  # IEC 61966-2-1
    return bytes(np.rint(255 * encoded).astype(np.uint8).ravel().tolist())


_LAB_TO_LMS = np.array(
    [
        [1, 0.3963377774, 0.2158037573],
        [1, -0.1055613458, -0.0638541728],
        [1, -0.0894841775, -1.2914855480],
    ]
)
_LMS_TO_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)
_PALETTE = _palette()
