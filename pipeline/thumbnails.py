"""Thumbnails: small grey pictures of a video's frames, from the previews in its samples.

Black bars at the edges are left out, so that a copy with bars looks as one without.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.picturing import make_sheet

SIZE = 32
"""Pixels a side."""
PLAIN_BELOW = 6.0
"""Grey levels: a picture whose pixels spread less tells nothing, such as black or a fade."""
_BAR_BELOW = 32
"""Grey levels of the brightest pixels of a row or column that is a bar."""
_LEAST_SHARE = 0.25
"""Of the height and the width; what is smaller is no picture between bars."""
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_KEPT_VIDEOS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnails:
    """Of a video, or of a part of it; F frames in order of time."""

    pictures: npt.NDArray[np.float32]
    """(F, SIZE * SIZE): the mean taken off, of length 1; zeros where there is none."""
    told: npt.NDArray[np.bool_]
    """(F,): the picture is there and not plain."""
    share: float
    """Of the frame's area that is not bars."""


def read_thumbnails(cache: FeatureCache, keys: Sequence[str]) -> Thumbnails:
    """Of all real frames of the samples, in order. CacheDamaged.

    A sample without a preview, or with one that cannot be read, has frames that tell nothing.
    """
    previews, real = [], []
    for key in keys:
        sample = cache[key]
        previews.append(sample.preview)
        real.append(sample.mask)
    num_frames = cache.recipe.sampling.frames_per_clip
    real_F = np.concatenate(real)
    sheet = make_sheet(previews, num_frames=num_frames)
    if sheet is None:
        return _none(int(real_F.sum()))
    grey_FHW = (sheet.frames @ _LUMA).reshape(-1, *sheet.frames.shape[2:4])[real_F]
    there_F = np.repeat(sheet.there, num_frames)[real_F]
    return make_thumbnails(grey_FHW, there=there_F)


def make_thumbnails(
    grey_FHW: npt.NDArray[np.float32], *, there: npt.NDArray[np.bool_]
) -> Thumbnails:
    """From grey pictures in [0, 255] of one video."""
    if not there.any():
        return _none(len(there))
    rows, columns = find_picture(grey_FHW[there])
    cropped = grey_FHW[:, rows, columns]
    small = _shrink(_shrink(cropped, axis=1), axis=2).reshape(len(grey_FHW), -1)
    small -= small.mean(axis=1, keepdims=True)
    spread_F = small.std(axis=1)
    lengths = np.linalg.norm(small, axis=1, keepdims=True)
    height, width = grey_FHW.shape[1:]
    return Thumbnails(
        pictures=small / np.where(lengths > 0, lengths, 1),
        told=there & (spread_F >= PLAIN_BELOW),
        share=cropped.shape[1] * cropped.shape[2] / (height * width),
    )


def find_picture(grey_FHW: npt.NDArray[np.float32]) -> tuple[slice, slice]:
    """(rows, columns) between bars that are dark in all frames; all where too little is left."""
    brightest_HW = grey_FHW.max(axis=0)
    found = []
    for axis in (1, 0):
        # Not the brightest of a row: one pixel of a bar may be, after coding.
        lit = np.flatnonzero(np.percentile(brightest_HW, 95, axis=axis) > _BAR_BELOW)
        size = brightest_HW.shape[1 - axis]
        if not len(lit) or lit[-1] + 1 - lit[0] < _LEAST_SHARE * size:
            return slice(None), slice(None)
        found.append(slice(int(lit[0]), int(lit[-1]) + 1))
    return found[0], found[1]


class ThumbnailShelf:
    """Thumbnails of the videos of a cache; those asked for last are kept."""

    def __init__(self, cache: FeatureCache) -> None:
        self._cache = cache
        self._read = functools.lru_cache(maxsize=_KEPT_VIDEOS)(self._read_anew)

    def __getitem__(self, video_id: str) -> Thumbnails:
        return self._read(video_id)

    def _read_anew(self, video_id: str) -> Thumbnails:
        return read_thumbnails(self._cache, self._cache.videos[video_id])


def _none(num_frames: int) -> Thumbnails:
    return Thumbnails(
        pictures=np.zeros((num_frames, SIZE * SIZE), dtype=np.float32),
        told=np.zeros(num_frames, dtype=bool),
        share=1.0,
    )


def _shrink(pictures: npt.NDArray[np.float32], *, axis: int) -> npt.NDArray[np.float32]:
    """Means over SIZE equal parts of an axis; pixels on a border count by their shares."""
    size = pictures.shape[axis]
    edges = np.arange(SIZE + 1) * size / SIZE
    covered = np.minimum(edges[1:, None], np.arange(1, size + 1)) - np.maximum(
        edges[:-1, None], np.arange(size)
    )
    weights = np.maximum(covered, 0).astype(np.float32) * np.float32(SIZE / size)
    moved = np.moveaxis(pictures, axis, -1) @ weights.T
    return np.moveaxis(moved, -1, axis)
