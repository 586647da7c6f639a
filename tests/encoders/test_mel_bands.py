"""Loudness of bands as a sound encoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from encoders import check_sound_encoder, load_sound_encoder, sound_spec
from encoders.log_mel import log_mel
from schemas.errors import RecipeError
from schemas.recipe import EncoderSettings

NAME = "log-mel"


def tone(hz: float, *, start_seconds: int, end_seconds: int) -> np.ndarray:
    samples = np.zeros(30 * 16000, np.float32)
    heard = np.arange(start_seconds * 16000, end_seconds * 16000)
    samples[heard] = 0.3 * np.sin(2 * np.pi * hz * heard / 16000)
    return samples


def test_it_keeps_the_contract() -> None:
    assert check_sound_encoder(load_sound_encoder(NAME)) == []


def test_features_are_the_spectrogram_a_token_a_frame() -> None:
    samples = np.stack([tone(440, start_seconds=3, end_seconds=5)] * 2)
    features = load_sound_encoder(NAME).encode(samples)
    expected = log_mel(torch.from_numpy(samples[:1]), num_mels=80)[0].T.numpy()
    assert features.shape == (2, 30, 100, 80)
    assert np.array_equal(features[1].reshape(3000, 80), expected)


def test_a_tone_is_loud_in_its_windows_and_its_band() -> None:
    samples = np.stack([tone(hz, start_seconds=3, end_seconds=5) for hz in (300, 3000)])
    low, high = load_sound_encoder(NAME).encode(samples).mean(axis=2)
    loudness = low.max(axis=1)
    assert loudness[3:5].min() > loudness[np.r_[0:2, 6:30]].max() + 1
    assert low[3].argmax() < high[3].argmax()


def test_a_chunk_has_the_same_bytes_in_any_batch() -> None:
    rng = np.random.default_rng(0)
    samples = rng.uniform(-1, 1, size=(3, 480000)).astype(np.float32)
    encoder = load_sound_encoder(NAME)
    alone = np.concatenate([encoder.encode(one[None]) for one in samples])
    assert encoder.encode(samples).tobytes() == alone.tobytes()


def test_the_spec_is_known_without_loading_and_has_no_choices() -> None:
    assert load_sound_encoder(NAME).spec == sound_spec(NAME)
    assert sound_spec(NAME).stamp()["name"] == NAME
    with pytest.raises(RecipeError, match="has no choice of it"):
        sound_spec(EncoderSettings(encoder=NAME, weights="random"))
