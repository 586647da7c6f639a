"""A decoded frame as the viewer sees it, at the encoders' sizes. Runs in the decoder process only.

`scaling` makes a picture of each size from the frame as coded; here it is turned by the display
matrix. The choices are in docs/decisions/0004-pixels.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.jailed.scaling import Scaler, as_displayed
from schemas.recipe import MAX_PREVIEW_ASPECT


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
            display_height=max(height, 1),
            rotation=rotation,
        )


def preview_size(shape: Shape, *, height: int) -> tuple[int, int]:
    """(width, height) of one frame of the preview strip."""
    aspect = min(shape.display_width / shape.display_height, MAX_PREVIEW_ASPECT)
    return max(round(height * aspect), 1), height


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """One frame at every size that is asked for."""

    shape: Shape
    frames: dict[str, npt.NDArray[np.uint8]]
    """Stream -> (H, W, 3)."""
    preview: npt.NDArray[np.uint8] | None
    """(H, W, 3), small."""


class Converter:
    """Makes the pictures of the frames of one video, one after the other."""

    def __init__(self, *, sizes: Mapping[str, tuple[int, int]], preview_height: int | None) -> None:
        """`sizes` is stream -> (width, height)."""
        self._sizes = {name: (width, height) for name, (width, height) in sizes.items()}
        self._preview_height = preview_height
        self._scalers = {size: Scaler() for size in self._sizes.values()}
        self._preview_scaler = Scaler()

    def convert(self, frame: Any, *, sample_aspect: float) -> Pictures:
        """Convert a frame of any size and format; the frame stays as it is.

        VideoError: unsupported_codec, out_of_memory.
        """
        shape = Shape.of(frame, sample_aspect=sample_aspect)
        source = as_displayed(frame)
        # Streams of the same size share their pictures.
        by_size = {
            size: _upright(source, size, scaler=scaler, rotation=shape.rotation)
            for size, scaler in self._scalers.items()
        }
        preview = None
        if self._preview_height is not None:
            size = preview_size(shape, height=self._preview_height)
            preview = _upright(source, size, scaler=self._preview_scaler, rotation=shape.rotation)
        return Pictures(
            shape=shape,
            frames={name: by_size[size] for name, size in self._sizes.items()},
            preview=preview,
        )


def _upright(
    frame: Any, size: tuple[int, int], *, scaler: Scaler, rotation: int
) -> npt.NDArray[np.uint8]:
    """(height, width, 3) uint8, C-contiguous, turned by `rotation`; `size` is (width, height)."""
    width, height = size[::-1] if rotation in (-90, 90) else size
    picture_HWC = scaler.scale(frame, width=width, height=height)
    return np.ascontiguousarray(np.rot90(picture_HWC, k=rotation // 90))
