"""Shards that are written by hand, for benchmarks and tests: no video, no encoder, no plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.encoding import stamp_streams
from pipeline.finalizing import account_for, finalize_cache
from pipeline.layout import CacheLayout
from pipeline.packing import TarWriter
from pipeline.storage import publish, publish_bytes, temporary_file
from schemas.quality import Quality
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.sidecar import SampleEntry, Sidecar
from schemas.video import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A sample, and what its sidecar says of it besides."""

    sample: Sample
    video_id: str
    clip_index: int
    start_seconds: float
    end_seconds: float
    quality: Quality | None = None


def publish_shard(layout: CacheLayout, index: int, clips: Iterable[Made]) -> Sidecar:
    """Publish a tar of these clips and its sidecar, as no plan has them. StorageError."""
    name, entries = f"train-{index:06d}-00000000", []
    layout.scratch.mkdir(parents=True, exist_ok=True)
    with temporary_file(layout.scratch, name=f"{name}.tar") as temporary:
        with TarWriter(temporary) as writer:
            for made in clips:
                sample = made.sample
                extent = writer.add(sample)
                entries.append(
                    SampleEntry(
                        key=sample.key,
                        video_id=made.video_id,
                        clip_index=made.clip_index,
                        start_seconds=made.start_seconds,
                        end_seconds=made.end_seconds,
                        num_frames=int(sample.mask.sum()),
                        offset=extent.offset,
                        num_bytes=extent.num_bytes,
                        members=extent.members,
                        truncated=False,
                        corrupt=False,
                        quality=made.quality,
                    )
                )
            sha256, tar_bytes = writer.finish()
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


def finalize(
    layout: CacheLayout, recipe: Recipe, *, probes: Sequence[Probe], sidecars: Sequence[Sidecar]
) -> None:
    """Make a cache of shards, of which every source is cached. StorageError."""
    finalize_cache(
        layout,
        recipe=recipe,
        stamps=stamp_streams(recipe),
        account=account_for(probes, sidecars),
        sources=[probe.source for probe in probes],
        sidecars=sidecars,
        max_reject_rate=0.0,
    )
