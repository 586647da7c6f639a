"""Caches that are trained from in benchmarks: real tars, index and tables, random features."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.handmade import Made, publish_shard
from pipeline.layout import CacheLayout
from pipeline.storage import publish_bytes, publish_rows
from schemas.cache_info import CacheInfo
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.tables import INDEX_SCHEMA, REJECT_SCHEMA, index_rows

CLIP_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A cache that is read."""

    name: str
    streams: dict[str, tuple[int, ...]]
    """Of the recipe `apollo`: (T, H, W, D)."""
    dtype: str
    num_samples: int
    clips_per_batch: int
    num_shards: int = 3
    preview_bytes: int = 8000
    clips_per_video: int = 0
    """0: all samples are of one video."""


def write_cache(kind: Kind, layout: CacheLayout) -> CacheLayout:
    """As a run writes it, so far as a reader needs it."""
    recipe = Recipe.load("apollo").to_mapping()
    streams = {name: recipe["streams"][name] | {"dtype": kind.dtype} for name in kind.streams}
    publish_samples(
        layout,
        np.array_split(np.arange(kind.num_samples), kind.num_shards),
        samples=_samples(kind),
        recipe=Recipe.from_mapping(recipe | {"streams": streams}),
        stamps={
            name: {"grid": list(shape[1:3]), "dim": shape[3]}
            for name, shape in kind.streams.items()
        },
    )
    return layout


def publish_samples(
    layout: CacheLayout,
    shards: Iterable[Any],
    *,
    samples: Iterator[Sample],
    recipe: Recipe,
    stamps: Mapping[str, Mapping[str, Any]],
) -> None:
    """Tars, index, no rejects and cache.json; `shards` are numbers of samples, in their order."""
    layout.shards.mkdir(parents=True)
    index = []
    for shard, numbers in enumerate(shards):
        own = itertools.islice(samples, len(numbers))
        index += index_rows(publish_shard(layout, shard, map(_made, own)))
    publish_rows(index, INDEX_SCHEMA, layout.index, scratch=layout.scratch)
    publish_rows([], REJECT_SCHEMA, layout.rejects, scratch=layout.scratch)
    info = CacheInfo(
        fingerprint=recipe.fingerprint(stamps),
        recipe=recipe.to_mapping(),
        stamps={name: dict(stamp) for name, stamp in stamps.items()},
        counts={"videos": 0, "samples": len(index), "shards": 0},
        shards=(),
        index_sha256="",
    )
    publish_bytes(info.to_json().encode(), layout.info, scratch=layout.scratch)


def _made(sample: Sample) -> Made:
    clip_index = sample.info["clip_index"]
    return Made(
        sample=sample,
        video_id=sample.info["video_id"],
        clip_index=clip_index,
        start_seconds=CLIP_SECONDS * clip_index,
        end_seconds=CLIP_SECONDS * (clip_index + 1),
    )


def _samples(kind: Kind) -> Iterator[Sample]:
    generator = np.random.default_rng(0)
    for number in range(kind.num_samples):
        video, clip_index = 0, number
        if kind.clips_per_video:
            video, clip_index = divmod(number, kind.clips_per_video)
        yield _make_sample(kind, f"v{video}", clip_index, generator)


def _make_sample(
    kind: Kind, video_id: str, clip_index: int, generator: np.random.Generator
) -> Sample:
    features: dict[str, Any] = {}
    for name, shape in kind.streams.items():
        if kind.dtype == "int8":
            features[name] = generator.integers(-127, 128, shape, dtype=np.int8)
        else:
            features[name] = (generator.random(shape, np.float32) - 0.5).astype(np.float16)
    is_int8 = kind.dtype == "int8"
    return Sample(
        key=f"{video_id}_{clip_index:06d}",
        features=features,
        scales={
            name: generator.random(shape[3], np.float32)
            for name, shape in kind.streams.items()
            if is_int8
        },
        times=np.arange(8.0).reshape(4, 2) / 4 + CLIP_SECONDS * clip_index,
        mask=np.ones(4, bool),
        info={"video_id": video_id, "clip_index": clip_index, "fps": 2.0},
        preview=generator.bytes(kind.preview_bytes) if kind.preview_bytes else None,
    )
