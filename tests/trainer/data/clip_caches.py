"""Small caches that are written by hand, of any recipe; no video, no encoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.handmade import Made, publish_shard
from pipeline.layout import CacheLayout
from pipeline.places import Place
from pipeline.storage import publish_bytes, publish_rows
from schemas.cache_info import CacheInfo
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.tables import INDEX_SCHEMA, index_rows
from schemas.video import sample_key
from trainer.data.cache_shape import CacheShape

Videos = dict[str, list[int]]
"""Video -> frames of each of its clips."""
STAMPS: dict[str, dict[str, Any]] = {
    "image": {"grid": [3, 2], "dim": 5},
    "video": {"grid": [2, 2], "dim": 7},
    "audio": {"grid": [1, 1], "dim": 6},
}
SOUND = "audio.encoder=random-audio"


@dataclass(frozen=True, kw_only=True)
class Written:
    """A cache, and all that was written into it."""

    layout: CacheLayout
    shape: CacheShape
    samples: list[Sample] = field(default_factory=list)
    """By their rows in the index."""


def write_clips(
    root: Place,
    shards: list[Videos],
    *,
    overrides: tuple[str, ...] = (),
    stamps: dict[str, dict[str, Any]] = STAMPS,
    preview_bytes: int = 100,
) -> Written:
    """A cache of these videos, with values that are all different."""
    recipe = Recipe.load("tiny", overrides=list(overrides))
    layout, shape = CacheLayout(root), CacheShape.from_recipe(recipe, stamps)
    rng, samples, rows = np.random.default_rng(0), [], []
    for index, videos in enumerate(shards):
        made = [
            Made(
                sample=_sample(shape, rng, video_id, clip_index, num_frames, preview_bytes),
                video_id=video_id,
                clip_index=clip_index,
                start_seconds=2.0 * clip_index,
                end_seconds=2.0 * clip_index + num_frames / 2,
            )
            for video_id, counts in videos.items()
            for clip_index, num_frames in enumerate(counts)
        ]
        samples += [one.sample for one in made]
        rows += index_rows(publish_shard(layout, index, made))
    publish_rows(rows, INDEX_SCHEMA, layout.index, scratch=layout.scratch)
    info = CacheInfo(
        fingerprint=recipe.fingerprint(stamps),
        recipe=recipe.to_mapping(),
        stamps=stamps,
        counts={"videos": 0, "samples": len(samples), "shards": len(shards)},
        shards=(),
        index_sha256="",
    )
    publish_bytes(info.to_json().encode(), layout.info, scratch=layout.scratch)
    return Written(layout=layout, shape=shape, samples=samples)


def _sample(
    shape: CacheShape,
    rng: np.random.Generator,
    video_id: str,
    clip_index: int,
    num_frames: int,
    preview_bytes: int,
) -> Sample:
    T = shape.frames_per_clip
    features: dict[str, Any] = {}
    scales = {}
    for name, one in shape.streams.items():
        size = (one.num_grids, one.height, one.width, one.dim)
        if one.dtype == "int8":
            features[name] = rng.integers(-127, 128, size, dtype=np.int8)
            scales[name] = rng.random(one.dim).astype(np.float32)
        else:
            features[name] = rng.random(size).astype(np.float16)
    audio = audio_mask = None
    if shape.audio is not None:
        windows, tokens, dim = shape.audio.windows, shape.audio.tokens, shape.audio.dim
        audio = rng.random((windows, tokens, dim)).astype(np.float16)
        audio_mask = rng.random(windows) < 0.7
    starts = shape.frames_per_clip * clip_index / shape.fps + np.arange(T) / shape.fps
    return Sample(
        key=sample_key(video_id, clip_index),
        features=features,
        times=np.stack([starts, starts + 0.25 + rng.random(T) / 4], axis=1),
        mask=np.arange(T) < num_frames,
        info={"video_id": video_id, "clip_index": clip_index},
        preview=rng.bytes(preview_bytes),
        scales=scales,
        audio=audio,
        audio_mask=audio_mask,
    )
