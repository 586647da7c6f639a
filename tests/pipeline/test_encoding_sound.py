"""Tokens of a chunk as they are stored, and silence."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from encoders import Runtime, SoundSpec
from pipeline import encoding_sound
from pipeline.encoding_sound import ChunkEncoder, pool_tokens
from schemas.errors import VideoError
from schemas.recipe import AudioSpec

SPEC = SoundSpec(
    name="ramp",
    rate=10,
    num_windows=3,
    tokens_per_window=4,
    dim=2,
    architecture="ramp",
    preprocessing="none",
)


class Ramp:
    """Each token is its own number, plus the loudest sample."""

    def __init__(self, spec: SoundSpec = SPEC) -> None:
        self.spec = spec
        self.calls: list[np.ndarray] = []

    def encode(self, samples_NS: np.ndarray) -> np.ndarray:
        self.calls.append(samples_NS)
        tokens = np.arange(12, dtype=np.float32).reshape(1, 3, 4, 1)
        return np.repeat(tokens + samples_NS.max(), 2, axis=3)


@pytest.fixture
def ramp() -> Ramp:
    return Ramp()


@pytest.fixture
def encoder(ramp: Ramp, monkeypatch: pytest.MonkeyPatch) -> ChunkEncoder:
    monkeypatch.setattr(encoding_sound, "load_sound_encoder", lambda *_, **__: ramp)
    settings = AudioSpec(encoder="ramp", tokens_per_window=2)
    return ChunkEncoder(settings, runtime=Runtime(), turn=contextlib.nullcontext())


def test_equal_runs_of_tokens_are_averaged(encoder: ChunkEncoder) -> None:
    tokens = encoder.encode(np.zeros(30, np.float32))
    assert (tokens.shape, tokens.dtype) == ((3, 2, 2), np.float16)
    assert tokens[:, :, 0].tolist() == [[0.5, 2.5], [4.5, 6.5], [8.5, 10.5]]


@pytest.mark.parametrize("num_tokens", [1, 2, 5, 10, 25, 50])
def test_tokens_are_averaged_in_float32(num_tokens: int) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(4, 50, 8)).astype(np.float32)
    runs = np.split(features.astype(np.float64), num_tokens, axis=1)
    expected = np.stack([run.mean(axis=1) for run in runs], axis=1)
    found = pool_tokens(features, num_tokens=num_tokens)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)
    if num_tokens == 50:
        assert np.array_equal(found, features.astype(np.float16))


def test_silence_is_encoded_once(encoder: ChunkEncoder, ramp: Ramp) -> None:
    first = encoder.silence()
    assert encoder.silence() is first
    (samples,) = ramp.calls
    assert (samples.shape, samples.dtype, samples.any()) == ((1, 30), np.float32, False)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_what_float16_does_not_hold_costs_the_video(encoder: ChunkEncoder, value: float) -> None:
    with pytest.raises(VideoError) as caught:
        encoder.encode(np.full(30, value, np.float32))
    assert (caught.value.reason, caught.value.detail) == ("non_finite", "its sound")


def test_an_encoder_of_the_wrong_shape_is_a_bug(encoder: ChunkEncoder, ramp: Ramp) -> None:
    ramp.spec = replace(SPEC, dim=3)
    with pytest.raises(TypeError, match="expected"):
        encoder.encode(np.zeros(30, np.float32))


def test_its_turn_is_held_while_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[Any] = []

    class Turning(contextlib.AbstractContextManager[object]):
        def __enter__(self) -> None:
            turns.append("begin")

        def __exit__(self, *_: object) -> None:
            turns.append("end")

    class Telling(Ramp):
        def encode(self, samples_NS: np.ndarray) -> np.ndarray:
            turns.append("encode")
            return super().encode(samples_NS)

    monkeypatch.setattr(encoding_sound, "load_sound_encoder", lambda *_, **__: Telling())
    settings = AudioSpec(encoder="ramp", tokens_per_window=2)
    ChunkEncoder(settings, runtime=Runtime(), turn=Turning()).encode(np.zeros(30, np.float32))
    assert turns == ["begin", "encode", "end"]
