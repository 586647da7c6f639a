"""Small caches that are written by hand: no video, no encoder."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pipeline.encoding import stamp_streams
from pipeline.finalizing import account_for, finalize_cache
from pipeline.layout import CacheLayout
from pipeline.packing import TarWriter
from pipeline.storage import publish, publish_bytes
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.sidecar import SampleEntry, Sidecar
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
    layout.scratch.mkdir(parents=True, exist_ok=True)
    temporary, entries = layout.scratch / "shard.tar", []
    with TarWriter(temporary) as writer:
        for video_id, num_clips in videos.items():
            for clip_index in range(num_clips):
                sample = make(video_id, clip_index)
                place = writer.add(sample)
                entry = SampleEntry(
                    key=sample.key,
                    video_id=video_id,
                    clip_index=clip_index,
                    start_seconds=2.0 * clip_index,
                    end_seconds=2.0 * clip_index + 2.0,
                    num_frames=int(sample.mask.sum()),
                    offset=place.offset,
                    num_bytes=place.num_bytes,
                    members=place.members,
                    truncated=False,
                    corrupt=False,
                )
                entries.append(entry)
        sha256, tar_bytes = writer.finish()
    name = f"train-{index:06d}-00000000"
    publish(temporary, layout.tar(name))
    sidecar = Sidecar(
        name=name,
        index=index,
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
    publish_bytes(sidecar.to_json().encode(), layout.sidecar(name), scratch=layout.scratch)
    return sidecar


def write_cache(
    layout: CacheLayout, shards: Sequence[Mapping[str, int]], *, make: Make = make_sample
) -> None:
    """A cache of shards, each of videos with so many clips; again with more to add some."""
    sidecars = [write_shard(layout, i, videos, make=make) for i, videos in enumerate(shards)]
    probes = [
        Probe(source=Source(uri=f"/{video_id}"), video_id=video_id)
        for videos in shards
        for video_id in videos
    ]
    finalize_cache(
        layout,
        recipe=RECIPE,
        stamps=stamp_streams(RECIPE),
        account=account_for(probes, sidecars),
        sources=[probe.source for probe in probes],
        sidecars=sidecars,
        max_reject_rate=0.0,
    )
