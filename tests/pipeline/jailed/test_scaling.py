"""Colours, fields and sizes of frames, against the formulas in float64 of tests/colours.py."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pytest

from pipeline.jailed.scaling import Scaler, as_displayed
from schemas.errors import VideoError
from tests.clips import run_ffmpeg
from tests.colours import (
    TAGS,
    planes_of_rgb,
    resample,
    rgb_of_planes,
)
from tests.frames import (
    FULL,
    LIMITED,
    TRANSFER,
    UNSPECIFIED,
    assert_near,
    convert,
    make_frame,
    noisy_frame,
    read_frame,
    read_planes,
    scenery,
    woven,
)

SIZES = [(384, 384), (64, 48)]


@dataclass(frozen=True, kw_only=True)
class Real:
    """A corpus file, its colours as a person reads them off its headers, and allowed errors."""

    name: str
    matrix: str
    bits: int = 8
    full_range: bool = False
    chroma: str = "420"
    siting: str = "left"
    mean: float = 0.30
    largest: float = 2.0
    turns: int = 0
    """Quarter turns counter-clockwise that put the picture upright."""


REAL = [
    Real(name="bt709_full_range.mp4", matrix="bt709", full_range=True, largest=4),
    Real(name="h264_10bits.mp4", matrix="bt601", bits=10, largest=12),
    Real(name="h265_10bits.mp4", matrix="bt601", bits=10, largest=6),
    Real(name="bikes.mp4", matrix="bt601"),
    Real(name="water_bottle_drumming.mp4", matrix="bt601", full_range=True, siting="centre"),
    Real(name="cockatoo.mp4", matrix="bt709", chroma="444"),
    Real(name="mmaction_demo_skeleton.mp4", matrix="bt709"),
    # Its alpha is a second stream inside of each packet, which FFmpeg's decoder does not read.
    Real(name="transparent.webm", matrix="bt601", siting="centre"),
    # libswscale stretches 88 samples of chroma over 175 pixels, where they are of 176.
    Real(name="odd_175x143_carphone.webm", matrix="bt601", siting="centre", mean=1.0, largest=32),
    Real(name="video_0.mov", matrix="bt709"),
    Real(name="video_90.mov", matrix="bt709", turns=3),
    Real(name="video_180.mov", matrix="bt709", turns=2),
    Real(name="video_270.mov", matrix="bt709", turns=1),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("real", REAL, ids=lambda real: real.name)
def test_real_files(real: Real, size: tuple[int, int], corpus_dir: Path) -> None:
    frame = read_frame(corpus_dir / real.name, 2)
    expected = rgb_of_planes(
        read_planes(frame, bits=real.bits),
        size=size[::-1] if real.turns % 2 else size,
        matrix=real.matrix,
        full_range=real.full_range,
        bits=real.bits,
        chroma=real.chroma,
        siting=real.siting,
    )
    expected = np.rot90(expected, k=real.turns)
    assert_near(convert(frame, size), expected, mean=real.mean, largest=real.largest)


@pytest.mark.parametrize("bits", [8, 10, 12])
@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", ["bt601", "bt709", "bt2020"])
def test_matrix_range_and_depth(matrix: str, full_range: bool, bits: int) -> None:
    rgb = scenery(96, 64)
    planes = planes_of_rgb(rgb, matrix=matrix, full_range=full_range, bits=bits)
    frame = make_frame(
        planes,
        "yuv444p" if bits == 8 else f"yuv444p{bits}le",
        colorspace=TAGS[matrix],
        color_range=FULL if full_range else LIMITED,
    )
    # libswscale takes 255/256 for full range in all depths: up to 0.75 too dark at 10 and 12 bits.
    coarse = 0.55 if bits == 8 or full_range else 0.30
    assert_near(convert(frame, (96, 64)), rgb, mean=coarse, largest=2.5)
    small = resample(rgb, (40, 24)).clip(0, 1)
    assert_near(convert(frame, (40, 24)), small, mean=coarse, largest=2.5)


@pytest.mark.parametrize(
    ("width", "height", "matrix"),
    [(1280, 64, "bt709"), (64, 578, "bt709"), (1278, 64, "bt601"), (64, 576, "bt601")],
)
def test_an_unspecified_matrix_is_that_of_players(width: int, height: int, matrix: str) -> None:
    rgb = scenery(width, height)
    planes = planes_of_rgb(rgb, matrix=matrix, full_range=False, bits=8)
    frame = make_frame(planes, "yuv444p", colorspace=UNSPECIFIED)
    assert_near(convert(frame, (64, 64)), resample(rgb, (64, 64)).clip(0, 1), mean=0.6, largest=2.5)


def test_an_unspecified_range_is_limited_but_not_of_yuvj() -> None:
    rgb = scenery(96, 64)
    for name, full_range in (("yuv444p", False), ("yuvj444p", True)):
        planes = planes_of_rgb(rgb, matrix="bt601", full_range=full_range, bits=8)
        frame = make_frame(planes, name, color_range=0, colorspace=UNSPECIFIED)
        assert_near(convert(frame, (96, 64)), rgb, mean=0.6, largest=2.5)


@pytest.mark.parametrize("matrix", [3, 10, 12, 13, 14, 15])
def test_a_matrix_without_a_conversion_is_refused(matrix: int) -> None:
    frame = make_frame([np.full((64, 64), 99, np.uint8)] * 3, "yuv444p", colorspace=matrix)
    with pytest.raises(VideoError) as caught:
        convert(frame, (32, 32))
    assert caught.value.reason == "unsupported_codec"


@pytest.mark.parametrize("name", ["rgb24", "rgb48le"])
def test_a_picture_without_alpha_is_like_an_opaque_one(name: str) -> None:
    kind = np.dtype(np.uint8 if name == "rgb24" else "<u2")
    top = np.iinfo(kind).max
    rgb = (scenery(96, 64) * top).round().astype(kind)
    opaque = np.concatenate([rgb, np.full((64, 96, 1), top, kind)], axis=2)
    for size in ((96, 64), (40, 24), (200, 100)):
        plain = convert(make_frame([rgb], name), size)
        with_alpha = convert(
            make_frame(
                [opaque],
                name.replace("rgb", "rgba").replace("rgba24", "rgba").replace("rgba48", "rgba64"),
            ),
            size,
        )
        assert np.abs(plain.astype(int) - with_alpha).max() <= 1
        assert_near(plain, resample(rgb / top, size).clip(0, 1), mean=0.6, largest=3)


@pytest.mark.parametrize(("order", "level"), [("tff", 255), ("bff", 0)])
def test_of_an_interlaced_frame_the_first_field_is_seen(
    order: str, level: int, tmp_path: Path
) -> None:
    frame = woven(tmp_path, order=order)
    assert frame.interlaced_frame
    for size in ((96, 64), (32, 32)):
        picture = convert(frame, size)
        assert np.abs(picture.astype(int) - level).max() <= 3
    assert frame.height == 64


def test_a_progressive_frame_is_left_whole(tmp_path: Path) -> None:
    frame = woven(tmp_path, order="prog")
    assert not frame.interlaced_frame
    assert as_displayed(frame) is frame
    assert {level // 128 for level in convert(frame, (96, 64))[:, 40, 1].tolist()} == {0, 1}


def test_a_real_interlaced_file(corpus_dir: Path) -> None:
    frame = read_frame(corpus_dir / "fixture-raw.mts", 8)
    assert frame.interlaced_frame
    top = [plane[::2] for plane in read_planes(frame, bits=8)]
    expected = rgb_of_planes(top, size=(96, 64), matrix="bt709", full_range=False, bits=8)
    assert_near(convert(frame, (96, 64)), expected, mean=0.3, largest=2)


@pytest.mark.parametrize("size", [(384, 384), (48, 48), (1, 1), (1, 64), (256, 64)])
@pytest.mark.parametrize(
    ("width", "height"),
    [(1, 1), (1, 2), (2, 1), (3, 5), (17, 1), (1, 4000), (4000, 1), (8190, 3), (5, 8191)],
)
@pytest.mark.parametrize("name", ["yuv420p", "yuv444p", "yuv420p10le", "gray", "rgba", "nv12"])
def test_sizes_of_every_kind(name: str, width: int, height: int, size: tuple[int, int]) -> None:
    frame = av.VideoFrame(width, height, name)
    for plane in frame.planes:
        plane.update(bytes([128, 0] * plane.buffer_size)[: plane.buffer_size])
    picture = convert(frame, size)
    assert picture.shape == (size[1], size[0], 3)
    for transfer in TRANSFER.values():
        frame.color_trc = transfer
        assert convert(frame, size).shape == picture.shape


@pytest.mark.parametrize("name", ["yuv444p", "gray", "gray10le", "rgb24"])
def test_an_even_picture_stays_even_at_any_size(name: str) -> None:
    for width, height in ((1, 1), (1, 4000), (175, 143), (4000, 1)):
        frame = av.VideoFrame(width, height, name)
        for plane in frame.planes:
            fill = b"\x00\x02" if name == "gray10le" else b"\x80"
            plane.update(fill * (plane.buffer_size // len(fill)))
        for size in ((384, 384), (48, 48), (256, 64)):
            assert np.ptp(convert(frame, size)) <= 1


@pytest.mark.parametrize("size", [(175, 143), (384, 384), (64, 48), (1, 1)])
@pytest.mark.parametrize(
    "name", ["yuv420p", "yuvj422p", "yuv444p", "nv12", "yuyv422", "gray", "yuv420p10le", "p010le"]
)
def test_by_way_of_planes_the_bytes_are_those_of_the_packed_formats(
    name: str, size: tuple[int, int]
) -> None:
    frame = noisy_frame(name, 175, 143)
    for packed, planar in (("rgb24", "gbrp"), ("rgb48le", "gbrp16le")):
        one, other = (Scaler()._scale(frame, target, size) for target in (packed, planar))
        assert np.array_equal(one, other)


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p10le", "rgba", "yuvj444p", "nv12"])
@pytest.mark.parametrize("size", ["384:384", "64:48", "200:150"])
def test_the_scaler_gives_the_same_bytes_without_vector_instructions(
    pixel_format: str, size: str
) -> None:
    """Of libswscale in another build than PyAV's, which cannot be told to leave them out."""
    flags = "flags=bicubic+accurate_rnd+bitexact+full_chroma_int+full_chroma_inp"
    for target in ("rgb24", "rgb48le", "rgba", "rgba64le", "gbrp", "gbrp16le"):
        outputs = {
            run_ffmpeg(
                *cpu,
                *("-f", "lavfi", "-i", "testsrc2=size=176x144:rate=5:duration=1"),
                *(
                    "-vf",
                    f"scale={flags},format={pixel_format},scale={size}:{flags},format={target}",
                ),
                *("-f", "rawvideo", "pipe:1"),
            )
            for cpu in ((), ("-cpuflags", "0"))
        }
        assert len(outputs) == 1
        assert len(outputs.pop()) > 0


def test_pyavs_own_scaler_gives_the_same_bytes_without_vector_instructions() -> None:
    """Through a switch of the library that PyAV's wheel brings."""
    libraries = list(Path(av.__file__).parents[1].glob("av.libs/libavutil*"))
    if not libraries:
        pytest.skip("PyAV is not from a wheel: its libavutil is elsewhere")
    libavutil = ctypes.CDLL(str(libraries[0]))
    names = ("yuv420p", "yuvj422p", "nv12", "yuyv422", "gray", "rgb24", "bgra", "yuva420p")
    for name in (*names, "yuv420p10le"):
        frame = noisy_frame(name, 175, 143)
        for transfer in (UNSPECIFIED, *TRANSFER.values()):
            frame.color_trc = transfer
            for size in ((384, 384), (64, 48), (175, 143)):
                fast = convert(frame, size)
                libavutil.av_force_cpu_flags(0)
                try:
                    slow = convert(frame, size)
                finally:
                    libavutil.av_force_cpu_flags(-1)
                assert np.array_equal(fast, slow)
