"""Our log-mel spectrograms are those of transformers' extractor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from encoders.log_mel import N_FFT, RATE, log_mel, mel_filters

SECONDS = 30


def chunk(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    seconds = np.arange(SECONDS * RATE) / RATE
    sounds = {
        "noise": rng.uniform(-1, 1, size=len(seconds)),
        "chirp": 0.5 * np.sin(2 * np.pi * (100 + 120 * seconds) * seconds),
        "quiet": rng.uniform(-1e-4, 1e-4, size=len(seconds)),
        "silence": np.zeros(len(seconds)),
        "half": np.where(seconds < SECONDS / 2, np.sin(2 * np.pi * 440 * seconds), 0),
        "clipped": np.sign(np.sin(2 * np.pi * 97 * seconds)),
    }
    return sounds[kind].astype(np.float32)


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("kind", ["noise", "chirp", "quiet", "silence", "half", "clipped"])
def test_they_are_those_of_the_extractor_that_whisper_comes_with(kind, num_mels):
    from transformers import WhisperFeatureExtractor

    samples = chunk(kind)
    extractor = WhisperFeatureExtractor(feature_size=num_mels)
    expected = extractor(samples, sampling_rate=RATE, return_tensors="np").input_features
    found = log_mel(torch.from_numpy(samples)[None], num_mels=num_mels).numpy()
    assert found.shape == expected.shape == (1, num_mels, 3000)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_mels", [80, 128])
def test_the_filters_are_those_of_slaney(num_mels):
    from transformers.audio_utils import mel_filter_bank

    expected = mel_filter_bank(
        num_frequency_bins=N_FFT // 2 + 1,
        num_mel_filters=num_mels,
        min_frequency=0.0,
        max_frequency=RATE / 2,
        sampling_rate=RATE,
        norm="slaney",
        mel_scale="slaney",
    )
    np.testing.assert_allclose(mel_filters(num_mels), expected.T, rtol=1e-6, atol=1e-9)


def test_a_chunk_does_not_depend_on_the_others():
    both = torch.from_numpy(np.stack([chunk("half"), chunk("noise")]))
    together = log_mel(both, num_mels=80)
    torch.testing.assert_close(together[:1], log_mel(both[:1], num_mels=80), rtol=0, atol=1e-6)


def test_a_tone_is_loudest_at_its_place_and_silence_is_flat():
    mels = log_mel(torch.from_numpy(chunk("half"))[None], num_mels=80)[0]
    peak = mel_filters(80)[mels[:, 700].argmax()].argmax() * RATE / N_FFT
    assert abs(peak - 440) <= RATE / N_FFT
    assert mels[:, 2000:].unique().numel() == 1  # all at the floor of this chunk
    silence = log_mel(torch.from_numpy(chunk("silence"))[None], num_mels=80)
    assert silence.unique().tolist() == [-1.5]
