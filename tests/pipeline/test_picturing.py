"""Sheets of previews, and how much frames and features change."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline.packing import encode_preview
from pipeline.picturing import HEIGHT, MOST_WIDTH, feature_changes, make_sheet, picture_changes


def _preview(levels: list[int], *, width: int = 80, height: int = HEIGHT) -> bytes:
    frames = [np.full((height, width, 3), level, np.uint8) for level in levels]
    return encode_preview(np.stack(frames))


def test_a_sheet_has_a_row_a_clip_and_a_column_a_frame() -> None:
    sheet = make_sheet([_preview([10, 60, 110]), None, _preview([160, 210, 250])], num_frames=3)
    assert sheet is not None
    assert sheet.there.tolist() == [True, False, True]
    with Image.open(io.BytesIO(sheet.encode())) as image:
        assert image.size == (3 * 80, 3 * HEIGHT)
        greys = [
            [image.convert("L").getpixel((80 * t + 40, HEIGHT * n + 32)) for t in range(3)]
            for n in range(3)
        ]
    assert greys == [
        [pytest.approx(level, abs=3) for level in row]
        for row in ([10, 60, 110], [0, 0, 0], [160, 210, 250])
    ]
    with Image.open(io.BytesIO(sheet.encode_one(2))) as small:
        assert small.size == (80, HEIGHT)


@pytest.mark.parametrize(
    ("width", "height", "wide"), [(20, 16, 80), (400, 100, MOST_WIDTH), (9, 128, 4)]
)
def test_pictures_are_brought_to_one_height(width: int, height: int, wide: int) -> None:
    sheet = make_sheet([_preview([50, 200], width=width, height=height)], num_frames=2)
    assert sheet is not None
    assert (sheet.frames.shape[2], sheet.width) == (HEIGHT, wide)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"GIF89a" + bytes(50), bytes(300)])
def test_what_is_no_picture_is_left_out(data: bytes) -> None:
    assert make_sheet([data], num_frames=4) is None
    assert make_sheet([None], num_frames=4) is None
    whole = _preview([1, 2, 3, 4])
    assert make_sheet([whole[: len(whole) // 4]], num_frames=4) is None
    assert make_sheet([_preview([1, 2, 3])], num_frames=4) is not None
    assert make_sheet([_preview([1, 2, 3], width=81)], num_frames=4) is None


def test_changes_of_pictures() -> None:
    frames = np.stack([np.full((4, 4, 3), level, np.uint8) for level in (0, 255, 255, 204)])
    assert picture_changes(frames) == pytest.approx([1, 0, 0.2], abs=1e-3)
    assert len(picture_changes(frames[:1])) == 0


@given(st.integers(1, 6), st.integers(0, 50))
def test_changes_of_features_are_one_less_the_cosine(num_grids: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(num_grids, 5)).astype(np.float32)
    changes = feature_changes(vectors)
    assert changes.shape == (num_grids - 1,)
    assert ((changes >= 0) & (changes <= 2 + 1e-6)).all()
    assert feature_changes(np.stack([vectors[0], vectors[0] * 3])) == pytest.approx([0], abs=1e-5)
    assert feature_changes(np.stack([vectors[0], -vectors[0]])) == pytest.approx([2], abs=1e-5)
    assert feature_changes(np.zeros((2, 5), np.float32)) == pytest.approx([0])
