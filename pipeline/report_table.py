"""The table of a report: all videos of a cache as columns of plain values, small as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.cache import FeatureCache
from pipeline.overview import Overview, VideoFacts, frame_rate, tokens_per_clip
from pipeline.report_clusters import Membership
from schemas.compact import stored_shape
from schemas.event import Event
from schemas.quality import QUALITY_COLUMNS
from schemas.recipe import AUDIO
from schemas.reject import REASONS

MOST_REJECTS = 2000
"""That are listed; all are counted."""
MOST_DETAIL = 300
"""Characters of what a reject says."""
TRUNCATED, CORRUPT = 1, 2
"""Bits of the column `damage`."""


def describe_cache(cache: FeatureCache, *, name: str, overview: Overview) -> dict[str, Any]:
    """Recipe, streams and totals."""
    sampling, counts = cache.recipe.sampling, cache.info.counts
    streams = []
    for stream_name, stream in cache.recipe.streams.items():
        stamp = cache.info.stamps[stream_name]
        shape = stored_shape(stream, stamp, num_frames=sampling.frames_per_clip)
        streams.append(
            {
                "name": stream_name,
                "encoder": stream.encoder,
                "shape": list(shape),
                "dtype": stream.dtype,
            }
        )
    audio = None
    if cache.recipe.audio is not None:
        audio = {
            "encoder": cache.recipe.audio.encoder,
            "tokens": cache.recipe.audio.tokens_per_window,
            "dim": cache.info.stamps.get(AUDIO, {}).get("dim"),
        }
    return {
        "name": name,
        "recipe": cache.recipe.name,
        "fingerprint": cache.fingerprint,
        "fps": sampling.fps,
        "frames_per_clip": sampling.frames_per_clip,
        "tokens_per_clip": tokens_per_clip(cache),
        "streams": streams,
        "audio": audio,
        "sources": counts.get("sources", len(overview.videos)),
        "missing": counts.get("missing", 0),
        "shards": counts.get("shards", 0),
        "versions": cache.info.format_version,
    }


def describe_videos(
    videos: Sequence[VideoFacts],
    *,
    missing: Mapping[str, int],
    clusters: Mapping[str, Membership],
    events: Mapping[str, Sequence[Event]],
    num_portraits: int,
) -> dict[str, Any]:
    """Column -> a value of each video. Words that repeat are numbers into `words`.

    `missing` is video_id -> clips; `clusters` video_id -> its place among duplicates. The first
    `num_portraits` videos have portraits.
    """
    words = _Words()
    columns: dict[str, list[Any]] = {}

    def add(name: str, value: Any) -> None:
        columns.setdefault(name, []).append(value)

    for video in videos:
        folder, _, name = (video.uris[0] if video.uris else video.video_id).rpartition("/")
        probe = video.probe
        add("id", video.video_id)
        add("name", name)
        add("folder", words.number(folder))
        add("copies", max(0, len(video.uris) - 1))
        add("seconds", round(video.seconds, 2))
        add("clips", len(video.keys))
        add("missing", missing.get(video.video_id, 0))
        add("frames", video.num_frames)
        add("tokens", video.num_tokens)
        add("bytes", video.num_bytes)
        add("width", probe.width if probe else 0)
        add("height", probe.height if probe else 0)
        rate = frame_rate(probe) if probe else None
        add("fps", None if rate is None else round(rate, 3))
        add("codec", words.number(probe.codec if probe else ""))
        add("container", words.number(probe.container if probe else ""))
        add("sound", None if probe is None else int(probe.has_audio))
        add("damage", TRUNCATED * video.truncated + CORRUPT * video.corrupt)
        membership = clusters.get(video.video_id)
        add("cluster", -1 if membership is None else membership.cluster)
        add("kept", int(membership is not None and membership.kept))
        add("like", 0 if membership is None or membership.kept else _likeness(membership))
        for quality in QUALITY_COLUMNS:
            value = video.quality[quality]
            add(quality, None if value is None else round(value, 3))
        kinds = Counter(event.kind for event in events.get(video.video_id, ()))
        add("events", {kind: kinds[kind] for kind in sorted(kinds)} or 0)
    return {"columns": columns, "words": words.words, "portraits": num_portraits}


def describe_rejects(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many of each reason, and the first of the rejects."""
    counts = Counter(row["reason"] for row in rows)
    return {
        "count": len(rows),
        "retryable": sum(bool(row["retryable"]) for row in rows),
        "reasons": [
            [reason, count, REASONS.get(reason, ("", False))[0]]
            for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ],
        "rows": [
            [row["uri"], row["stage"], row["reason"], row["detail"][:MOST_DETAIL]]
            for row in rows[:MOST_REJECTS]
        ],
    }


def _likeness(membership: Membership) -> list[Any]:
    spans = [*(membership.seconds or ()), *(membership.like_seconds or ())]
    score = None if membership.score is None else round(membership.score, 3)
    return [membership.kind, score, *(round(second, 2) for second in spans)]


class _Words:
    def __init__(self) -> None:
        self.words: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        if word not in self._numbers:
            self._numbers[word] = len(self.words)
            self.words.append(word)
        return self._numbers[word]
