"""What can be said of pictures without a model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image, ImageFilter

from schemas.quality import (
    QUALITY_COLUMNS,
    Quality,
    blur_of,
    judge,
    loudness_of,
    quality_from,
)


def texture(seed=0, size=96):
    """A picture with edges of many sizes."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (size // 8, size // 8), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.NEAREST))


def plain(level, frames=4, size=32):
    return np.full((frames, size, size), level, dtype=np.uint8)


def test_a_black_clip():
    quality = judge(plain(0))
    assert (quality.brightness, quality.black, quality.static, quality.blur) == (0, 1, 1, 1)


def test_a_white_clip():
    quality = judge(plain(255))
    assert (quality.brightness, quality.black, quality.static) == (1, 0, 1)


def test_half_of_the_pixels_change():
    frames = plain(100, frames=2)
    frames[1, :16] += 5
    assert judge(frames).static == 0.5
    frames[1, :16] -= 1
    assert judge(frames).static == 1


def test_one_frame_says_nothing_of_motion():
    assert judge(plain(100, frames=1)).static is None


def test_blur_grows_with_the_radius():
    picture = Image.fromarray(texture())
    blurs = []
    for radius in (0, 1, 2, 4):
        blurred = picture.filter(ImageFilter.GaussianBlur(radius)) if radius else picture
        blurs.append(judge(np.asarray(blurred)[None]).blur)
    assert blurs == sorted(blurs)
    assert blurs[0] < 0.2
    assert blurs[-1] > 0.7


def test_blur_is_that_of_its_definition():
    """Crété-Roffet: a picture and its low-pass, their differences, how much of them goes."""
    luma = texture(1).astype(float)

    def along(picture):
        low = np.array([np.convolve(line, np.ones(9) / 9, "valid") for line in picture.T]).T
        edges = np.abs(np.diff(picture[4:-4], axis=0))
        taken = np.maximum(edges - np.abs(np.diff(low, axis=0)), 0)
        return (edges.sum() - taken.sum()) / edges.sum()

    expected = max(along(luma), along(luma.T))
    assert blur_of(texture(1)[None]) == pytest.approx(expected, abs=1e-9)


def test_motion_blur_along_one_direction_is_blur():
    smeared = texture().astype(float)
    smeared = sum(np.roll(smeared, shift, axis=1) for shift in range(9)) / 9
    assert judge(smeared.astype(np.uint8)[None]).blur > judge(texture()[None]).blur + 0.3


@given(arrays.arrays(np.uint8, st.tuples(*(st.integers(1, 14) for _ in range(3)))))
def test_all_are_in_their_ranges(frames):
    quality = judge(frames)
    assert 0 <= quality.brightness <= 1
    assert 0 <= quality.black <= 1
    assert 0 <= quality.blur <= 1
    assert (quality.static is None) == (len(frames) == 1)
    assert quality.static is None or 0 <= quality.static <= 1


def test_loudness_is_in_decibels_of_full_scale():
    assert loudness_of(1.0) == 0
    assert loudness_of(0.5) == pytest.approx(-3.0103, abs=1e-4)
    assert loudness_of(0.0) == -100


def test_a_row_gives_its_quality_back():
    quality = Quality(brightness=0.5, black=0.1, static=None, blur=0.3)
    row = {name: getattr(quality, name) for name in QUALITY_COLUMNS}
    assert quality_from(row) == quality
    assert quality_from(dict.fromkeys(QUALITY_COLUMNS)) is None
    assert quality_from({}) is None
