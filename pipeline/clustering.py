"""Put sources that make each other superfluous into clusters, and choose which one is kept.

A source is superfluous if the one that is kept has nearly all of it, as is seen by itself or by way
of a third. Two that have only a part in common are both kept.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from pipeline.cache import FeatureCache
from pipeline.duplicate import Cluster, Copy, Member, Pair
from schemas.video import Probe

COVERED = 0.8
"""Share of a video's frames that another one has to have to stand for it."""
Span = tuple[float, float]
"""[start, end) in seconds on a video's own clock."""


def find_sources(cache: FeatureCache, probes: Iterable[Probe]) -> dict[str, Sequence[Copy]]:
    """video_id -> its sources, the best first."""
    columns = cache.index.select(["video_id", "corrupt", "truncated", "black"]).to_pydict()
    damaged: set[str] = set()
    black: dict[str, float] = {}
    for video_id, corrupt, truncated, share in zip(*columns.values(), strict=True):
        if corrupt or truncated:
            damaged.add(video_id)
        if share is not None:
            black[video_id] = min(share, black.get(video_id, 1.0))
    found: dict[str, list[Copy]] = defaultdict(list)
    for probe in probes:
        source = probe.source
        start, end = source.start_seconds, source.end_seconds
        first, duration = probe.first_seconds, probe.duration_seconds
        begin = first if start is None else max(first, start)
        until = first + duration if end is None else min(first + duration, end)
        found[probe.video_id].append(
            Copy(
                video_id=probe.video_id,
                uri=source.uri,
                width=probe.width,
                height=probe.height,
                duration_seconds=round(max(0.0, until - begin), 6),
                size_bytes=probe.size_bytes,
                start_seconds=start,
                end_seconds=end,
                user_id=source.video_id,
                is_damaged=probe.truncated or probe.video_id in damaged,
                black=min(black.get(probe.video_id, 0.0), 0.95),
            )
        )
    return {
        video_id: sorted(found[video_id], key=lambda copy: (copy.rank, copy.uri))
        for video_id in sorted(found)
    }


def group(pairs: Iterable[Pair], sources: dict[str, Sequence[Copy]]) -> list[Cluster]:
    """Clusters of sources: the best one first takes what it covers, then the next."""
    covers: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        if pair.covers_b >= COVERED:
            covers[pair.video_a].append(pair)
        if pair.covers_a >= COVERED:
            covers[pair.video_b].append(pair.turned())
    taken: set[str] = set()
    clusters: list[Cluster] = []
    for video_id in sorted(sources, key=lambda one: (sources[one][0].rank, sources[one][0].uri)):
        if video_id in taken:
            continue
        taken.add(video_id)
        keep, *same = sources[video_id]
        members = [Member(copy=copy, kind="exact", score=1.0, pair=None) for copy in same]
        held: dict[str, Span] = {video_id: (-math.inf, math.inf)}
        queue = [video_id]
        for own in queue:
            for pair in sorted(covers[own], key=lambda pair: (-pair.score, pair.video_b)):
                if pair.video_b in taken or pair.video_b not in sources:
                    continue
                share, span = _hand_on(held[own], pair)
                if round(share * pair.covers_b, 6) < COVERED:
                    continue
                taken.add(pair.video_b)
                held[pair.video_b] = span
                queue.append(pair.video_b)
                members += [
                    Member(copy=copy, kind=pair.kind, score=pair.score, pair=pair)
                    for copy in sources[pair.video_b]
                ]
        if members:
            clusters.append(Cluster(number=len(clusters), keep=keep, copies=tuple(members)))
    return clusters


def _hand_on(held: Span, pair: Pair) -> tuple[float, Span]:
    """Of what b shows of a, the part and the span of b that show what is held of a.

    Else of pieces that each overlap the next by most, the first would stand for the last.
    """
    length = max(1e-9, pair.end_a_seconds - pair.start_a_seconds)
    first, last = (min(1.0, max(0.0, (end - pair.start_a_seconds) / length)) for end in held)
    length_b = pair.end_b_seconds - pair.start_b_seconds
    span = pair.start_b_seconds + first * length_b, pair.start_b_seconds + last * length_b
    return last - first, span
