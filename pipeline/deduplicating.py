"""Find the duplicates of a cache: pairs of videos, and clusters of which one source is kept.

A source is superfluous if a better one has nearly all of it, itself or by way of a third. Two that
have only a part in common are told as a pair, and both are kept.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pipeline.aligning import Overlap, align
from pipeline.cache import FeatureCache
from pipeline.candidates import find_candidates
from pipeline.duplicate import Cluster, Copy, Member, Pair, PairKind
from pipeline.frame_sequences import FrameSequences, read_sequences
from pipeline.probing import read_probes
from schemas.video import Probe

LEAST_SCORE = 0.5
"""Of a pair; docs/duplicates.md has what it was measured on."""
LEAST_SCORE_PICTURES = 0.55
"""Of pictures alone, where features have random weights."""
LEAST_SCORE_RANDOM = 0.965
"""Of features of random weights alone, in which much is alike."""
MIRRORED = 0.05
"""By which a video's mirror image has to be more alike than the video itself to be no copy."""
FEW_DISTINCT, FEW_MARGIN = 2, 0.95
"""So few unlike frames count if the score goes that part of the way from the least one to 1."""
COVERED = 0.8
"""Share of a video's frames that another one has to have to stand for it."""
MANY_COPIES = 0.1
"""Share of videos from which copies move the centre."""
Spans = dict[str, tuple[float, float]]
"""video_id -> when its first clip begins, and its last one ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """What was found in a cache."""

    pairs: tuple[Pair, ...]
    clusters: tuple[Cluster, ...]
    sources: tuple[Copy, ...]
    """All that were compared."""
    num_videos: int
    least_score: float

    @property
    def kept(self) -> list[Copy]:
        """The sources without those that are superfluous."""
        dropped = {id(member.copy) for cluster in self.clusters for member in cluster.copies}
        return [copy for copy in self.sources if id(copy) not in dropped]


def find_duplicates(
    cache: FeatureCache,
    *,
    stream: str,
    least_score: float | None = None,
    on_samples: Callable[[int], None] = lambda _: None,
) -> Duplicates:
    """Compare all videos of a cache with each other by a stream's features.

    Errors as of `pool_frames` and `find_candidates`.
    """
    is_random = has_random_weights(cache, stream=stream)
    if least_score is None:
        least_score = default_score(cache, stream=stream)
    probes = [probe for probe in read_probes(cache.layout) if probe.video_id in cache.videos]
    sources = _sources(cache, probes)
    frames = read_sequences(
        cache, stream=stream, with_features=not is_random, on_samples=on_samples
    )
    spans = _spans(cache)
    same_bytes = {(pair.video_a, pair.video_b): pair for pair in _same_bytes(probes, spans)}
    pairs: dict[tuple[str, str], Pair] = {}
    clusters: list[Cluster] = []
    counted = set(frames.video_ids)
    while True:
        aligned = _aligned(frames.centred(counted), least_score=least_score, spans=spans)
        pairs = {(pair.video_a, pair.video_b): pair for pair in aligned} | same_bytes
        clusters = group(pairs.values(), sources)
        kept = {cluster.keep.video_id for cluster in clusters}
        told = {member.copy.video_id for cluster in clusters for member in cluster.copies}
        superfluous = told - kept
        # A video with many copies pulls the centre to itself, from where its own copies look
        # unlike: once more then, each cluster counted once.
        again = len(counted) == len(frames) and len(superfluous) > MANY_COPIES * len(frames)
        if not again or not frames.features.shape[1]:
            break
        counted -= superfluous
    return Duplicates(
        pairs=tuple(pairs[key] for key in sorted(pairs)),
        clusters=tuple(clusters),
        sources=tuple(itertools.chain.from_iterable(sources.values())),
        num_videos=len(frames),
        least_score=least_score,
    )


def default_score(cache: FeatureCache, *, stream: str) -> float:
    """The score from which a pair counts, by what there is to compare."""
    if not has_random_weights(cache, stream=stream):
        return LEAST_SCORE
    return LEAST_SCORE_PICTURES if cache.recipe.preview.enabled else LEAST_SCORE_RANDOM


def has_random_weights(cache: FeatureCache, *, stream: str) -> bool:
    """Its features mean nothing, and pictures say all that they do."""
    from encoders.weights import RANDOM

    one = cache.recipe.settings().get(stream)
    return one is not None and (one.weights == RANDOM or one.encoder.startswith("random-"))


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
        queue = [video_id]
        for own in queue:
            for pair in sorted(covers[own], key=lambda pair: (-pair.score, pair.video_b)):
                if pair.video_b in taken or pair.video_b not in sources:
                    continue
                taken.add(pair.video_b)
                queue.append(pair.video_b)
                members += [
                    Member(copy=copy, kind=pair.kind, score=pair.score, pair=pair)
                    for copy in sources[pair.video_b]
                ]
        if members:
            clusters.append(Cluster(number=len(clusters), keep=keep, copies=tuple(members)))
    return clusters


def _sources(cache: FeatureCache, probes: Iterable[Probe]) -> dict[str, Sequence[Copy]]:
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
                is_damaged=probe.truncated or probe.video_id in damaged,
                black=min(black.get(probe.video_id, 0.0), 0.95),
            )
        )
    return {
        video_id: sorted(found[video_id], key=lambda copy: (copy.rank, copy.uri))
        for video_id in sorted(found)
    }


def _spans(cache: FeatureCache) -> Spans:
    starts, ends = (cache.index.column(f"{one}_seconds").to_numpy() for one in ("start", "end"))
    return {
        video_id: (float(starts[rows].min()), float(ends[rows].max()))
        for video_id, rows in cache.rows_by_video.items()
    }


def _same_bytes(probes: Iterable[Probe], spans: Spans) -> Iterable[Pair]:
    """Of sources with ids that the user gave: else equal bytes have one id."""
    by_content: dict[object, set[str]] = defaultdict(set)
    for probe in probes:
        if probe.content_sha256:
            span = probe.source.start_seconds, probe.source.end_seconds
            by_content[probe.content_sha256, *span].add(probe.video_id)
    for video_ids in by_content.values():
        for a, b in itertools.combinations(sorted(video_ids), 2):
            yield Pair(
                video_a=a,
                video_b=b,
                start_a_seconds=spans[a][0],
                end_a_seconds=spans[a][1],
                start_b_seconds=spans[b][0],
                end_b_seconds=spans[b][1],
                score=1.0,
                kind="exact",
                covers_a=1.0,
                covers_b=1.0,
            )


def _aligned(frames: FrameSequences, *, least_score: float, spans: Spans) -> Iterable[Pair]:
    few_score = least_score + FEW_MARGIN * (1 - least_score)
    for found in find_candidates(frames, least_score=least_score):
        a, b = sorted(found, key=lambda number: frames.video_ids[number])
        overlap = align(frames.sequence(a), frames.sequence(b), least_score=least_score)
        if overlap is None or overlap.num_distinct < FEW_DISTINCT:
            continue
        if overlap.num_distinct == FEW_DISTINCT and overlap.score < few_score:
            continue
        mirrored = align(
            frames.sequence(a), frames.sequence(b, mirrored=True), least_score=least_score
        )
        if mirrored is None or mirrored.score < overlap.score + MIRRORED:
            yield _pair(frames, a, b, overlap, spans=spans)


def _pair(frames: FrameSequences, a: int, b: int, overlap: Overlap, *, spans: Spans) -> Pair:
    shared, covers = [], []
    for number, first, last in (
        (a, overlap.first_a, overlap.last_a),
        (b, overlap.first_b, overlap.last_b),
    ):
        sequence = frames.sequence(number)
        end = float(sequence.times[last]) + sequence.step_seconds
        shared.append((float(sequence.times[first]), min(end, spans[frames.video_ids[number]][1])))
        covers.append(_share(first, last, len(sequence.times), rate=overlap.rate, is_b=number == b))
    kind: PairKind = "copy" if min(covers) >= COVERED else "part"
    return Pair(
        video_a=frames.video_ids[a],
        video_b=frames.video_ids[b],
        start_a_seconds=shared[0][0],
        end_a_seconds=shared[0][1],
        start_b_seconds=shared[1][0],
        end_b_seconds=shared[1][1],
        score=overlap.score,
        kind=kind,
        covers_a=covers[0],
        covers_b=covers[1],
    )


def _share(first: int, last: int, total: int, *, rate: float, is_b: bool) -> float:
    # The last frame of the slower one that another speed steps over is covered as well.
    rest = max(0.0, (rate if is_b else 1 / rate) - 1)
    return min(1.0, (last - first + 1 + rest) / total)
