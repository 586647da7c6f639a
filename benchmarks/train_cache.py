"""Caches that are trained from in benchmarks: real tars and index, random features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.layout import CacheLayout
from pipeline.packing import TarWriter
from pipeline.storage import publish_bytes, publish_rows
from schemas.cache_info import CacheInfo
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.sidecar import SampleEntry, Sidecar
from schemas.tables import INDEX_SCHEMA, index_rows


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


def write_cache(kind: Kind, layout: CacheLayout) -> CacheLayout:
    """As a run writes it, so far as a reader needs it."""
    layout.shards.mkdir(parents=True)
    overrides = [f"streams.{name}.dtype={kind.dtype}" for name in kind.streams]
    recipe = Recipe.load("apollo", overrides=overrides)
    generator, index = np.random.default_rng(0), []
    for shard, numbers in enumerate(np.array_split(np.arange(kind.num_samples), kind.num_shards)):
        name, entries = f"train-{shard:06d}-00000000", []
        with TarWriter(layout.tar(name)) as writer:
            for number in numbers.tolist():
                sample = _make_sample(kind, number, generator)
                extent = writer.add(sample)
                entries.append(
                    SampleEntry(
                        key=sample.key,
                        video_id="v0",
                        clip_index=number,
                        start_seconds=2.0 * number,
                        end_seconds=2.0 * number + 2,
                        num_frames=4,
                        offset=extent.offset,
                        num_bytes=extent.num_bytes,
                        members=extent.members,
                        truncated=False,
                        corrupt=False,
                    )
                )
            sha256, tar_bytes = writer.finish()
        sidecar = Sidecar(
            name=name,
            index=shard,
            split="train",
            fingerprint="",
            recipe_fingerprint="",
            tar_sha256=sha256,
            tar_bytes=tar_bytes,
            samples=tuple(entries),
            videos=(),
            missing=(),
            rejects=(),
            versions={},
        )
        index += index_rows(sidecar)
    publish_rows(index, INDEX_SCHEMA, layout.index, scratch=layout.scratch)
    info = CacheInfo(
        fingerprint="",
        recipe=recipe.to_mapping(),
        stamps={
            name: {"grid": list(shape[1:3]), "dim": shape[3]}
            for name, shape in kind.streams.items()
        },
        counts={},
        shards=(),
        index_sha256="",
    )
    publish_bytes(info.to_json().encode(), layout.info, scratch=layout.scratch)
    return layout


def _make_sample(kind: Kind, number: int, generator: np.random.Generator) -> Sample:
    features: dict[str, Any] = {}
    for name, shape in kind.streams.items():
        if kind.dtype == "int8":
            features[name] = generator.integers(-127, 128, shape, dtype=np.int8)
        else:
            bits = generator.integers(0, 0x7C00, shape, dtype=np.uint16)  # all finite
            features[name] = bits.view(np.float16)
    is_int8 = kind.dtype == "int8"
    return Sample(
        key=f"v0_{number:06d}",
        features=features,
        scales={
            name: generator.random(shape[3], np.float32)
            for name, shape in kind.streams.items()
            if is_int8
        },
        times=np.arange(8.0).reshape(4, 2) + number,
        mask=np.ones(4, bool),
        info={"video_id": "v0", "clip_index": number, "fps": 2.0},
        preview=generator.bytes(kind.preview_bytes) if kind.preview_bytes else None,
    )
