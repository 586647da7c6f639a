"""Silero VAD over sound that comes piece by piece."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from encoders.voice import RATE, VoiceDetector
from tests.voices import voice

silero_vad = pytest.importorskip("silero_vad", reason="silero-vad is not installed")


@pytest.fixture(scope="module")
def detector() -> VoiceDetector:
    return VoiceDetector()


def test_a_tone_and_silence_are_no_speech(detector: VoiceDetector) -> None:
    seconds = np.arange(3 * RATE) / RATE
    tone = (0.5 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32)
    assert detector.spans([tone]) == []
    assert detector.spans([np.zeros(RATE, np.float32)] * 3) == []
    assert detector.spans([]) == []


def test_it_says_what_the_package_says_however_sound_comes(detector: VoiceDetector) -> None:
    sound = np.concatenate([np.zeros(RATE, np.float32), voice(2.5), np.zeros(RATE, np.float32)])
    found = detector.spans([sound])
    theirs = silero_vad.get_speech_timestamps(torch.from_numpy(sound), detector._network)
    assert [(start, end) for start, end, _ in found] == [
        (one["start"] / RATE, one["end"] / RATE) for one in theirs
    ]
    ((start, end, score),) = found
    assert abs(start - 1) < 0.2
    assert abs(end - 3.5) < 0.2
    assert 0.5 < score <= 1
    pieces = np.split(sound, [100, 101, 700, 16_000, 40_000])
    assert detector.spans(pieces) == found
    assert detector.spans(pieces) == found  # it begins anew with every video


def test_loading_it_takes_no_threads_away() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert VoiceDetector()._network is not None
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
