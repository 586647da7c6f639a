"""Storing features: exact areas, a scale a channel, there and back."""

import io
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from schemas.compact import (
    Stored,
    area_weights,
    decode_features,
    is_finite,
    pool_by_area,
    store_features,
)

shapes = st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12), st.integers(1, 9))
finite = st.floats(-1000, 1000, width=32)


def features(shape: tuple[int, ...], *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(size=st.integers(1, 40), data=st.data())
def test_weights_are_the_exact_parts_of_cells(size, data):
    to_size = data.draw(st.integers(1, size))
    step = Fraction(size, to_size)
    for i, row in enumerate(area_weights(size, to_size)):
        for j, weight in enumerate(row):
            covered = max(0, min((i + 1) * step, j + 1) - max(i * step, j)) / step
            assert weight == pytest.approx(float(covered), abs=1e-6)
            assert (weight == 0) == (covered == 0)


@given(size=st.integers(1, 40), data=st.data())
def test_every_cell_counts_as_much_as_every_other(size, data):
    weights = area_weights(size, data.draw(st.integers(1, size)))
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(weights.sum(axis=0), len(weights) / size, atol=1e-6)


def test_27_to_9_is_the_mean_of_3_by_3_cells():
    values = features((4, 27, 27, 5))
    expected = values.reshape(4, 9, 3, 9, 3, 5).mean(axis=(2, 4))
    np.testing.assert_allclose(pool_by_area(values, grid=(9, 9)), expected, atol=1e-6)


def test_27_to_8_is_the_mean_of_a_picture_eight_times_as_fine():
    values = features((2, 27, 27, 3))
    fine = values.astype(np.float64).repeat(8, axis=1).repeat(8, axis=2)
    expected = fine.reshape(2, 8, 27, 8, 27, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(pool_by_area(values, grid=(8, 8)), expected, atol=1e-6)


@given(shape=shapes, data=st.data())
def test_pooling_keeps_the_mean_and_what_is_constant(shape, data):
    grid = (data.draw(st.integers(1, shape[1])), data.draw(st.integers(1, shape[2])))
    values = features(shape)
    pooled = pool_by_area(values, grid=grid)
    assert pooled.shape == (shape[0], *grid, shape[3])
    assert pooled.dtype == np.float32
    np.testing.assert_allclose(
        pooled.mean(axis=(1, 2)), values.mean(axis=(1, 2)), rtol=1e-4, atol=1e-5
    )
    constant = np.full(shape, 3.0, np.float32)
    np.testing.assert_allclose(pool_by_area(constant, grid=grid), 3.0, rtol=1e-6)


@pytest.mark.parametrize("grid", [(5, 4), (4, 5), (0, 2)])
def test_a_finer_grid_is_refused(grid):
    with pytest.raises(ValueError, match="must be in"):
        pool_by_area(features((1, 4, 4, 2)), grid=grid)


@given(values=hnp.arrays(np.float32, shapes, elements=finite))
def test_int8_is_off_by_half_a_step_of_its_channel(values):
    stored = store_features(values, grid=(), dtype="int8")
    assert stored.values.dtype == np.int8
    assert stored.scale is not None
    assert stored.scale.dtype == np.float32
    assert stored.scale.shape == values.shape[3:]
    bound = stored.scale * 0.5 + np.abs(values).max() * 1e-6 + 1e-30
    assert (np.abs(stored.decode() - values) <= bound).all()
    assert np.abs(stored.values.astype(int)).max(initial=0) <= 127


@given(values=hnp.arrays(np.float32, shapes, elements=finite))
def test_what_was_int8_is_the_same_int8_again(values):
    stored = store_features(values, grid=(), dtype="int8")
    again = store_features(stored.decode(), grid=(), dtype="int8")
    assert np.array_equal(again.values, stored.values) or not np.all(
        stored.scale > 1e-30  # type: ignore[operator]
    )


@given(values=hnp.arrays(np.float32, shapes, elements=finite))
def test_float16_is_what_numpy_makes_of_it(values):
    stored = store_features(values, grid=(), dtype="float16")
    assert stored.scale is None
    assert np.array_equal(stored.values, values.astype(np.float16))
    assert np.array_equal(stored.decode(), values.astype(np.float16).astype(np.float32))


def test_a_few_large_channels_do_not_ruin_the_others():
    values = features((4, 8, 8, 64))
    values[..., :6] *= 300
    stored = store_features(values, grid=(), dtype="int8").decode()

    def errors(decoded: np.ndarray) -> np.ndarray:
        squares = ((decoded - values) ** 2).mean(axis=(0, 1, 2))
        return np.sqrt(squares / (values**2).mean(axis=(0, 1, 2)))

    assert errors(stored).max() < 0.011
    scale_a_token = np.abs(values).max(axis=-1, keepdims=True) / 127
    by_token = np.rint(values / scale_a_token) * scale_a_token
    assert errors(by_token)[6:].min() > 0.5


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("grid", [(), (2, 2)])
def test_what_is_not_finite_is_still_known_when_it_is_stored(dtype, bad, grid):
    values = features((2, 4, 4, 3))
    assert is_finite(store_features(values, grid=grid, dtype=dtype))
    values[1, 2, 3, 1] = bad
    with np.errstate(invalid="ignore"):
        assert not is_finite(store_features(values, grid=grid, dtype=dtype))


def test_int8_holds_what_float16_cannot():
    values = features((1, 2, 2, 3)) * 1e6
    assert not is_finite(store_features(values, grid=(), dtype="float16"))
    assert is_finite(store_features(values, grid=(), dtype="int8"))


def test_a_channel_of_zeros_stays_zero():
    values = features((1, 2, 2, 3))
    values[..., 1] = 0
    stored = store_features(values, grid=(), dtype="int8")
    assert (stored.decode()[..., 1] == 0).all()
    assert is_finite(stored)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("stored_as", ["int8", "float16"])
def test_features_are_decoded_into_a_buffer(dtype, stored_as):
    stored = store_features(features((2, 3, 3, 4)), grid=(), dtype=stored_as)
    out = np.full((2, 3, 3, 4), np.nan, dtype)
    assert decode_features(stored.values, stored.scale, out=out) is out
    np.testing.assert_allclose(out, stored.decode(), rtol=1e-3)


def test_stored_arrays_are_plain_npy():
    stored = store_features(features((1, 2, 2, 3)), grid=(), dtype="int8")
    buffer = io.BytesIO()
    np.save(buffer, stored.values, allow_pickle=False)
    assert isinstance(stored, Stored)
