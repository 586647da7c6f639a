"""Preprocessing: all that has to be the same when a trained model is asked: the second fingerprint.

The cache's own fingerprint says what its features are. This one adds what a model makes of them:
which frames it looks at, into how many tokens, and what it reads between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import Any

from pipeline.cache import FeatureCache
from schemas.errors import FingerprintMismatch, ModelDamaged, ReelcacheError
from schemas.recipe import Recipe, canonical_json, differing_fields
from schemas.settings import read_settings, to_mapping
from trainer.config import TrainConfig, ViewSpec
from trainer.data.cache_shape import CacheShape
from trainer.data.video_events import makers_of
from trainer.model_spec import ReduceSpec, TimeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """From a video to the row that the language model reads."""

    recipe: dict[str, Any]
    """As of `Recipe.to_mapping`."""
    stamps: dict[str, dict[str, Any]]
    """Stream -> what its encoder says of itself."""
    view: ViewSpec
    """With the clip budget of the last stage."""
    time: TimeSpec
    reduce: ReduceSpec
    tokens_per_clip: int
    with_audio: bool
    template: str
    system: str
    max_tokens: int
    """Of one item; a longer one is shown fewer clips."""
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Kind of the view's events -> what made them."""

    @classmethod
    def of(cls, config: TrainConfig, *, cache: FeatureCache, template: str) -> Preprocessing:
        """That of a model trained with `config` from `cache`.

        UsageError: the cache has no events of a kind that the view asks for.
        """
        view = config.view
        last = config.stages[-1].max_clips
        if last:
            view = replace(view, max_clips=min(last, view.max_clips or last))
        frames = view.frames_per_clip or cache.recipe.sampling.frames_per_clip
        return cls(
            recipe=cache.recipe.to_mapping(),
            stamps=cache.info.stamps,
            view=view,
            time=config.model.time,
            reduce=config.model.reduce,
            tokens_per_clip=config.model.connector.tokens_per_clip(frames),
            with_audio=config.model.audio is not None,
            template=template,
            system=config.model.system,
            max_tokens=config.batch.tokens_per_pack,
            events=makers_of(cache.layout, kinds=view.events) if view.events else {},
        )

    @property
    def shape(self) -> CacheShape:
        """What is looked at of a sample of a cache of this recipe."""
        recipe = Recipe.from_mapping(self.recipe)
        return CacheShape.from_recipe(recipe, self.stamps, streams=self.view.streams)

    @property
    def frames_per_clip(self) -> int:
        """Of the view."""
        return self.view.frames_per_clip or self.shape.frames_per_clip

    def cells_per_token(self) -> dict[str, float]:
        """How many cells of a clip, `encoded` and `cached`, each of its tokens stands for.

        Of the stream that has the most; a cache may be coarser than what its encoders give.
        """
        streams = self.shape.streams
        share = self.frames_per_clip / (self.shape.frames_per_clip * self.tokens_per_clip)
        cells = {
            "encoded": [one.num_grids * prod(self.stamps[k]["grid"]) for k, one in streams.items()],
            "cached": [one.num_grids * one.height * one.width for one in streams.values()],
        }
        return {name: round(max(counts) * share, 3) for name, counts in cells.items()}

    def identity(self) -> dict[str, Any]:
        """What the fingerprint is taken over. Defaults are dropped, so that new fields keep it."""
        recipe = Recipe.from_mapping(self.recipe)
        events = {"events": self.events} if self.events else {}
        return events | {
            "cache": recipe.identity(self.stamps),
            "view": to_mapping(self.view, drop_defaults=True),
            "time": {"mode": self.time.mode, "text": self.time.text, "joint": self.time.joint},
            "reduce": to_mapping(self.reduce, drop_defaults=True),
            "tokens_per_clip": self.tokens_per_clip,
            "with_audio": self.with_audio,
            "template": self.template,
            "system": self.system,
            "max_tokens": self.max_tokens,
        }

    def fingerprint(self) -> str:
        """sha256 of the canonical JSON of `identity`; 64 hex digits."""
        return hashlib.sha256(canonical_json(self.identity()).encode()).hexdigest()

    def cache_fingerprint(self) -> str:
        """That of the caches which a model with this preprocessing can be asked from."""
        return Recipe.from_mapping(self.recipe).fingerprint(self.stamps)

    def require_cache(self, cache: FeatureCache) -> None:
        """FingerprintMismatch: the cache was made otherwise; names the fields that differ."""
        if cache.fingerprint == self.cache_fingerprint():
            return
        own = Recipe.from_mapping(self.recipe).identity(self.stamps)
        fields_ = differing_fields(own, cache.recipe.identity(cache.info.stamps))
        raise FingerprintMismatch(
            f"{cache.layout.root} is not a cache that this model can read"
            f" (model -> cache): {'; '.join(fields_)}",
            hint="use a cache of the same recipe and weights, or train on this one",
        )

    def require_events(self, cache: FeatureCache) -> None:
        """FingerprintMismatch: the cache's events were made otherwise. UsageError: it has none."""
        if not self.view.events:
            return
        found = makers_of(cache.layout, kinds=self.view.events)
        if found != self.events:
            raise FingerprintMismatch(
                f"the events of {cache.layout.root} are not those that this model was trained with"
                f" (model -> cache): {'; '.join(differing_fields(self.events, found))}",
                hint="make them again as they were made then; docs/events.md",
            )

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        plain["view"] = self.view.to_mapping()
        for name in ("time", "reduce"):
            plain[name] = to_mapping(plain[name])
        if not self.events:
            del plain["events"]
        return plain

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], *, where: str) -> Preprocessing:
        """The inverse of `to_mapping`. ModelDamaged: not such a mapping."""
        try:
            plain = dict(mapping)
            plain["view"] = read_settings(ViewSpec, plain["view"])
            plain["time"] = read_settings(TimeSpec, plain["time"])
            plain["reduce"] = read_settings(ReduceSpec, plain["reduce"])
            return cls(**plain)
        except (LookupError, TypeError, ReelcacheError) as error:
            raise ModelDamaged(f"{where}: its preprocessing cannot be read: {error}") from error
