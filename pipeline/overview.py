"""Overview: what a cache holds, a row a video. From its tables; no sample is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pipeline.cache import FeatureCache
from pipeline.probing import read_probes
from pipeline.storage import read_table, table_rows
from schemas.compact import stored_shape
from schemas.quality import QUALITY_COLUMNS
from schemas.recipe import AUDIO
from schemas.timeline import windows_per_clip
from schemas.video import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoFacts:
    """One cached video; all of it but its samples."""

    video_id: str
    keys: tuple[str, ...]
    """In order of time."""
    uris: tuple[str, ...]
    """Where it was found; several of equal content. Empty where the cache has no probes."""
    start_seconds: float
    end_seconds: float
    """Of the first and the last clip."""
    num_frames: int
    num_tokens: int
    """Cells of all streams' grids, and the windows' tokens of sound; those of fill too."""
    num_bytes: int
    truncated: bool
    corrupt: bool
    quality: dict[str, float | None]
    """The mean over its clips of each of QUALITY_COLUMNS, as far as they are known."""
    probe: Probe | None
    """Of its first source."""

    @property
    def seconds(self) -> float:
        """Of its clips; as long as the video where none is missing."""
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All videos of a cache, and what was rejected."""

    videos: list[VideoFacts]
    """By id."""
    rejects: list[dict[str, Any]] = field(default_factory=list)
    """Rows of REJECT_SCHEMA."""


def take_overview(cache: FeatureCache) -> Overview:
    """The overview of an open cache. CacheDamaged: a table cannot be read."""
    sources: dict[str, list[Probe]] = {}
    for probe in read_probes(cache.layout):
        sources.setdefault(probe.video_id, []).append(probe)
    names = ("start_seconds", "end_seconds", "num_frames", "bytes", "truncated", "corrupt")
    columns = cache.index.select([*names, *QUALITY_COLUMNS, "key"]).to_pydict()
    rows = {key: number for number, key in enumerate(columns["key"])}
    tokens = tokens_per_clip(cache)
    videos = []
    for video_id, keys in sorted(cache.videos.items()):
        numbers = [rows[key] for key in keys]
        probes = [probe for probe in sources.get(video_id, []) if probe.reject is None]
        videos.append(
            VideoFacts(
                video_id=video_id,
                keys=tuple(keys),
                uris=tuple(probe.source.uri for probe in probes),
                start_seconds=columns["start_seconds"][numbers[0]],
                end_seconds=columns["end_seconds"][numbers[-1]],
                num_frames=sum(columns["num_frames"][number] for number in numbers),
                num_tokens=tokens * len(numbers),
                num_bytes=sum(columns["bytes"][number] for number in numbers),
                truncated=any(columns["truncated"][number] for number in numbers),
                corrupt=any(columns["corrupt"][number] for number in numbers),
                quality={
                    name: _mean([columns[name][number] for number in numbers])
                    for name in QUALITY_COLUMNS
                },
                probe=probes[0] if probes else None,
            )
        )
    rejects = list(table_rows(read_table(cache.layout.rejects)))
    return Overview(videos=videos, rejects=rejects)


def tokens_per_clip(cache: FeatureCache) -> int:
    """Tokens of one sample: the cells of all streams' grids, and those of sound."""
    sampling, count = cache.recipe.sampling, 0
    for name, stream in cache.recipe.streams.items():
        stamp = cache.info.stamps[name]
        count += math.prod(stored_shape(stream, stamp, num_frames=sampling.frames_per_clip)[:3])
    if cache.recipe.audio is not None and AUDIO in cache.info.stamps:
        windows = windows_per_clip(fps=sampling.fps, frames_per_clip=sampling.frames_per_clip)
        count += windows * cache.recipe.audio.tokens_per_window
    return count


def frame_rate(probe: Probe) -> float | None:
    """Frames a second of a file; None: it has one frame. Some containers do not say: packets do."""
    lasts = probe.last_seconds - probe.first_seconds
    if not probe.average_fps and probe.num_packets > 1 and lasts > 0:
        return (probe.num_packets - 1) / lasts
    return probe.average_fps or None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
