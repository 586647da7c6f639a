"""Colours of feature maps: the same every time, alike for alike cells, whatever the features."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline.feature_maps import LEVELS, colour_grids, encode_maps, principal_components

SHAPES = st.tuples(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 40)
)


def _clips(shape: tuple[int, ...], seed: int) -> list[tuple[np.ndarray, None]]:
    features = np.random.default_rng(seed).normal(size=shape).astype(np.float16)
    return [(clip, None) for clip in features]


@given(SHAPES, st.integers(0, 100))
def test_levels_are_in_range_and_the_same_every_time(
    shape: tuple[int, int, int, int, int], seed: int
) -> None:
    coloured = colour_grids(_clips(shape, seed))
    levels = coloured.levels
    means = np.stack([clip for clip, _ in _clips(shape, seed)]).astype(np.float32).mean(axis=(2, 3))
    assert np.allclose(coloured.means, means, atol=1e-5)
    assert levels.shape == (*shape[:4], 3)
    assert (levels < np.array(LEVELS)).all()
    assert np.array_equal(levels, colour_grids(_clips(shape, seed)).levels)
    image = Image.open(io.BytesIO(encode_maps(levels)))
    assert image.size == (shape[1] * shape[3], shape[0] * shape[2])


@given(st.integers(2, 60), st.integers(1, 60), st.integers(0, 100))
def test_components_are_those_of_the_singular_vectors(cells: int, dim: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).normal(size=(cells, dim)).astype(np.float32)
    matrix -= matrix.mean(axis=0)
    components = principal_components(matrix, most=3).astype(np.float64)
    assert np.allclose(components.T @ components, np.eye(components.shape[1]), atol=1e-4)
    _, sizes, vectors = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    for number in range(components.shape[1]):
        assert np.linalg.norm(matrix @ components[:, number]) == pytest.approx(
            sizes[number], abs=1e-3 * sizes[0]
        )
        assert components[np.abs(components[:, number]).argmax(), number] > 0
    if components.shape[1] and sizes[0] > 1.05 * (sizes[1] if len(sizes) > 1 else 0):
        assert abs(vectors[0] @ components[:, 0]) > 0.99


def test_alike_cells_have_one_colour_and_others_another() -> None:
    one, other = np.zeros((1, 2, 2, 8), np.float16), np.zeros((1, 2, 2, 8), np.float16)
    one[..., 0], other[..., 0] = 1, -1
    levels = colour_grids([(one, None), (other, None), (one, None)]).levels
    assert np.array_equal(levels[0], levels[2])
    assert len(np.unique(levels[0].reshape(-1, 3), axis=0)) == 1
    assert levels[0, 0, 0, 0, 0] > levels[1, 0, 0, 0, 0]


def test_int8_has_the_colours_of_what_it_stands_for() -> None:
    values = np.random.default_rng(0).integers(-127, 128, (2, 3, 3, 16), dtype=np.int8)
    scale = np.random.default_rng(1).random(16).astype(np.float32)
    plain = values.astype(np.float32) * scale
    one, other = colour_grids([(values, scale)]), colour_grids([(plain, None)])
    assert np.array_equal(one.levels, other.levels)


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_features_without_any_difference_are_grey(value: float) -> None:
    levels = colour_grids([(np.full((2, 3, 3, 4), value, np.float16), None)]).levels
    assert len(np.unique(levels.reshape(-1, 3), axis=0)) == 1
