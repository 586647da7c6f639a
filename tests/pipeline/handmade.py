"""Small caches that are written by hand: no video, no encoder."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks.handmade import Made, finalize, publish_shard
from pipeline.layout import CacheLayout
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.sidecar import Sidecar
from schemas.video import Probe, Source, sample_key

RECIPE = Recipe.load("tiny")
Make = Callable[[str, int], Sample]
"""(video_id, clip_index) -> its sample of the recipe `tiny`."""


def make_sample(video_id: str, clip_index: int) -> Sample:
    rng = np.random.default_rng([clip_index, *video_id.encode()])
    starts = 2.0 * clip_index + np.arange(4) / 2
    return Sample(
        key=sample_key(video_id, clip_index),
        features={
            "image": rng.random((4, 4, 4, 32)).astype(np.float16),
            "video": rng.random((4, 3, 3, 48)).astype(np.float16),
        },
        times=np.stack([starts, starts + 0.5], axis=1),
        mask=np.array([True, True, True, False]),
        info={"video_id": video_id, "clip_index": clip_index, "start_seconds": 2.0 * clip_index},
        preview=b"\xff\xd8\xff",
    )


def write_shard(
    layout: CacheLayout, index: int, videos: Mapping[str, int], *, make: Make = make_sample
) -> Sidecar:
    """A shard of videos, each with so many clips."""
    return publish_shard(layout, index, _clips(videos, make))


def write_cache(
    layout: CacheLayout,
    shards: Sequence[Mapping[str, int]],
    *,
    make: Make = make_sample,
    recipe: Recipe = RECIPE,
) -> None:
    """A cache of shards, each of videos with so many clips; again with more to add some."""
    sidecars = [write_shard(layout, i, videos, make=make) for i, videos in enumerate(shards)]
    probes = [
        Probe(source=Source(uri=f"/{video_id}"), video_id=video_id)
        for videos in shards
        for video_id in videos
    ]
    finalize(layout, recipe, probes=probes, sidecars=sidecars)


def _clips(videos: Mapping[str, int], make: Make) -> Iterator[Made]:
    for video_id, num_clips in videos.items():
        for clip_index in range(num_clips):
            yield Made(
                sample=make(video_id, clip_index),
                video_id=video_id,
                clip_index=clip_index,
                start_seconds=2.0 * clip_index,
                end_seconds=2.0 * clip_index + 2.0,
            )
