"""Pictures of a video from the previews of its clips: one sheet, and how much they change."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

HEIGHT = 64
"""Pixels of a frame in a sheet."""
MOST_WIDTH = 256
_JPEG_WIDTH = 65_500
QUALITY = 72
_MOST_PIXELS = 2**25
"""Of a preview; a larger one is none of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The frames of some clips of a video: a row a clip, T frames of equal size side by side."""

    frames: npt.NDArray[np.uint8]
    """(N, T, HEIGHT, W, 3) RGB; black where a clip has no picture."""
    there: npt.NDArray[np.bool_]
    """(N,): the clip has one."""

    @property
    def width(self) -> int:
        """Pixels of one frame."""
        return int(self.frames.shape[3])

    def encode(self) -> bytes:
        """The sheet as JPEG."""
        N, T, H, W, _ = self.frames.shape
        return _to_jpeg(self.frames.transpose(0, 2, 1, 3, 4).reshape(N * H, T * W, 3))

    def encode_one(self, clip: int) -> bytes:
        """The first frame of one of its clips as JPEG."""
        return _to_jpeg(self.frames[clip, 0])


def make_sheet(previews: Sequence[bytes | memoryview | None], *, num_frames: int) -> Sheet | None:
    """The sheet of clips by their previews, JPEG strips of `num_frames` frames.

    None: not one of them is a picture.
    """
    strips = [None if data is None else _read_strip(data, num_frames) for data in previews]
    widths = [strip.shape[1] // num_frames for strip in strips if strip is not None]
    if not widths:
        return None
    width = max(widths)
    frames = np.zeros((len(strips), num_frames, HEIGHT, width, 3), dtype=np.uint8)
    for number, strip in enumerate(strips):
        if strip is not None:
            own = strip.reshape(HEIGHT, num_frames, -1, 3).transpose(1, 0, 2, 3)
            left = (width - own.shape[2]) // 2
            frames[number, :, :, left : left + own.shape[2]] = own
    return Sheet(frames=frames, there=np.array([strip is not None for strip in strips]))


def picture_changes(frames_THWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """(T - 1,) in [0, 1]: the mean difference of brightness from each frame to the next."""
    luma_THW = frames_THWC.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    steps_T: npt.NDArray[np.float64]
    steps_T = np.abs(np.diff(luma_THW, axis=0)).mean(axis=(1, 2), dtype=np.float64)
    return steps_T / 255


def feature_changes(vectors_GD: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """(G - 1,) in [0, 2]: 1 - the cosine of each vector and the next; 0 where one is all zeros."""
    lengths = np.linalg.norm(vectors_GD, axis=1)
    products = (vectors_GD[1:] * vectors_GD[:-1]).sum(axis=1)
    size = lengths[1:] * lengths[:-1]
    cosines = np.divide(products, size, out=np.ones_like(products), where=size > 0)
    changes: npt.NDArray[np.float64] = np.maximum(0.0, 1 - cosines.astype(np.float64))
    return changes


def _read_strip(data: bytes | memoryview, num_frames: int) -> npt.NDArray[np.uint8] | None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            if image.width * image.height > _MOST_PIXELS or image.width % num_frames:
                return None
            width = round(image.width / num_frames * HEIGHT / image.height)
            most = min(MOST_WIDTH, _JPEG_WIDTH // num_frames)
            size = (num_frames * min(most, max(1, width)), HEIGHT)
            picture = image.convert("RGB")
            return np.asarray(picture if picture.size == size else picture.resize(size))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # what Pillow says of a damaged file


def _to_jpeg(pixels_HWC: npt.NDArray[np.uint8]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels_HWC).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
