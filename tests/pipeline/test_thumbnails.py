"""Thumbnails: vectors of pictures, which other sizes, bars and light leave alike."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline.cache import open_cache
from pipeline.layout import CacheLayout
from pipeline.thumbnails import SIDE, mirror, picture_vectors, read_thumbnails, shrink
from tests.pipeline.handmade import write_cache


def scenes(seed: int, *, num: int = 3) -> np.ndarray:
    """(num, SIDE, SIDE) pictures, coarse as those of a camera are."""
    small = np.random.default_rng(seed).integers(0, 256, size=(num, 8, 8), dtype=np.uint8)
    side = SIDE, SIDE
    return np.stack([np.asarray(Image.fromarray(one).resize(side)) for one in small])


def likeness(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (picture_vectors(a) * picture_vectors(b)).sum(axis=1)


@given(st.integers(0, 2**32 - 1))
def test_a_mirrored_vector_is_that_of_the_mirrored_picture(seed):
    pictures = scenes(seed)
    expected = picture_vectors(pictures[:, :, ::-1])
    np.testing.assert_allclose(mirror(picture_vectors(pictures)), expected, atol=2e-5)


@given(st.integers(0, 2**32 - 1), st.floats(0.4, 1.0), st.integers(0, 40))
def test_contrast_and_brightness_do_not_count(seed, contrast, brightness):
    pictures = scenes(seed)
    changed = np.clip(pictures * contrast + brightness, 0, 255).astype(np.uint8)
    assert likeness(pictures, changed).min() > 0.8
    np.testing.assert_allclose(np.linalg.norm(picture_vectors(pictures), axis=1), 1, rtol=1e-5)


@given(st.integers(0, 2**31), st.integers(1, 8), st.sampled_from([0, 1]))
def test_bars_are_cut_off(seed, bar, axis):
    pictures = np.maximum(scenes(seed), 60)
    inside = [SIDE, SIDE]
    inside[axis] -= 2 * bar
    barred = np.full_like(pictures, 3)
    place = [slice(None), slice(None), slice(None)]
    place[1 + axis] = slice(bar, SIDE - bar)
    barred[tuple(place)] = np.stack(
        [np.asarray(Image.fromarray(one).resize(tuple(reversed(inside)))) for one in pictures]
    )
    assert likeness(pictures, barred).min() > 0.9
    whole = np.concatenate([pictures[:1], barred[1:]])  # once there is a picture, it is no bar
    assert likeness(pictures, whole)[1:].max() < 0.9


def test_different_pictures_are_unlike():
    first, second = picture_vectors(scenes(1, num=40)), picture_vectors(scenes(2, num=40))
    assert np.abs(first @ second.T).mean() < 0.15


@pytest.mark.parametrize("level", [0, 16, 255])
def test_what_shows_nothing_is_like_nothing(level):
    blank = np.full((2, SIDE, SIDE), level, dtype=np.uint8)
    np.testing.assert_array_equal(picture_vectors(blank), 0)
    assert picture_vectors(blank[:0]).shape == (0, 256)


def jpeg(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def test_a_strip_is_cut_into_its_frames():
    pictures = scenes(3, num=4).repeat(2, axis=1).repeat(3, axis=2)
    strip = jpeg(np.concatenate(list(pictures), axis=1))
    found = shrink(strip, num_frames=4)
    assert found.shape == (4, SIDE, SIDE)
    assert likeness(found, scenes(3, num=4)).min() > 0.99


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", jpeg(np.zeros((8, 31, 3), np.uint8))])
def test_no_strip_is_black(data):
    assert shrink(data, num_frames=4).max() == 0


def test_they_are_kept_beside_the_cache_and_made_anew_if_damaged(tmp_path):
    layout = CacheLayout(tmp_path)
    write_cache(layout, [{"a": 2}, {"b": 3}])
    with open_cache(tmp_path) as cache:
        first = list(read_thumbnails(cache))
        assert [part.pictures.shape for part in first] == [(2, 4, SIDE, SIDE), (3, 4, SIDE, SIDE)]
        paths = sorted((tmp_path / "vectors" / "preview").iterdir())
        before = [path.read_bytes() for path in paths]
        paths[0].write_bytes(before[0][:50])
        told: list[int] = []
        assert len(list(read_thumbnails(cache, on_samples=told.append))) == 2
        assert ([path.read_bytes() for path in paths], told) == (before, [2, 3])
