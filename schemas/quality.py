"""Quality: what can be said of a clip's pictures and sound without any model, to filter by.

Pictures are judged as an encoder is given them, in whole numbers, so that a clip has the same
quality on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

BLACK_LEVEL = 26
"""Of 255: a darker pixel is black; a tenth, as in ffmpeg's blackdetect."""
STILL_LEVELS = 4
"""Of 255: a pixel that changes by no more stands still; compression alone does as much."""
MEAN_WIDTH = 9
"""Pixels of the low-pass filter that blur is measured against."""
SILENCE_DB = -100.0
"""Nothing is quieter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Of one clip, without fill; each is a column of the index."""

    brightness: float
    """Mean luma, 0 black to 1 white."""
    black: float
    """Share of pixels that are black, in [0, 1]."""
    static: float | None
    """Share of pixels that stay the same from one frame to the next, in [0, 1]; None: one frame."""
    blur: float
    """0 sharp to 1 without any edge (Crété-Roffet et al., The Blur Effect, 2007)."""
    loudness: float | None = None
    """Of what is heard, in dB of full scale (root mean square), >= -100; None: nothing is."""


QUALITY_COLUMNS = tuple(field.name for field in fields(Quality))


def quality_from(row: dict[str, Any]) -> Quality | None:
    """The quality in a row with QUALITY_COLUMNS; None in one that was written without."""
    if row.get("brightness") is None:
        return None
    return Quality(**{name: row[name] for name in QUALITY_COLUMNS})


def judge(frames_THWC: npt.NDArray[np.uint8], *, loudness: float | None = None) -> Quality:
    """The quality of (T, H, W, 3) uint8 RGB, T >= 1 frames without fill."""
    luma_THW = to_luma(frames_THWC)
    steps = np.abs(np.diff(luma_THW, axis=0))
    return Quality(
        brightness=_round(luma_THW.mean(dtype=np.float64) / 255),
        black=_share(luma_THW < BLACK_LEVEL),
        static=_share(steps <= STILL_LEVELS) if len(steps) else None,
        blur=_round(float(np.mean([blur_of(luma_HW) for luma_HW in luma_THW]))),
        loudness=loudness,
    )


def to_luma(frames_THWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.int16]:
    """(T, H, W) in [0, 255]: .299 R + .587 G + .114 B (ITU-R BT.601), in 256ths."""
    red, green, blue = (frames_THWC[..., channel].astype(np.uint16) for channel in range(3))
    luma: npt.NDArray[np.int16] = ((77 * red + 150 * green + 29 * blue + 128) >> 8).astype(np.int16)
    return luma


def blur_of(luma_HW: npt.NDArray[np.int16]) -> float:
    """Blur in [0, 1] of a picture: how little of its edges a low-pass filter takes away.

    A mean of 9 pixels is subtracted from its neighbour's, so all but two pixels cancel out. Of the
    two directions the more blurred one counts.
    """
    return max(_blur_along(luma_HW), _blur_along(luma_HW.T))


def loudness_of(mean_square: float) -> float:
    """Decibels of full scale of samples in [-1, 1] by the mean of their squares."""
    return _round(max(SILENCE_DB, 10 * math.log10(max(mean_square, 1e-30))))


def _blur_along(luma_HW: npt.NDArray[np.int16]) -> float:
    half = MEAN_WIDTH // 2
    if len(luma_HW) <= MEAN_WIDTH:
        return 0.0
    edges = np.abs(luma_HW[half + 1 : -half] - luma_HW[half : -half - 1]) * np.int16(MEAN_WIDTH)
    blurred = np.abs(luma_HW[MEAN_WIDTH:] - luma_HW[:-MEAN_WIDTH])
    total = int(edges.sum(dtype=np.int64))
    if total == 0:
        return 1.0
    taken = int(np.maximum(edges - blurred, 0).sum(dtype=np.int64))
    return 1 - taken / total


def _share(mask: npt.NDArray[np.bool_]) -> float:
    return _round(np.count_nonzero(mask) / mask.size)


def _round(value: float) -> float:
    return round(float(value), 4)
