"""Feature maps: grids of features as pictures, in colours by their principal components.

Cells of like features have like colours, all over one video. Between videos, and between streams,
colours say nothing.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from schemas.compact import decode_features

MOST_CELLS = 512
"""Cells of a video that its components are taken from; more change no colour that an eye sees."""
LEVELS = 6
"""Of each of red, green and blue: the 216 colours fit into one byte a cell."""
_SHOWN = (2, 98)
"""Percentiles that become the darkest and the brightest: a few cells are far from all others."""

Stored = tuple[npt.NDArray[np.generic], npt.NDArray[np.float32] | None]
"""(G, H, W, D) features as they lie in a shard, and their scale."""


def colour_grids(clips: Sequence[Stored]) -> npt.NDArray[np.uint8]:
    """(N, G, H, W, 3) uint8 in [0, LEVELS) of the grids of N clips of one stream of one video.

    The three directions of greatest variance are red, green and blue. Of each the sign is such that
    its entry of greatest size is positive, so the same features have the same colours every time.
    What is NaN or infinite is 0.
    """
    cells_SD = _sample_cells(clips)
    mean_D = cells_SD.mean(axis=0)
    components_DC = principal_components(cells_SD - mean_D, most=3)
    shape = (len(clips), *clips[0][0].shape[:3], 3)
    values = np.zeros(shape, dtype=np.float32)
    for number, (features, scale) in enumerate(clips):
        decoded = np.nan_to_num(decode_features(features, scale), posinf=0, neginf=0)
        values[number, ..., : components_DC.shape[1]] = (decoded - mean_D) @ components_DC
    return _to_levels(values)


def principal_components(centred_SD: npt.NDArray[np.float32], *, most: int) -> npt.NDArray[np.float32]:
    """(D, C <= most) orthonormal columns, by falling variance; fewer where there is no variance.

    By the eigenvectors of the smaller one of the two products of the matrix with itself.
    """
    num_cells, dim = centred_SD.shape
    wide = dim > num_cells
    product = centred_SD @ centred_SD.T if wide else centred_SD.T @ centred_SD
    variances, vectors = np.linalg.eigh(product.astype(np.float64))
    order = np.argsort(variances)[::-1][:most]
    order = order[variances[order] > max(1e-9 * variances[-1], 1e-12)]
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
    codes = levels.astype(np.int32) @ np.array([LEVELS * LEVELS, LEVELS, 1])
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
        cells = features.reshape(-1, features.shape[-1])
        which = np.linspace(0, len(cells) - 1, min(per_clip, len(cells))).round().astype(np.int64)
        parts.append(decode_features(cells[which], scale))
    return np.nan_to_num(np.concatenate(parts), posinf=0, neginf=0)


def _to_levels(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    flat = values.reshape(-1, 3)
    low, high = np.percentile(flat, _SHOWN, axis=0)
    spread = np.where(high > low, high - low, 1)
    scaled = np.clip((values - low) / spread, 0, 1)
    scaled[..., high <= low] = 0.5  # no variance in this direction
    return np.minimum((scaled * LEVELS).astype(np.uint8), LEVELS - 1)


def _palette() -> bytes:
    steps = [round(255 * level / (LEVELS - 1)) for level in range(LEVELS)]
    return bytes(value for r in steps for g in steps for b in steps for value in (r, g, b))


_PALETTE = _palette()
