"""The encoder of motion: its sign is the direction, still pictures cancel, bytes are exact."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoders import Encoder, check_encoder, encoder_spec, load_encoder
from encoders.motion import AXES, CELL, DISTANCES, SIZE
from schemas.errors import RecipeError
from schemas.recipe import EncoderSettings

NAME = "motion-energy"
DIGEST = "6a709782d0c63fcb"
"""Begin of the sha256 of the features of fixed pictures."""


def pictures(*, num_clips: int = 1, num_frames: int = 4) -> np.ndarray:
    """The same on every machine, without a random generator."""
    shape = (num_clips, num_frames, SIZE, SIZE, 3)
    numbers = np.arange(np.prod(shape), dtype=np.uint64)
    return (numbers * numbers % 251).astype(np.uint8).reshape(shape)


def moving(dx: int, dy: int, *, brightness: int = 220, ground: int = 60) -> np.ndarray:
    """(1, 3, SIZE, SIZE, 3): a square of 8 pixels that moves so far between frames."""
    frames = np.full((1, 3, SIZE, SIZE, 3), ground, np.uint8)
    for t in range(3):
        y, x = 12 + dy * (t - 1), 12 + dx * (t - 1)
        frames[0, t, y : y + 8, x : x + 8] = brightness
    return frames


def total(frames: np.ndarray) -> np.ndarray:
    """(axes, distances): over all frames and cells."""
    features = load_encoder(NAME).encode(frames)
    return features.sum(axis=(0, 1, 2, 3)).reshape(len(AXES), len(DISTANCES))


def test_the_contract_test_finds_nothing_wrong() -> None:
    assert check_encoder(load_encoder(NAME)) == []


def test_a_clip_has_the_same_bytes_in_any_batch() -> None:
    encoder, frames = load_encoder(NAME), pictures(num_clips=5)
    together = encoder.encode(frames)
    for size in (1, 2, 3):
        parts = [encoder.encode(frames[i : i + size]) for i in range(0, 5, size)]
        assert np.concatenate(parts).tobytes() == together.tobytes()


def test_features_of_fixed_pictures_never_change() -> None:
    features = load_encoder(NAME).encode(pictures(num_clips=2))
    assert hashlib.sha256(features.astype("<f4").tobytes()).hexdigest().startswith(DIGEST)


@pytest.mark.parametrize("num_frames", [1, 2, 8])
def test_features_are_a_grid_a_frame_and_the_first_is_zero(num_frames: int) -> None:
    spec = encoder_spec(NAME)
    features = load_encoder(NAME).encode(pictures(num_frames=num_frames))
    assert features.shape == (1, num_frames, *spec.grid, spec.dim)
    assert features.dtype == np.float32
    assert not features[:, 0].any()
    assert features[:, 1:].any() == (num_frames > 1)


def test_features_are_those_of_the_formula() -> None:
    frames = pictures(num_frames=2)
    light = frames[0].astype(np.int64)
    light = (light - light.sum(axis=(1, 2), keepdims=True) // SIZE**2) >> 1
    channel = AXES.index((1, -1)) * len(DISTANCES) + DISTANCES.index(4)
    cells = np.zeros((4, 4), np.int64)
    for y in range(4, SIZE):
        for x in range(SIZE - 4):
            near, far = light[:, y, x], light[:, y - 4, x + 4]
            middle = (y - 2) // CELL, (x + 2) // CELL
            cells[middle] += (near[0] * far[1] - far[0] * near[1]).sum()
    expected = np.sign(cells) * np.sqrt(np.abs(cells)) / 256
    found = load_encoder(NAME).encode(frames)[0, 1, :, :, channel]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_what_does_not_move_cancels_to_the_bit() -> None:
    still = np.repeat(pictures(num_frames=1), 4, axis=1)
    assert not load_encoder(NAME).encode(still).any()


@given(step=st.integers(2, 8), brightness=st.sampled_from([0, 130, 255]))
def test_the_sign_is_the_direction_of_what_is_bright_or_dark(step: int, brightness: int) -> None:
    right, left = (total(moving(dx, 0, brightness=brightness, ground=70)) for dx in (step, -step))
    down, up = (total(moving(0, dy, brightness=brightness, ground=70)) for dy in (step, -step))
    assert (right[0].sum() > 0) and (left[0].sum() < 0)
    assert (down[1].sum() > 0) and (up[1].sum() < 0)
    # Along the axis of motion is more than across.
    assert abs(right[0].sum()) > 3 * abs(right[1].sum())
    assert abs(down[1].sum()) > 3 * abs(down[0].sum())


@pytest.mark.parametrize(("dx", "dy", "axis", "sign"), [(4, 4, 2, 1), (-4, 4, 3, -1)])
def test_diagonals_have_axes_of_their_own(dx: int, dy: int, axis: int, sign: int) -> None:
    along = total(moving(dx, dy)).sum(axis=1)
    assert np.abs(along).argmax() == axis
    assert np.sign(along[axis]) == sign


@given(seed=st.integers(0, 2**32 - 1))
def test_time_backwards_turns_every_sign(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (1, 2, SIZE, SIZE, 3), dtype=np.uint8)
    encoder = load_encoder(NAME)
    backwards = encoder.encode(np.ascontiguousarray(frames[:, ::-1]))
    assert np.array_equal(backwards[:, 1], -encoder.encode(frames)[:, 1])


def test_features_fit_into_float16_and_sums_into_float32() -> None:
    # The strongest motion: a grating of full contrast that moves by a quarter of its period.
    stripes = np.where(np.arange(SIZE + 1) % 4 < 2, 255, 0).astype(np.uint8)
    frames = np.zeros((1, 2, SIZE, SIZE, 3), np.uint8)
    frames[0, 0], frames[0, 1] = stripes[:SIZE, None], stripes[1:, None]
    features = load_encoder(NAME).encode(frames)
    assert np.isfinite(features.astype(np.float16)).all()
    assert 3 < np.abs(features).max() < 2.0**12 / 256


def test_encoding_leaves_the_pictures_alone() -> None:
    frames = pictures()
    frames.setflags(write=False)
    load_encoder(NAME).encode(frames)


def test_the_spec_is_known_without_loading_and_has_no_choices() -> None:
    spec = encoder_spec(NAME)
    assert isinstance(load_encoder(NAME), Encoder)
    assert load_encoder(NAME).spec == spec
    assert spec.stamp()["name"] == spec.name == NAME
    with pytest.raises(RecipeError, match="has no choice of it"):
        encoder_spec(EncoderSettings(encoder=NAME, layer=-2))
