"""A decoded frame as the viewer sees it, for each encoder. Runs in the decoder process only.

`scaling` makes a picture of a size from the frame as coded; here it is turned by the display
matrix. Where an encoder wants what its reference code does, that picture has the full size, is made
once a frame, and `resizing` goes on. The choices are in docs/decisions/0004-pixels.md and
0010-resize.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.jailed.resizing import FullPicture
from pipeline.jailed.scaling import Scaler, as_displayed
from schemas.errors import VideoError
from schemas.recipe import MAX_PREVIEW_ASPECT
from schemas.resize import PictureSpec

MAX_PIXEL_ASPECT = 4.0
"""Width over height of a pixel, or the other way round, in a full picture: beyond it, the file's
word is not worth the memory."""


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


def full_size(shape: Shape, *, sample_aspect: float) -> tuple[int, int]:
    """(width, height), upright, of a full picture: square pixels, and as many lines as coded."""
    aspect = min(max(sample_aspect, 1 / MAX_PIXEL_ASPECT), MAX_PIXEL_ASPECT)
    width, height = max(round(shape.source_width * aspect), 1), shape.source_height
    return (height, width) if shape.rotation in (-90, 90) else (width, height)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """One frame in every way that is asked for."""

    shape: Shape
    frames: dict[str, npt.NDArray[np.uint8]]
    """Stream -> (H, W, 3)."""
    preview: npt.NDArray[np.uint8] | None
    """(H, W, 3), small."""


class Converter:
    """Makes the pictures of the frames of one video, one after the other."""

    def __init__(self, *, pictures: Mapping[str, PictureSpec], preview_height: int | None) -> None:
        """`pictures` is stream -> what it takes."""
        self._specs = dict(pictures)
        self._preview_height = preview_height
        # Streams that take the same share their pictures.
        different = dict.fromkeys(self._specs.values())
        self._scalers = {s: Scaler() for s in different if s.resize.library == "libswscale"}
        self._from_full = [spec for spec in different if spec not in self._scalers]
        self._full_scaler = Scaler()
        self._preview_scaler = Scaler()

    def convert(self, frame: Any, *, sample_aspect: float) -> Pictures:
        """Convert a frame of any size and format; the frame stays as it is.

        VideoError: unsupported_codec, out_of_memory.
        """
        shape = Shape.of(frame, sample_aspect=sample_aspect)
        source = as_displayed(frame)
        made = {
            spec: _upright(source, (spec.width, spec.height), scaler, rotation=shape.rotation)
            for spec, scaler in self._scalers.items()
        }
        if self._from_full:
            size = full_size(shape, sample_aspect=sample_aspect)
            full = _upright(source, size, self._full_scaler, rotation=shape.rotation)
            made |= _resized(full, self._from_full)
        preview = None
        if self._preview_height is not None:
            size = preview_size(shape, height=self._preview_height)
            preview = _upright(source, size, self._preview_scaler, rotation=shape.rotation)
        return Pictures(
            shape=shape,
            frames={name: made[spec] for name, spec in self._specs.items()},
            preview=preview,
        )


def _resized(
    full_HWC: npt.NDArray[np.uint8], specs: list[PictureSpec]
) -> dict[PictureSpec, npt.NDArray[np.uint8]]:
    full = FullPicture(full_HWC)
    try:
        return {spec: full.resize(spec) for spec in specs}
    except MemoryError as error:
        raise VideoError("out_of_memory", "while resizing") from error


def _upright(
    frame: Any, size: tuple[int, int], scaler: Scaler, *, rotation: int
) -> npt.NDArray[np.uint8]:
    """(height, width, 3) uint8, C-contiguous, turned by `rotation`; `size` is (width, height)."""
    width, height = size[::-1] if rotation in (-90, 90) else size
    picture_HWC = scaler.scale(frame, width=width, height=height)
    if rotation == 0:
        return picture_HWC
    # A pixel moves as a whole, in half the time of three numbers.
    turned_HW1 = np.rot90(picture_HWC.view("V3"), k=rotation // 90)
    return np.ascontiguousarray(turned_HW1).view(np.uint8)
