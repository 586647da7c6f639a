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


def judge(luma_THW: npt.NDArray[np.uint8], *, loudness: float | None = None) -> Quality:
    """The quality of (T, H, W) uint8 luma, of T >= 1 frames without fill."""
    later, earlier = luma_THW[1:], luma_THW[:-1]
    steps = np.maximum(later, earlier) - np.minimum(later, earlier)
    return Quality(
        brightness=_round(luma_THW.mean(dtype=np.float64) / 255),
        black=_share(luma_THW < BLACK_LEVEL),
        static=_share(steps <= STILL_LEVELS) if len(steps) else None,
        blur=_round(blur_of(luma_THW).mean()),
        loudness=loudness,
    )


def blur_of(luma_THW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """(T,) in [0, 1]: how little of a picture's edges a low-pass filter takes away.

    Of the two directions the more blurred one counts.
    """
    down, across = _blur_down(luma_THW), _blur_down(luma_THW.swapaxes(1, 2))
    worse: npt.NDArray[np.float64] = np.maximum(down, across)
    return worse


def loudness_of(mean_square: float) -> float:
    """Decibels of full scale of samples in [-1, 1] by the mean of their squares."""
    return _round(max(SILENCE_DB, 10 * math.log10(max(mean_square, 1e-30))))


def _blur_down(luma_THW: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    # Between two means of 9 neighbours that overlap in 8, all but two pixels cancel out.
    height, half = luma_THW.shape[1], MEAN_WIDTH // 2
    blur_T = np.zeros(len(luma_THW))
    if height <= MEAN_WIDTH:
        return blur_T
    # Fresh memory for each picture would cost more than the arithmetic.
    edges, blurred, spare = (np.empty_like(luma_THW[0, MEAN_WIDTH:]) for _ in range(3))
    levels = np.empty_like(edges, dtype=np.uint16)
    for number, luma_HW in enumerate(luma_THW):
        below, above = luma_HW[half + 1 : height - half], luma_HW[half : height - half - 1]
        _take_apart(below, above, out=edges, spare=spare)
        _take_apart(luma_HW[MEAN_WIDTH:], luma_HW[:-MEAN_WIDTH], out=blurred, spare=spare)
        np.multiply(edges, MEAN_WIDTH, out=levels, dtype=np.uint16)
        total = _sum(levels)
        np.minimum(levels, blurred, out=levels)
        blur_T[number] = _sum(levels) / total if total else 1.0
    return blur_T


def _take_apart(
    one: npt.NDArray[np.uint8],
    other: npt.NDArray[np.uint8],
    *,
    out: npt.NDArray[np.uint8],
    spare: npt.NDArray[np.uint8],
) -> npt.NDArray[np.uint8]:
    # |one - other|, without wider numbers.
    np.maximum(one, other, out=out)
    np.minimum(one, other, out=spare)
    return np.subtract(out, spare, out=out)


def _sum(levels_HW: npt.NDArray[np.uint16]) -> int:
    # Lines first: 32 bits take half the time, and are enough for one.
    return int(levels_HW.sum(axis=-1, dtype=np.uint32).sum(dtype=np.int64))


def _share(mask: npt.NDArray[np.bool_]) -> float:
    return _round(np.count_nonzero(mask) / mask.size)


def _round(value: float) -> float:
    return round(float(value), 4)
