"""Videos whose sound tells which second of the track it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.clips import encode_clip, run_ffmpeg

LOUDEST = 100
"""Seconds that can be told apart."""


def counting_video(
    path: Path,
    *,
    seconds: int,
    sound_seconds: float | None = None,
    late_seconds: float = 0.0,
    codec: str = "pcm_s16le",
) -> Path:
    """Pictures at 4 a second, and a square wave that is a step louder each second of the track."""
    pictures = encode_clip(path.with_suffix(".mute.mkv"), fps=4, num_frames=4 * seconds).path
    level = f"(1+floor(t))/{LOUDEST}*(1-2*mod(floor(t*400)\\,2))"
    source = f"aevalsrc='{level}':s=16000:d={seconds if sound_seconds is None else sound_seconds}"
    run_ffmpeg(
        *("-i", pictures, "-itsoffset", str(late_seconds), "-f", "lavfi", "-i", source),
        *("-map", "0:v", "-map", "1:a", "-c:v", "copy", "-c:a", codec, path),
    )
    return path


def second_of(samples: np.ndarray) -> float:
    """Which second of the track this is, from 0; below 0 for silence."""
    return float(np.median(np.abs(samples)) * LOUDEST) - 1
