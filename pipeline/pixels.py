"""A decoded frame as the viewer sees it, at the encoders' sizes. Runs in the decoder process only.

One treatment for all: the frame's own colour matrix and range to full-range RGB, rotation by the
display matrix, then one resize from the full picture; see docs/decisions/0004-pixels.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Interpolation
from PIL import Image

_FLAGS = (
    Interpolation.BICUBIC
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
)
MAX_PREVIEW_ASPECT = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a video's pictures lie."""

    source_width: int
    source_height: int
    """As coded."""
    display_width: int
    display_height: int
    """As seen: square pixels, rotated."""
    rotation: int
    """Of the display matrix in degrees counter-clockwise, in {-180, -90, 0, 90, 180}."""

    @classmethod
    def of(cls, frame: Any, *, sample_aspect: float) -> Shape:
        """The shape of a frame in a stream whose pixels are `sample_aspect` times as wide as high.

        A display matrix can hold anything; only quarter turns are applied.
        """
        rotation = frame.rotation if frame.rotation in (-180, -90, 90, 180) else 0
        width, height = round(frame.width * sample_aspect), frame.height
        if rotation in (-90, 90):
            width, height = height, width
        return cls(
            source_width=frame.width,
            source_height=frame.height,
            display_width=max(width, 1),
            display_height=height,
            rotation=rotation,
        )


def to_rgb(frame: Any, *, rotation: int) -> npt.NDArray[np.uint8]:
    """(H, W, 3) uint8, upright, at the coded size."""
    converted = frame.reformat(
        format="rgb24",
        interpolation=_FLAGS,
        src_color_range=frame.color_range,
        dst_color_range=ColorRange.JPEG,
        threads=1,
    )
    rgb_HWC: npt.NDArray[np.uint8] = converted.to_ndarray()
    return np.ascontiguousarray(np.rot90(rgb_HWC, k=rotation // 90)) if rotation else rgb_HWC


def resize(rgb_HWC: npt.NDArray[np.uint8], *, width: int, height: int) -> npt.NDArray[np.uint8]:
    """(height, width, 3) uint8: both sides to size, bicubic with antialiasing (Pillow)."""
    image = Image.fromarray(rgb_HWC)
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def preview_size(shape: Shape, *, height: int) -> tuple[int, int]:
    """(width, height) of one frame of the preview strip."""
    aspect = min(shape.display_width / shape.display_height, MAX_PREVIEW_ASPECT)
    return max(round(height * aspect), 1), height
