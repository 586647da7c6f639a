"""An upright RGB picture in full size to an encoder's, as the encoder's reference code does it.

Runs in the decoder process only. Pillow is imported where it is needed first. The choices are in
docs/decisions/0010-resize.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from pipeline.jailed.tones import Picture
from schemas.resize import PictureSpec, ResizeSpec

if TYPE_CHECKING:
    from PIL import Image

_COEFFICIENT_BITS = 11
"""Of OpenCV's weights: 1.0 is 1 << 11."""


class FullPicture:
    """A picture in full size, of which pictures for several encoders are made."""

    def __init__(self, picture_HWC: Picture) -> None:
        """(H, W, 3) uint8, upright, square pixels."""
        self._picture_HWC = picture_HWC
        self._image: Image.Image | None = None

    def resize(self, spec: PictureSpec) -> Picture:
        """(height, width, 3) uint8, C-contiguous. MemoryError: too large in between."""
        how, size = spec.resize, (spec.width, spec.height)
        if how.fit == "pad":
            padded = pad_to_square(self._picture_HWC, background=how.background)
            return FullPicture(padded)._to(size, how)
        if how.fit == "crop":
            height, width = self._picture_HWC.shape[:2]
            between = sides_from_shorter(width, height, shorter=how.short_side)
            return crop_centre(self._to(between, how), width=spec.width, height=spec.height)
        return self._to(size, how)

    def _to(self, size: tuple[int, int], how: ResizeSpec) -> Picture:
        if how.library == "opencv":
            return resize_like_opencv(self._picture_HWC, width=size[0], height=size[1])
        return self._resize_with_pillow(size, how.filter)

    def _resize_with_pillow(
        self, size: tuple[int, int], name: Literal["bicubic", "bilinear"]
    ) -> Picture:
        from PIL import Image

        if self._image is None:
            self._image = Image.fromarray(self._picture_HWC)
        resampling = Image.Resampling.BICUBIC if name == "bicubic" else Image.Resampling.BILINEAR
        return np.array(self._image.resize(size, resampling))


def pad_to_square(picture_HWC: Picture, *, background: tuple[int, ...]) -> Picture:
    """The picture in the middle of a square, as LLaVA's and Apollo's `expand2square` has it.

    An odd remainder is one pixel more at the right or below. MemoryError.
    """
    height, width = picture_HWC.shape[:2]
    if height == width:
        return picture_HWC
    side = max(height, width)
    square_HWC = np.empty((side, side, 3), np.uint8)
    square_HWC.reshape(side, 3 * side)[...] = np.tile(np.array(background, np.uint8), side)
    top, left = (side - height) // 2, (side - width) // 2
    square_HWC[top : top + height, left : left + width] = picture_HWC
    return square_HWC


def sides_from_shorter(width: int, height: int, *, shorter: int) -> tuple[int, int]:
    """(width, height) after torchvision's `Resize(shorter)`: the longer side is rounded down."""
    longer = int(shorter * max(width, height) / min(width, height))
    return (shorter, longer) if width <= height else (longer, shorter)


def crop_centre(picture_HWC: Picture, *, width: int, height: int) -> Picture:
    """As torchvision's `CenterCrop`: an odd remainder is rounded to the even half."""
    top = round((picture_HWC.shape[0] - height) / 2)
    left = round((picture_HWC.shape[1] - width) / 2)
    return np.ascontiguousarray(picture_HWC[top : top + height, left : left + width])


def resize_like_opencv(picture_HWC: Picture, *, width: int, height: int) -> Picture:
    """What `cv2.resize(..., interpolation=cv2.INTER_LINEAR)` gives for uint8.

    Two neighbours a side, centres of pixels at halves, weights of 11 bits, and the bits that
    OpenCV drops between the two passes: the fixed-point path of its imgproc/resize.cpp.
    """
    source_height, source_width = picture_HWC.shape[:2]
    first_row, weight_of_row = _places(source_height, height)
    first_column, weight_of_column = _places(source_width, width)
    # Along a row the weight beyond the last pixel is zero; down a column it is that pixel's.
    outside = (first_column < 0) | (first_column >= source_width - 1)
    weight_of_column = np.where(outside, np.float32(0), weight_of_column)
    left = first_column.clip(0, source_width - 1)
    right = np.minimum(left + 1, source_width - 1)
    left_weight, right_weight = (w[None, :, None] for w in _fixed_point(weight_of_column))
    row_weights = _fixed_point(weight_of_row)
    total_HWC = np.full((height, width, 3), 2, np.int32)
    for row, weight in zip((first_row, first_row + 1), row_weights, strict=True):
        rows_HWC = picture_HWC[row.clip(0, source_height - 1)]
        blended_HWC = rows_HWC[:, left] * left_weight + rows_HWC[:, right] * right_weight
        total_HWC += ((blended_HWC >> 4) * weight[:, None, None]) >> 16
    return (total_HWC >> 2).clip(0, 255).astype(np.uint8)


def _places(
    num_source: int, num_target: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    # The first of the two neighbours of each target pixel, and the weight of the second; in the
    # precisions of OpenCV: the scale is an inverse of an inverse, positions are float.
    scale = 1.0 / (num_target / num_source)
    positions = ((np.arange(num_target) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(positions)
    return first.astype(np.int64), positions - first


def _fixed_point(
    second: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    one = np.float32(1 << _COEFFICIENT_BITS)
    weights = ((np.float32(1) - second) * one, second * one)
    return np.rint(weights[0]).astype(np.int32), np.rint(weights[1]).astype(np.int32)
