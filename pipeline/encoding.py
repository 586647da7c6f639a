"""Encode clips of pixels with a recipe's encoders, and store the features as it says."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt

from encoders import (
    Encoder,
    EncoderSpec,
    Runtime,
    SoundSpec,
    encoder_spec,
    load_encoder,
    sound_spec,
)
from encoders.devices import device_name
from encoders.registry import require_weights
from encoders.tensors import as_float16_by_torch
from encoders.weights import HUB, RANDOM
from pipeline.decoding import ClipFrames
from pipeline.encoding_sound import ChunkEncoder
from schemas.compact import Stored, as_float16, is_finite, store_features
from schemas.errors import FingerprintMismatch, RecipeError, UsageError, VideoError
from schemas.recipe import AUDIO, AudioSpec, EncoderSettings, Recipe, differing_fields
from schemas.resize import PictureSpec
from schemas.settings import nearest

BATCH_CLIPS = 8
"""For encoders that do not say how many clips they like to be given."""
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


def all_specs(recipe: Recipe, *, device: str = "cpu") -> dict[str, EncoderSpec | SoundSpec]:
    """`stream_specs`, and `audio_spec` under the name of the sound's member."""
    specs: dict[str, EncoderSpec | SoundSpec] = {**stream_specs(recipe, device=device)}
    sound = audio_spec(recipe, device=device)
    return specs if sound is None else specs | {AUDIO: sound}


def stamp_streams(recipe: Recipe, *, device: str = "cpu") -> dict[str, dict[str, Any]]:
    """Stream -> its encoder's part of the fingerprint. WeightsError: weights are not named."""
    specs = all_specs(recipe, device=device)
    for spec in specs.values():
        require_weights(spec)
    return {name: spec.stamp() for name, spec in specs.items()}


def with_weights(recipe: Recipe, choices: Sequence[str]) -> Recipe:
    """The recipe with places of weights: "STREAM=WHERE", or "WHERE" for all that need some.

    UsageError: no such stream, or one path for several encoders.
    """
    settings = recipe.settings()
    for choice in choices:
        name, equals, where = choice.partition("=")
        if equals and (name in settings or "/" not in name):
            if name not in settings:
                raise UsageError(f"--weights {choice}: no stream {name!r}{nearest(name, settings)}")
            names = [name]
        else:
            where = choice
            names = _in_need_of_weights(settings)
            if not names and where != RANDOM:
                raise UsageError(f"--weights {choice}: no encoder of the recipe takes weights")
            if len(names) > 1 and where not in (HUB, RANDOM):
                raise UsageError(
                    f"--weights {choice}: the recipe has several encoders: {', '.join(names)}",
                    hint=f"say which: --weights {names[0]}={choice}",
                )
        for one in names:
            settings[one] = replace(settings[one], weights=where)
    return recipe.with_settings(settings)


def _in_need_of_weights(settings: Mapping[str, EncoderSettings]) -> list[str]:
    # An encoder may bring its own; who names others then means it only where no other has a need.
    specs: dict[str, EncoderSpec | SoundSpec] = {}
    for name, one in settings.items():
        of = sound_spec if isinstance(one, AudioSpec) else encoder_spec
        specs[name] = of(replace(one, weights=""))
    takers = [name for name, spec in specs.items() if spec.weights_hint]
    return [name for name in takers if not specs[name].weights_sha256] or takers


def as_stamped(recipe: Recipe, stamps: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """The recipe with the precision that its cache was made in, whatever device is at hand."""
    return recipe.with_settings(
        {
            name: replace(one, precision=stamps[name].get("precision", "auto"))
            for name, one in recipe.settings().items()
        }
    )


def load_encoders(
    recipe: Recipe, *, stamps: Mapping[str, Mapping[str, Any]], runtime: Runtime
) -> StreamEncoders:
    """The encoders of a recipe, if they are those that the stamps are of.

    FingerprintMismatch: names the fields that are others. WeightsError, DeviceError.
    """
    encoders = StreamEncoders(recipe, runtime=runtime)
    fields = differing_fields(recipe.identity(stamps), recipe.identity(encoders.stamps))
    if fields:
        raise FingerprintMismatch(
            f"the encoders are not those of the cache: {'; '.join(fields)}",
            hint="give the weights that it was made with: --weights STREAM=FILE",
        )
    return encoders


class StreamEncoders:
    """The loaded encoders of a recipe; one a process."""

    def __init__(self, recipe: Recipe, *, runtime: Runtime | None = None) -> None:
        self._recipe = recipe
        self._runtime = runtime or Runtime()
        self._encoders: dict[str, Encoder] = {
            name: load_encoder(stream, runtime=self._runtime)
            for name, stream in recipe.streams.items()
        }
        # On a CPU pictures and sound would take the cores from each other.
        on_cpu = self._runtime.device == "cpu"
        self._turn = threading.Lock() if on_cpu else contextlib.nullcontext()
        self.sound: ChunkEncoder | None = None
        """None: the recipe has no sound."""
        if recipe.audio is not None:
            self.sound = ChunkEncoder(recipe.audio, runtime=self._runtime, turn=self._turn)

    @property
    def stamps(self) -> dict[str, dict[str, Any]]:
        """Stream -> its part of the fingerprint, of the weights that were loaded."""
        stamps = {name: encoder.spec.stamp() for name, encoder in self._encoders.items()}
        return stamps if self.sound is None else stamps | {AUDIO: self.sound.spec.stamp()}

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

    @property
    def batch_clips(self) -> int:
        """How many clips to encode together."""
        batches = (getattr(encoder, "max_batch", None) for encoder in self._encoders.values())
        return max(batch or BATCH_CLIPS for batch in batches)

    @property
    def num_threads(self) -> int:
        """How many batches to have at work: with two, a GPU computes while the other is copied."""
        return 1 if self._runtime.device == "cpu" else 2

    def versions(self) -> dict[str, str]:
        """Libraries and the device that shape the bytes of features."""
        specs: list[EncoderSpec | SoundSpec] = [*self.specs.values()]
        specs += [] if self.sound is None else [self.sound.spec]
        names = sorted({name for spec in specs for name in spec.libraries})
        versions = {name: metadata.version(name) for name in names}
        return versions | ({"device": device_name(self._runtime.device)} if names else {})

    def features(
        self, clips: Sequence[ClipFrames]
    ) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """(stream, (B, T, H, W, D) float32) as the encoders give them."""
        for name, encoder in self._encoders.items():
            frames_BTHWC = np.stack([clip.frames[name] for clip in clips])
            with self._turn:
                features_BTHWD = encoder.encode(frames_BTHWC)
            num_grids = encoder.spec.num_grids(frames_BTHWC.shape[1])
            expected = (len(clips), num_grids, *encoder.spec.grid, encoder.spec.dim)
            if features_BTHWD.shape != expected:
                raise TypeError(f"{name}: {features_BTHWD.shape = }, expected {expected}")
            yield name, features_BTHWD

    def encode(self, clips: Sequence[ClipFrames]) -> list[Features | VideoError]:
        """The features of each clip as stored, or why it has none: non_finite."""
        results: list[Features | VideoError] = [{} for _ in clips]
        for name, features_BTHWD in self.features(clips):
            stream = self._recipe.streams[name]
            # numpy's own conversion would keep a core busy beside a fast GPU.
            has_torch = "torch" in self._encoders[name].spec.libraries
            to_float16 = as_float16_by_torch if has_torch else as_float16
            for number, features_THWD in enumerate(features_BTHWD):
                stored = store_features(
                    features_THWD, grid=stream.grid, dtype=stream.dtype, to_float16=to_float16
                )
                result = results[number]
                if not is_finite(stored):
                    results[number] = VideoError("non_finite", f"stream {name}")
                elif not isinstance(result, VideoError):
                    result[name] = stored
        return results
