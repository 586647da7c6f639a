"""Frames for the tests of pixels: real, synthetic, high in dynamic range, interlaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from pipeline.jailed.pixels import Converter
from schemas.resize import PictureSpec
from tests.clips import run_ffmpeg
from tests.colours import Floats, planes_of_rgb, resample

Picture = npt.NDArray[np.uint8]

UNSPECIFIED, LIMITED, FULL = 2, 1, 2
"""Matrix, primaries or transfer; ranges."""
TRANSFER = {"pq": 16, "hlg": 18}


def convert(frame: Any, size: tuple[int, int], *, sample_aspect: float = 1.0) -> Picture:
    picture = PictureSpec(width=size[0], height=size[1])
    converter = Converter(pictures={"image": picture}, preview_height=None)
    return converter.convert(frame, sample_aspect=sample_aspect).frames["image"]


def read_frame(path: Path, number: int) -> Any:
    with av.open(str(path)) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if index == number:
                return frame
    raise AssertionError(f"{path} has no frame {number}")


def make_frame(planes: list[npt.NDArray[Any]], pixel_format: str, **tags: int) -> Any:
    """A frame of the given planes, as wide as the bytes of their rows; tags as of `VideoFrame`."""
    height, width = planes[0].shape[:2]
    frame = av.VideoFrame(width, height, pixel_format)
    for plane, values in zip(frame.planes, planes, strict=True):
        rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
        padded = np.zeros((plane.height, plane.line_size), np.uint8)
        padded[:, : rows.shape[1]] = rows
        plane.update(padded.tobytes().ljust(plane.buffer_size, b"\0"))
    for name, value in tags.items():
        setattr(frame, name, value)
    return frame


def noisy_frame(name: str, width: int, height: int) -> Any:
    """Any code value that the format has, in every place."""
    frame = av.VideoFrame(width, height, name)
    noise = np.random.default_rng(0)
    for plane in frame.planes:
        values = noise.integers(0, 256, plane.buffer_size, np.uint8)
        if "10" in name:
            codes = values.view("<u2")
            codes &= 0xFFC0
            if name != "p010le":  # whose ten bits lie at the top
                codes >>= 6
        plane.update(values.tobytes())
    return frame


def read_planes(frame: Any, *, bits: int) -> list[Floats]:
    """Code values of the planes of a planar frame."""
    dtype = np.dtype(np.uint8 if bits == 8 else "<u2")
    planes = []
    for plane in frame.planes:
        rows = np.frombuffer(plane, np.uint8)[: plane.line_size * plane.height]
        rows = rows.reshape(plane.height, plane.line_size)[:, : plane.width * dtype.itemsize]
        planes.append(np.ascontiguousarray(rows).view(dtype).astype(np.float64))
    return planes


def assert_near(got: Picture, expected: Floats, *, mean: float, largest: float) -> None:
    """Errors in levels of 255; rounding alone has a mean of 0.25 and at most 0.5."""
    assert got.dtype == np.uint8
    assert got.flags.c_contiguous
    assert got.shape == expected.shape
    error = np.abs(got - expected * 255)
    assert error.mean() <= mean
    assert error.max() <= largest


def grey_ramp(num: int = 256) -> Floats:
    """(8, num, 3) from black to white."""
    return np.broadcast_to(np.linspace(0, 1, num)[None, :, None], (8, num, 3)).copy()


def scenery(width: int, height: int, *, seed: int = 0) -> Floats:
    """(H, W, 3) in [0, 1]: soft coloured blobs that use all of the range."""
    small = np.random.default_rng(seed).random((5, 7, 3))
    return resample(small, (width, height)).clip(0, 1)


def hdr_frame(signal: Floats, transfer: str, **tags: int) -> Any:
    planes = planes_of_rgb(signal, matrix="bt2020", full_range=False, bits=10)
    wide = {"colorspace": 9, "color_primaries": 9, "color_range": LIMITED}
    return make_frame(planes, "yuv444p10le", **(wide | {"color_trc": TRANSFER[transfer]} | tags))


def woven(folder: Path, *, order: str, height: int = 64) -> Any:
    """An interlaced frame whose top field is white and whose bottom field is black."""
    rows = np.where(np.arange(height) % 2 == 0, 235, 16).astype(np.uint8)
    luma = np.repeat(rows, 96)
    raw = luma.tobytes() + bytes([128]) * (96 * height // 2)
    path = folder / f"{order}.ts"
    run_ffmpeg(
        *("-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", f"96x{height}", "-r", "25", "-i", "-"),
        *("-vf", f"setfield={order}", "-c:v", "mpeg2video", "-q:v", "1"),
        *(("-flags", "+ildct+ilme") if order != "prog" else ()),
        path,
        stdin=raw * 5,
    )
    return read_frame(path, 2)
