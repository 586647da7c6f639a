"""A sound that is taken for a voice: harmonics of a gliding pitch through formants that change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.clips import run_ffmpeg

RATE = 16_000
SYLLABLE_SECONDS = 0.22
_VOWELS = np.array(
    [(700, 1200, 2600), (300, 2300, 3000), (350, 800, 2400), (500, 1800, 2500), (600, 1000, 2500)]
)
_FORMANTS = ((90, 1.0), (120, 0.5), (160, 0.25))
"""Width in Hz and loudness."""


def voice(seconds: float, *, seed: int = 0) -> npt.NDArray[np.float32]:
    """16 kHz mono."""
    chance = np.random.default_rng(seed)
    t = np.arange(int(seconds * RATE)) / RATE
    pitch = 120 * (1 + 0.15 * np.sin(2 * np.pi * 0.7 * t) + 0.02 * np.sin(2 * np.pi * 5 * t))
    phase = np.cumsum(pitch) / RATE
    syllable, within = (t / SYLLABLE_SECONDS).astype(int), (t / SYLLABLE_SECONDS) % 1
    said = _VOWELS[chance.integers(0, len(_VOWELS), syllable.max() + 2)]
    glide = np.clip((within - 0.6) / 0.4, 0, 1)[:, None]
    formants = said[syllable] * (1 - glide) + said[syllable + 1] * glide
    number = np.arange(1, 40)[:, None]
    hertz = number * pitch
    loud = sum(
        share / (1 + ((hertz - formants[:, i]) / width) ** 2)
        for i, (width, share) in enumerate(_FORMANTS)
    )
    loud = loud * (hertz < 7500) / number**0.3
    sound = (loud * np.sin(2 * np.pi * number * phase)).sum(axis=0)
    sound *= 0.35 + 0.65 * np.sin(np.pi * within) ** 0.7
    return np.asarray(0.3 * sound / np.abs(sound).max(), dtype=np.float32)


def speaking_video(
    path: Path,
    *,
    pictures: Path,
    sound: npt.NDArray[np.float32],
    late_seconds: float = 0.0,
) -> Path:
    """The pictures of a file with sound, which begins late."""
    raw = ("-f", "f32le", "-ar", str(RATE), "-ac", "1", "-i", "-")
    wave = path.with_suffix(".wav")
    run_ffmpeg(*raw, "-c:a", "pcm_s16le", wave, stdin=sound.astype("<f4").tobytes())
    run_ffmpeg(
        *("-i", pictures, "-itsoffset", str(late_seconds), "-i", wave),
        *("-map", "0:v", "-map", "1:a", "-c:v", "copy", "-c:a", "pcm_s16le", path),
    )
    return path
