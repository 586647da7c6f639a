"""Frames to upright pictures at every size that is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.jailed.pixels import Converter, Pictures
from schemas.resize import PictureSpec, ResizeSpec
from tests.colours import (
    nits_of_hlg,
    planes_of_rgb,
    rgb_of_planes,
    srgb_of_nits,
)
from tests.frames import (
    FULL,
    TRANSFER,
    Picture,
    assert_near,
    convert,
    hdr_frame,
    make_frame,
    read_frame,
    read_planes,
    scenery,
    woven,
)


def test_a_real_hdr_file(corpus_dir: Path) -> None:
    """It is dark all through: the picture is black, upright, and its signal is not."""
    frame = read_frame(corpus_dir / "rails_rotated_hdr_video.mov", 8)
    assert frame.color_trc == TRANSFER["hlg"]
    planes = read_planes(frame, bits=10)
    signal = rgb_of_planes(planes, size=(64, 36), matrix="bt2020", full_range=False, bits=10)
    expected = np.rot90(srgb_of_nits(nits_of_hlg(signal)), k=-1)
    assert_near(convert(frame, (36, 64)), expected, mean=0.3, largest=1)
    pictures = Converter(pictures={}, preview_height=64).convert(frame, sample_aspect=1.0)
    assert pictures.preview is not None
    assert pictures.preview.shape == (64, 36, 3)


def test_a_turned_file_is_like_the_one_with_turned_pixels(corpus_dir: Path) -> None:
    turned = convert(read_frame(corpus_dir / "rails_rotated_video.mp4", 8), (48, 64))
    baked = convert(read_frame(corpus_dir / "portrait_baked_rails.mp4", 8), (48, 64))
    assert np.abs(turned.astype(int) - baked).mean() < 3


@pytest.mark.parametrize("sample_aspect", [1e-9, 1e9, 0.5, 2.0])
def test_pixels_of_any_shape(sample_aspect: float) -> None:
    frame = make_frame([np.zeros((64, 96), np.uint8)], "gray")
    converter = Converter(pictures={"image": PictureSpec(width=32, height=32)}, preview_height=64)
    pictures = converter.convert(frame, sample_aspect=sample_aspect)
    assert pictures.preview is not None
    assert pictures.preview.shape[0] == 64
    assert 1 <= pictures.preview.shape[1] <= 256


def test_a_video_of_changing_frames_is_as_each_frame_alone(tmp_path: Path) -> None:
    grey = (scenery(40, 30)[..., 0] * 255).astype(np.uint8)
    frames = [
        make_frame([grey], "gray"),
        hdr_frame(scenery(96, 64), "pq"),
        woven(tmp_path, order="tff"),
        make_frame(
            planes_of_rgb(scenery(64, 96), matrix="bt709", full_range=True, bits=8),
            "yuv444p",
            colorspace=1,
            color_range=FULL,
        ),
        make_frame([np.dstack([grey] * 4)], "rgba"),
        hdr_frame(scenery(96, 64), "hlg"),
    ]
    specs = {
        "image": PictureSpec(width=48, height=40),
        "video": PictureSpec(width=48, height=40),
        "large": PictureSpec(width=96, height=96),
        "own": PictureSpec(width=48, height=40, resize=ResizeSpec(library="pillow")),
    }
    converter = Converter(pictures=specs, preview_height=32)

    def members(pictures: Pictures) -> list[Picture]:
        assert pictures.preview is not None
        return [*pictures.frames.values(), pictures.preview]

    together = [converter.convert(frame, sample_aspect=1.0) for frame in [*frames, *frames]]
    for frame, pictures in zip([*frames, *frames], together, strict=True):
        alone = Converter(pictures=specs, preview_height=32).convert(frame, sample_aspect=1.0)
        for one, other in zip(members(pictures), members(alone), strict=True):
            assert np.array_equal(one, other)
