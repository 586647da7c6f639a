"""The seeded random encoders: the same bytes everywhere, in any batch."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from encoders import Encoder, check_encoder, encoder_spec, load_encoder

GOLDEN = Path(__file__).parents[1] / "golden" / "projection.sha256"
NAMES = ("random-image", "random-video", "random-relu")


def pictures(name: str, *, num_clips: int = 1, num_frames: int = 4) -> np.ndarray:
    """The same pictures on every machine, without a random generator."""
    spec = encoder_spec(name)
    shape = (num_clips, num_frames, spec.height, spec.width, 3)
    numbers = np.arange(np.prod(shape), dtype=np.uint64)
    return (numbers * numbers % 251).astype(np.uint8).reshape(shape)


def test_features_of_fixed_pictures_are_the_golden_ones():
    lines = []
    for name in NAMES:
        features = load_encoder(name).encode(pictures(name, num_clips=2))
        lines.append(f"{hashlib.sha256(features.astype('<f4').tobytes()).hexdigest()}  {name}\n")
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text("".join(lines))
    assert "".join(lines) == GOLDEN.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_test_finds_nothing_wrong(name):
    assert check_encoder(load_encoder(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_clip_has_the_same_bytes_in_any_batch(name):
    encoder = load_encoder(name)
    frames = pictures(name, num_clips=5)
    together = encoder.encode(frames)
    for size in (1, 2, 3):
        parts = [encoder.encode(frames[i : i + size]) for i in range(0, 5, size)]
        assert np.concatenate(parts).tobytes() == together.tobytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_frames", [1, 2, 8])
def test_features_are_a_grid_a_frame(name, num_frames):
    spec = encoder_spec(name)
    features = load_encoder(name).encode(pictures(name, num_frames=num_frames))
    assert features.shape == (1, num_frames, *spec.grid, spec.dim)
    assert features.dtype == np.float32
    assert spec.num_grids(num_frames) == num_frames


@pytest.mark.parametrize("name", NAMES)
def test_features_fit_into_float16(name):
    encoder, spec = load_encoder(name), encoder_spec(name)
    for value in (0, 255):
        extreme = np.full((1, 2, spec.height, spec.width, 3), value, np.uint8)
        assert np.isfinite(encoder.encode(extreme).astype(np.float16)).all()
    # Worst case: every product has the same sign.
    side = spec.width // spec.grid[1]
    signs = encoder.matrix[:, 0].reshape(side, side, 3) > 0
    patch = np.where(signs, 255, 0).astype(np.uint8)
    frame = np.tile(patch, (spec.grid[0], spec.grid[1], 1))
    frames = np.stack([255 - frame, frame])[None]
    assert np.isfinite(encoder.encode(frames).astype(np.float16)).all()


def test_the_image_encoder_sees_each_frame_alone():
    frames = pictures("random-image")
    encoder = load_encoder("random-image")
    turned = encoder.encode(np.ascontiguousarray(frames[:, ::-1]))
    assert np.array_equal(turned[:, ::-1], encoder.encode(frames))


def test_the_rectified_encoder_is_the_positive_part_of_a_projection():
    encoder = load_encoder("random-relu")
    frames = pictures("random-relu")
    pixels = frames[0, 2, 8:16, 24:32].astype(np.float64) - 128
    expected = np.maximum(pixels.reshape(-1) @ encoder.matrix / 1024, 0)
    assert np.array_equal(encoder.encode(frames)[0, 2, 1, 3], expected)
    assert 0.3 < (expected > 0).mean() < 0.7


def test_the_video_encoder_sees_motion():
    frames = pictures("random-video")
    encoder = load_encoder("random-video")
    turned = encoder.encode(np.ascontiguousarray(frames[:, ::-1]))
    assert not np.array_equal(turned[:, ::-1], encoder.encode(frames))


def test_a_cell_depends_on_its_own_patch_only():
    encoder, frames = load_encoder("random-image"), pictures("random-image")
    changed = frames.copy()
    changed[0, 0, 16:32, 32:48] ^= 255
    differs = (encoder.encode(frames) != encoder.encode(changed)).any(axis=-1)
    assert np.argwhere(differs).tolist() == [[0, 0, 1, 2]]


@pytest.mark.parametrize("name", NAMES)
def test_encoding_leaves_the_pictures_alone(name):
    frames = pictures(name)
    frames.setflags(write=False)
    load_encoder(name).encode(frames)


@pytest.mark.parametrize("name", NAMES)
def test_the_spec_is_known_without_loading(name):
    spec = encoder_spec(name)
    assert isinstance(load_encoder(name), Encoder)
    assert load_encoder(name).spec == spec
    assert spec.stamp()["name"] == spec.name == name
