"""CacheShape: what every sample of a cache holds, as far as a model has to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.cache import FeatureCache
from schemas.compact import stored_shape
from schemas.errors import ConfigError
from schemas.recipe import AUDIO, Recipe
from schemas.settings import nearest
from schemas.timeline import windows_per_clip


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShape:
    """One stream of a sample: (T, H, W, D)."""

    num_grids: int
    """T: frames_per_clip, or fewer of an encoder with a temporal stride."""
    height: int
    width: int
    dim: int
    dtype: str
    """float16, or int8 with a scale a channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioShape:
    """The sound of a sample: (windows, tokens, D) float16."""

    windows: int
    tokens: int
    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """What every sample of a cache holds, or what of it is looked at."""

    fps: float
    frames_per_clip: int
    streams: dict[str, StreamShape]
    """In the recipe's order, which is that of the channels after fusing."""
    audio: AudioShape | None = None

    @classmethod
    def of(cls, cache: FeatureCache, *, streams: tuple[str, ...] = ()) -> CacheShape:
        """The shape of an open cache; `streams` as of `from_recipe`."""
        return cls.from_recipe(cache.recipe, cache.info.stamps, streams=streams)

    @classmethod
    def from_recipe(
        cls,
        recipe: Recipe,
        stamps: dict[str, dict[str, Any]],
        *,
        streams: tuple[str, ...] = (),
    ) -> CacheShape:
        """The shape of what a recipe caches; `stamps` are its encoders'.

        `streams`: only these; empty: all. ConfigError: it has no such stream.
        """
        for name in streams:
            if name not in recipe.streams:
                known = nearest(name, recipe.streams)
                raise ConfigError(f"view.streams: the cache has no stream {name!r}{known}")
        sampling, shapes = recipe.sampling, {}
        for name, stream in recipe.streams.items():
            if streams and name not in streams:
                continue
            shape = stored_shape(stream, stamps[name], num_frames=sampling.frames_per_clip)
            T, H, W, D = shape
            shapes[name] = StreamShape(num_grids=T, height=H, width=W, dim=D, dtype=stream.dtype)
        audio = None
        if recipe.audio is not None:
            audio = AudioShape(
                windows=windows_per_clip(
                    fps=sampling.fps, frames_per_clip=sampling.frames_per_clip
                ),
                tokens=recipe.audio.tokens_per_window,
                dim=stamps[AUDIO]["dim"],
            )
        return cls(
            fps=sampling.fps,
            frames_per_clip=sampling.frames_per_clip,
            streams=shapes,
            audio=audio,
        )

    @property
    def bytes_per_clip(self) -> int:
        """Bytes of the features of a sample, of sound too."""
        size = {"float16": 2, "int8": 1}
        num_bytes = sum(
            one.num_grids * one.height * one.width * one.dim * size[one.dtype]
            for one in self.streams.values()
        )
        if self.audio is not None:
            num_bytes += 2 * self.audio.windows * self.audio.tokens * self.audio.dim
        return num_bytes
