"""Gaps: planned clips that are not in a cache, when they would be and why they are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.cache import FeatureCache
from pipeline.places import read_many
from schemas.sidecar import MissingClips, Sidecar
from schemas.timeline import Grid, clip_length
from schemas.video import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Clips of one video that follow each other and are missing."""

    video_id: str
    start_seconds: float
    end_seconds: float
    """[start, end): where the clips would be, by the rate that was asked for."""
    num_clips: int
    reason: str
    """As of `MissingClips`."""


def find_gaps(cache: FeatureCache, probes: Iterable[Probe | None]) -> dict[str, list[Gap]]:
    """video_id -> its gaps in order of time, by the sidecars; `probes` are those of its videos.

    The sidecars are read only where cache.json counts missing clips. CacheDamaged.
    """
    if not cache.info.counts.get("missing"):
        return {}
    known = {probe.video_id: probe for probe in probes if probe is not None}
    found: dict[str, list[Gap]] = {}
    places = [cache.layout.sidecar(entry.name) for entry in cache.info.shards]
    try:
        for place, text in read_many(places):
            for missing in Sidecar.from_json(text, where=str(place)).missing:
                if missing.video_id in cache.videos and missing.video_id in known:
                    gap = _gap(cache, missing, known)
                    found.setdefault(missing.video_id, []).append(gap)
    except OSError as error:
        raise cache.damaged(f"{cache.layout.shards}: cannot be read: {error}") from error
    return {name: sorted(gaps, key=lambda gap: gap.start_seconds) for name, gaps in found.items()}


def _gap(cache: FeatureCache, missing: MissingClips, known: Mapping[str, Probe]) -> Gap:
    probe, sampling = known[missing.video_id], cache.recipe.sampling
    span = probe.source
    grid = Grid.of(
        first_seconds=probe.first_seconds,
        fps=sampling.fps,
        start_seconds=span.start_seconds,
        end_seconds=span.end_seconds,
    )
    length = float(clip_length(fps=sampling.fps, frames_per_clip=sampling.frames_per_clip))
    start = grid.origin_seconds + missing.first_clip * length
    ends = [probe.first_seconds + probe.duration_seconds]
    if grid.end_seconds is not None:
        ends.append(grid.end_seconds)
    end = min(start + missing.num_clips * length, *ends)
    return Gap(
        video_id=missing.video_id,
        start_seconds=start,
        end_seconds=max(end, start + length / sampling.frames_per_clip),
        num_clips=missing.num_clips,
        reason=missing.reason,
    )
