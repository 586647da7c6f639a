"""Encode clips of pixels with a recipe's encoders, and check what they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from encoders import Encoder, EncoderSpec, encoder_spec, load_encoder
from pipeline.decoding import ClipFrames
from schemas.errors import VideoError
from schemas.recipe import Recipe

Features = dict[str, npt.NDArray[Any]]
"""Stream -> (T, H, W, D) as stored."""


def stream_specs(recipe: Recipe) -> dict[str, EncoderSpec]:
    """Stream -> what its encoder is, without reading weights. RecipeError: unknown encoder."""
    return {name: encoder_spec(stream.encoder) for name, stream in recipe.streams.items()}


def stamp_streams(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Stream -> its encoder's part of the fingerprint."""
    return {name: spec.stamp() for name, spec in stream_specs(recipe).items()}


class StreamEncoders:
    """The loaded encoders of a recipe; one a process."""

    def __init__(self, recipe: Recipe, *, device: str = "cpu") -> None:
        self._recipe = recipe
        self._encoders: dict[str, Encoder] = {
            name: load_encoder(stream.encoder, device=device)
            for name, stream in recipe.streams.items()
        }

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Stream -> (width, height) of the pixels it takes."""
        return {name: (e.spec.width, e.spec.height) for name, e in self._encoders.items()}

    def encode(self, clips: Sequence[ClipFrames]) -> list[Features]:
        """The features of each clip. VideoError: non_finite."""
        results: list[Features] = [{} for _ in clips]
        for name, encoder in self._encoders.items():
            frames_BTHWC = np.stack([clip.frames[name] for clip in clips])
            features_BTHWD = encoder.encode(frames_BTHWC)
            expected = (*frames_BTHWC.shape[:2], *encoder.spec.grid, encoder.spec.dim)
            if features_BTHWD.shape != expected:
                raise TypeError(f"{name}: {features_BTHWD.shape = }, expected {expected}")
            with np.errstate(over="ignore"):  # an overflow of float16 is found below
                stored = features_BTHWD.astype(self._recipe.streams[name].dtype)
            if not np.isfinite(stored).all():
                raise VideoError("non_finite", f"stream {name}")
            for result, features in zip(results, stored, strict=True):
                result[name] = features
        return results
