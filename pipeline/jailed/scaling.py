"""A decoded frame to an ordinary RGB picture of a given size. Runs in the decoder process only.

One pass of libswscale from the planes as decoded; what is interlaced, high in dynamic range, wide
in gamut or transparent takes its own way. The choices are in docs/decisions/0004-pixels.md.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av.error
import numpy as np
import numpy.typing as npt
from av.filter import Graph
from av.video.frame import VideoFrame
from av.video.reformatter import (
    ColorPrimaries,
    ColorRange,
    Colorspace,
    ColorTrc,
    Interpolation,
    VideoReformatter,
)

from pipeline.jailed.tones import Picture, Transfer, over_black, to_sdr
from schemas.errors import VideoError

# The same bytes with and without vector instructions; chroma is interpolated, not repeated.
_FLAGS = (
    Interpolation.BICUBIC
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.FULL_CHR_H_INP
    | Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
)
_HDR: dict[int, Transfer] = {ColorTrc.SMPTE2084: "pq", ColorTrc.ARIB_STD_B67: "hlg"}
_UNSPECIFIED = 2
"""Of matrix and primaries in H.273."""
_MIN_INTERLACED_HEIGHT = 4
_STEEP = 32
"""Times that libswscale reduces a side without trouble."""
_BAND_PIXELS = 1 << 20
"""Whose tones are mapped at once, which takes some 80 bytes for each of them."""


class Scaler:
    """Makes pictures of one size. It keeps the tables of libswscale from frame to frame."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()
        self._first_pass: VideoReformatter | None = None

    def scale(self, frame: Any, *, width: int, height: int) -> Picture:
        """(height, width, 3) uint8, C-contiguous, not rotated: sRGB in full range, without alpha.

        VideoError: unsupported_codec, out_of_memory.
        """
        transfer, wide_gamut = _light_of(frame)
        size = (width, height)
        # To planes libswscale has vector instructions: the same bytes in less than half the time.
        planar = not (frame.format.is_rgb or frame.format.has_palette)
        with _refusing(frame):
            if transfer != "sdr" or wide_gamut:
                signal_HWC = self._scale(frame, "gbrp16le" if planar else "rgb48le", size)
                rows = max(_BAND_PIXELS // width, 1)
                bands = (signal_HWC[top : top + rows] for top in range(0, height, rows))
                mapped = [to_sdr(b, transfer=transfer, wide_gamut=wide_gamut) for b in bands]
                return mapped[0] if len(mapped) == 1 else np.concatenate(mapped)
            return np.ascontiguousarray(self._scale(frame, "gbrp" if planar else "rgb24", size))

    def _scale(self, frame: Any, name: str, size: tuple[int, int]) -> npt.NDArray[Any]:
        try:
            scaled = _reformat(self._reformatter, frame, name, size)
        except av.error.FFmpegError:
            width, height = size
            if max(frame.width / width, frame.height / height) <= _STEEP:
                raise
            # Too long a filter for one pass, as for 1 x 4000 pixels.
            between = (math.isqrt(frame.width * width), math.isqrt(frame.height * height))
            self._first_pass = self._first_pass or VideoReformatter()
            halfway = _reformat(self._first_pass, frame, name, between)
            scaled = _reformat(self._reformatter, halfway, name, size)
        pixels: npt.NDArray[Any] = scaled.to_ndarray()
        return pixels


def as_displayed(frame: Any) -> Any:
    """What there is to scale of a frame: of an interlaced one a field, with alpha over black.

    The same frame where there is nothing to do. VideoError: unsupported_codec, out_of_memory.
    """
    with _refusing(frame):
        if (
            frame.interlaced_frame
            and frame.height >= _MIN_INTERLACED_HEIGHT
            and frame.height % 4 == 0  # else the fields share a line of halved chroma
            and not frame.format.is_rgb
        ):
            frame = _first_field(frame)
        if frame.format.has_palette or any(c.is_alpha for c in frame.format.components):
            frame = _over_black(frame)
    return frame


def _first_field(frame: Any) -> Any:
    """The field that is displayed first, half as high; lines are skipped, not copied.

    Which one that is, the frame's own flag says; only libavfilter reads it.
    """
    graph = Graph()
    graph.threads = 1
    source = graph.add_buffer(
        width=frame.width,
        height=frame.height,
        format=frame.format,
        time_base=frame.time_base or Fraction(1, 1000),
    )
    sink = graph.add("buffersink")
    graph.link_nodes(source, graph.add("separatefields"), sink).configure()
    source.push(frame)
    field: Any = sink.pull()
    field.colorspace = _matrix(frame) or frame.colorspace  # its own height says another standard
    return field


def _over_black(frame: Any) -> Any:
    """The same frame where it is opaque, as most are.

    In full size: scaled by itself, the colour that alpha hides would come out at the edges.
    """
    transfer, wide_gamut = _light_of(frame)
    deep = transfer != "sdr" or wide_gamut
    size = (frame.width, frame.height)
    scaled = _reformat(VideoReformatter(), frame, "rgba64le" if deep else "rgba", size)
    rgba_HWC = scaled.to_ndarray()
    colours_HWC, alpha_HW = rgba_HWC[..., :3], rgba_HWC[..., 3]
    if deep:
        alpha_HW = (alpha_HW >> 8).astype(np.uint8)
    if alpha_HW.min() == 255:
        return frame
    if deep:
        colours_HWC = to_sdr(colours_HWC, transfer=transfer, wide_gamut=wide_gamut)
    return VideoFrame.from_ndarray(over_black(colours_HWC, alpha_HW), format="rgb24")


def _reformat(reformatter: VideoReformatter, frame: Any, name: str, size: tuple[int, int]) -> Any:
    return reformatter.reformat(
        frame,
        width=max(size[0], 1),
        height=max(size[1], 1),
        format=name,
        src_colorspace=_matrix(frame),
        interpolation=_FLAGS,
        dst_color_range=ColorRange.JPEG,
        threads=1,
    )


def _matrix(frame: Any) -> Colorspace | None:
    """None: the frame's own."""
    if frame.colorspace != _UNSPECIFIED or frame.format.is_rgb or frame.format.has_palette:
        return None
    _, wide_gamut = _light_of(frame)
    if wide_gamut:
        return Colorspace.BT2020
    # What players take for high definition.
    high = frame.width >= 1280 or frame.height > 576
    return Colorspace.ITU709 if high else Colorspace.ITU601


def _light_of(frame: Any) -> tuple[Transfer, bool]:
    """The transfer, and whether the primaries are those of BT.2020."""
    transfer = _HDR.get(frame.color_trc, "sdr")
    primaries = frame.color_primaries
    implied = transfer != "sdr" and primaries == _UNSPECIFIED
    return transfer, implied or primaries == ColorPrimaries.BT2020


@contextlib.contextmanager
def _refusing(frame: Any) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise VideoError("out_of_memory", "while converting to RGB") from error
    except av.error.FFmpegError as error:
        detail = f"pixels of the format {frame.format.name} cannot be converted"
        raise VideoError("unsupported_codec", detail) from error
