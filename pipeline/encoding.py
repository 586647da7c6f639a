"""Encode clips of pixels with a recipe's encoders, and store what they return as the recipe says."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from encoders import (
    Encoder,
    EncoderSpec,
    Runtime,
    SoundSpec,
    encoder_spec,
    load_encoder,
    sound_spec,
)
from encoders.registry import require_weights
from pipeline.decoding import ClipFrames
from schemas.compact import Stored, is_finite, store_features
from schemas.errors import RecipeError, VideoError
from schemas.recipe import AUDIO, Recipe
from schemas.resize import PictureSpec

Features = dict[str, Stored]
"""Stream -> its features as stored."""


def stream_specs(recipe: Recipe, *, device: str = "cpu") -> dict[str, EncoderSpec]:
    """Stream -> what its encoder is, without reading weights into memory.

    RecipeError: an unknown encoder, or settings that do not suit it. WeightsError.
    """
    specs = {name: encoder_spec(s, device=device) for name, s in recipe.streams.items()}
    num_frames = recipe.sampling.frames_per_clip
    for name, spec in specs.items():
        if spec.frames_per_clip not in (None, num_frames):
            raise RecipeError(
                f"streams.{name}: {spec.name} takes {spec.frames_per_clip} frames a clip, and"
                f" sampling.frames_per_clip = {num_frames}"
            )
        if num_frames % spec.temporal_stride:
            raise RecipeError(
                f"streams.{name}: {spec.name} takes {spec.temporal_stride} frames at a time, and"
                f" sampling.frames_per_clip = {num_frames} is no multiple"
            )
        grid = recipe.streams[name].grid
        if grid and (grid[0] > spec.grid[0] or grid[1] > spec.grid[1]):
            raise RecipeError(
                f"streams.{name}.grid = {list(grid)} must not be finer than that of {spec.name},"
                f" {list(spec.grid)}"
            )
    return specs


def audio_spec(recipe: Recipe, *, device: str = "cpu") -> SoundSpec | None:
    """What the encoder of sound is, if the recipe has one. Errors as of `stream_specs`."""
    if recipe.audio is None:
        return None
    spec = sound_spec(recipe.audio, device=device)
    if spec.tokens_per_window % recipe.audio.tokens_per_window:
        raise RecipeError(
            f"audio.tokens_per_window = {recipe.audio.tokens_per_window} must divide the"
            f" {spec.tokens_per_window} of {spec.name}"
        )
    return spec


def stamp_streams(recipe: Recipe, *, device: str = "cpu") -> dict[str, dict[str, Any]]:
    """Stream -> its encoder's part of the fingerprint. WeightsError: weights are not named."""
    specs: dict[str, EncoderSpec | SoundSpec] = {**stream_specs(recipe, device=device)}
    sound = audio_spec(recipe, device=device)
    if sound is not None:
        specs[AUDIO] = sound
    for spec in specs.values():
        require_weights(spec)
    return {name: spec.stamp() for name, spec in specs.items()}


class StreamEncoders:
    """The loaded encoders of a recipe; one a process."""

    def __init__(self, recipe: Recipe, *, runtime: Runtime | None = None) -> None:
        self._recipe = recipe
        self._runtime = runtime or Runtime()
        self._encoders: dict[str, Encoder] = {
            name: load_encoder(stream, runtime=self._runtime)
            for name, stream in recipe.streams.items()
        }

    @property
    def specs(self) -> dict[str, EncoderSpec]:
        """Stream -> what its encoder is."""
        return {name: encoder.spec for name, encoder in self._encoders.items()}

    @property
    def pictures(self) -> dict[str, PictureSpec]:
        """Stream -> the picture that its encoder takes."""
        return {
            name: PictureSpec(width=spec.width, height=spec.height, resize=spec.resize)
            for name, spec in self.specs.items()
        }

    def versions(self) -> dict[str, str]:
        """Libraries and the device that shape the bytes of features."""
        names = sorted({name for spec in self.specs.values() for name in spec.libraries})
        versions = {name: metadata.version(name) for name in names}
        return versions | ({"device": self._runtime.device} if names else {})

    def encode(self, clips: Sequence[ClipFrames]) -> list[Features | VideoError]:
        """The features of each clip, or why it has none: non_finite."""
        results: list[Features | VideoError] = [{} for _ in clips]
        for name, encoder in self._encoders.items():
            frames_BTHWC = np.stack([clip.frames[name] for clip in clips])
            features_BTHWD = encoder.encode(frames_BTHWC)
            num_grids = encoder.spec.num_grids(frames_BTHWC.shape[1])
            expected = (len(clips), num_grids, *encoder.spec.grid, encoder.spec.dim)
            if features_BTHWD.shape != expected:
                raise TypeError(f"{name}: {features_BTHWD.shape = }, expected {expected}")
            stream = self._recipe.streams[name]
            for number, features_THWD in enumerate(features_BTHWD):
                stored = store_features(features_THWD, grid=stream.grid, dtype=stream.dtype)
                result = results[number]
                if not is_finite(stored):
                    results[number] = VideoError("non_finite", f"stream {name}")
                elif not isinstance(result, VideoError):
                    result[name] = stored
        return results
