"""A decoded frame as the viewer sees it, at the encoders' sizes. Runs in the decoder process only.

One treatment for all: the frame's own colour matrix and range to full-range RGB, rotation by the
display matrix, then one resize from the full picture; see docs/decisions/0004-pixels.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import av.error
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Interpolation
from PIL import Image

from schemas.errors import VideoError

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
            display_height=max(height, 1),
            rotation=rotation,
        )


def to_rgb(frame: Any, *, rotation: int) -> npt.NDArray[np.uint8]:
    """(H, W, 3) uint8, upright, at the coded size. VideoError: unsupported_codec, out_of_memory."""
    try:
        converted = frame.reformat(
            format="rgb24",
            interpolation=_FLAGS,
            src_color_range=frame.color_range,
            dst_color_range=ColorRange.JPEG,
            threads=1,
        )
    except MemoryError as error:
        raise VideoError("out_of_memory", "while converting to RGB") from error
    except av.error.FFmpegError as error:
        detail = f"pixels of the format {frame.format.name} cannot be converted"
        raise VideoError("unsupported_codec", detail) from error
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """One frame at every size that is asked for."""

    shape: Shape
    frames: dict[str, npt.NDArray[np.uint8]]
    """Stream -> (H, W, 3)."""
    preview: npt.NDArray[np.uint8] | None
    """(H, W, 3), small."""

    @classmethod
    def of(
        cls,
        frame: Any,
        *,
        sample_aspect: float,
        sizes: Mapping[str, tuple[int, int]],
        preview_height: int | None,
    ) -> Pictures:
        """Convert a frame; `sizes` is stream -> (width, height). VideoError: of `to_rgb`."""
        shape = Shape.of(frame, sample_aspect=sample_aspect)
        rgb_HWC = to_rgb(frame, rotation=shape.rotation)
        preview = None
        if preview_height is not None:
            width, height = preview_size(shape, height=preview_height)
            preview = resize(rgb_HWC, width=width, height=height)
        return cls(
            shape=shape,
            frames={name: resize(rgb_HWC, width=w, height=h) for name, (w, h) in sizes.items()},
            preview=preview,
        )


def join_pictures(pictures: Sequence[Pictures]) -> dict[str, list[npt.NDArray[np.uint8]]]:
    """Stream -> the frames of a clip; "" -> their previews, all as large as the first."""
    joined = {name: [p.frames[name] for p in pictures] for name in pictures[0].frames}
    first = pictures[0].preview
    if first is not None:
        height, width = first.shape[:2]
        previews = [p.preview for p in pictures if p.preview is not None]
        joined[""] = [
            # The picture's size may change in the middle of a video.
            p if p.shape == first.shape else resize(p, width=width, height=height)
            for p in previews
        ]
    return joined
