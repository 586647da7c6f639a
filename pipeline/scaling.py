"""A decoded frame to an ordinary RGB picture of a given size. Runs in the decoder process only.

One pass of libswscale from the planes as decoded; what is interlaced, high in dynamic range, wide
in gamut or transparent takes its own way. The choices are in docs/decisions/0004-pixels.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import av.error
import numpy as np
from av.filter import Graph
from av.video.reformatter import (
    ColorPrimaries,
    ColorRange,
    Colorspace,
    ColorTrc,
    Interpolation,
    VideoReformatter,
)

from pipeline.tones import Picture, Transfer, over_black, to_sdr
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


class Scaler:
    """Makes pictures of one size. It keeps the tables of libswscale from frame to frame."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()
        self._first_pass: VideoReformatter | None = None

    def scale(self, frame: Any, *, width: int, height: int) -> Picture:
        """(height, width, 3) uint8, C-contiguous, not rotated: sRGB in full range, over black.

        VideoError: unsupported_codec, out_of_memory.
        """
        transfer = _HDR.get(frame.color_trc, "sdr")
        wide_gamut = _is_wide(frame, transfer)
        deep = transfer != "sdr" or wide_gamut
        with_alpha = _has_alpha(frame.format)
        name = ("rgba64le" if with_alpha else "rgb48le") if deep else None
        pixels = self._convert(
            frame, name or ("rgba" if with_alpha else "rgb24"), width=width, height=height
        )
        colours = pixels[..., :3]
        if deep:
            colours = to_sdr(colours, transfer=transfer, wide_gamut=wide_gamut)
        if with_alpha:
            alpha = pixels[..., 3]
            colours = over_black(colours, (alpha >> 8).astype(np.uint8) if deep else alpha)
        return np.ascontiguousarray(colours)

    def _convert(self, frame: Any, name: str, *, width: int, height: int) -> Any:
        try:
            try:
                scaled = _reformat(self._reformatter, frame, name, width=width, height=height)
            except av.error.FFmpegError:
                if max(frame.width / width, frame.height / height) <= _STEEP:
                    raise
                # Too long a filter for one pass, as for 1 x 4000 pixels.
                self._first_pass = self._first_pass or VideoReformatter()
                halfway = _reformat(
                    self._first_pass,
                    frame,
                    name,
                    width=max(math.isqrt(frame.width * width), 1),
                    height=max(math.isqrt(frame.height * height), 1),
                )
                scaled = _reformat(self._reformatter, halfway, name, width=width, height=height)
        except MemoryError as error:
            raise VideoError("out_of_memory", "while converting to RGB") from error
        except av.error.FFmpegError as error:
            detail = f"pixels of the format {frame.format.name} cannot be converted"
            raise VideoError("unsupported_codec", detail) from error
        return scaled.to_ndarray()


def first_field(frame: Any) -> Any:
    """Of an interlaced frame the field that is displayed first, half as high; else the frame.

    The order of the fields is the frame's own flag, which only libavfilter reads. Pictures of an
    odd or tiny height, and RGB, are left woven. VideoError: as of `Scaler.scale`.
    """
    if (
        not frame.interlaced_frame
        or frame.height < _MIN_INTERLACED_HEIGHT
        or frame.height % 2
        or frame.format.is_rgb
    ):
        return frame
    try:
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
    except MemoryError as error:
        raise VideoError("out_of_memory", "while separating fields") from error
    except av.error.FFmpegError as error:
        detail = f"fields of the format {frame.format.name} cannot be separated"
        raise VideoError("unsupported_codec", detail) from error
    field.colorspace = _matrix(frame) or frame.colorspace  # its own height says another standard
    return field


def _reformat(
    reformatter: VideoReformatter, frame: Any, name: str, *, width: int, height: int
) -> Any:
    return reformatter.reformat(
        frame,
        width=width,
        height=height,
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
    if _is_wide(frame, _HDR.get(frame.color_trc, "sdr")):
        return Colorspace.BT2020
    # What players take for high definition.
    high = frame.width >= 1280 or frame.height > 576
    return Colorspace.ITU709 if high else Colorspace.ITU601


def _is_wide(frame: Any, transfer: Transfer) -> bool:
    if transfer != "sdr" and frame.color_primaries == _UNSPECIFIED:
        return True
    return bool(frame.color_primaries == ColorPrimaries.BT2020)


def _has_alpha(pixel_format: Any) -> bool:
    return pixel_format.has_palette or any(c.is_alpha for c in pixel_format.components)
