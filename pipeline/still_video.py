"""A picture as a video of one frame, so that it goes the way of a clip's frames to the bit.

An APNG of one frame: a PNG with two chunks more (https://www.w3.org/TR/png-3/, 11.3.6), which
the decoder process reads like any other video.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path

from PIL import Image, ImageOps

from schemas.errors import UsageError

MAX_BYTES = 256_000_000
"""Of the picture's file."""
_HEAD = 8 + 25
"""Bytes of a PNG's signature and its first chunk."""


def write_still(picture: Path, target: Path, *, max_pixels: int) -> None:
    """Write a picture of any format that Pillow reads: upright, in RGB, on black where it is clear.

    UsageError: it is no picture, cannot be read, or has more than `max_pixels` pixels.
    """
    data = io.BytesIO()
    image = _read(picture, max_pixels=max_pixels)
    image.save(data, format="PNG", compress_level=1)
    png = data.getvalue()
    size = struct.pack(">IIIII", 0, image.width, image.height, 0, 0)
    animation = _chunk(b"acTL", struct.pack(">II", 1, 1))
    frame = _chunk(b"fcTL", size + struct.pack(">HHBB", 1, 1, 0, 0))
    target.write_bytes(png[:_HEAD] + animation + frame + png[_HEAD:])


def _read(path: Path, *, max_pixels: int) -> Image.Image:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path}: a picture of more than {MAX_BYTES // 10**6} MB")
        with warnings.catch_warnings():
            # Its own limit, which only warns; ours comes before any pixel.
            warnings.simplefilter("ignore")
            with Image.open(path) as image:
                if image.width * image.height > max_pixels:
                    raise UsageError(
                        f"{path}: {image.width} x {image.height} is more than {max_pixels:,} pixels"
                    )
                upright = ImageOps.exif_transpose(image)
                if "A" in upright.getbands() or "transparency" in upright.info:
                    clear = upright.convert("RGBA")
                    black = Image.new("RGBA", clear.size, "black")
                    return Image.alpha_composite(black, clear).convert("RGB")
                return upright.convert("RGB")
    except Image.DecompressionBombError as error:
        raise UsageError(f"{path}: more than {max_pixels:,} pixels") from error
    except (OSError, ValueError, SyntaxError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a picture"
        raise UsageError(
            f"{path}: cannot be read: {why}", hint="--image takes one JPEG, PNG, WebP or the like"
        ) from error


def _chunk(kind: bytes, data: bytes) -> bytes:
    checked = kind + data
    return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))
