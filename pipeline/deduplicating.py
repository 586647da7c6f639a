"""Find the duplicates of a cache: pairs of videos, and clusters of which one source is kept."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipeline.aligning import Overlap, align
from pipeline.cache import FeatureCache
from pipeline.candidates import find_candidates
from pipeline.clustering import COVERED, find_sources, group
from pipeline.duplicate import Cluster, Copy, Pair, PairKind
from pipeline.frame_sequences import FrameSequences, read_sequences
from pipeline.probing import read_probes
from schemas.video import Probe, Source

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
MANY_COPIES = 0.1
"""Share of videos from which copies move the centre."""
Counting = Callable[[int, str, str], contextlib.AbstractContextManager[Callable[[int], None]]]
"""(how many, of what, what is done with them) -> what is told how many more are done."""
Spans = dict[str, tuple[float, float]]
"""video_id -> when its first clip begins, and its last one ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """What was found in a cache."""

    pairs: tuple[Pair, ...]
    clusters: tuple[Cluster, ...]
    sources: tuple[Copy, ...]
    """All that were compared."""
    num_left: int
    """Sources that the cache has no video of, such as rejected ones; nothing is said of them."""
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
    among: Callable[[Source], bool] = lambda _: True,
    counting: Counting = lambda *_: contextlib.nullcontext(lambda _: None),
) -> Duplicates:
    """Compare all videos of a cache with each other by a stream's features and by pictures.

    `least_score` None: as of `default_score`. Only sources that are `among` those that count are
    kept or superfluous. Errors as of `read_sequences` and `find_candidates`.
    """
    is_random = has_random_weights(cache, stream=stream)
    if least_score is None:
        least_score = default_score(cache, stream=stream)
    known = read_probes(cache.layout)
    probes = [probe for probe in known if probe.video_id in cache.videos]
    sources = find_sources(cache, (probe for probe in probes if among(probe.source)))
    with counting(len(cache), "clip", "pooled") as on_samples:
        frames = read_sequences(
            cache, stream=stream, with_features=not is_random, on_samples=on_samples
        )
    spans = _spans(cache)
    same_bytes = {(pair.video_a, pair.video_b): pair for pair in _same_bytes(probes, spans)}
    pairs: dict[tuple[str, str], Pair] = {}
    clusters: list[Cluster] = []
    counted = set(frames.video_ids)
    while True:
        centred = frames.centred(counted)
        with counting(len(frames.times), "frame", "compared") as on_frames:
            candidates = find_candidates(centred, least_score=least_score, on_frames=on_frames)
            aligned = _aligned(centred, candidates, least_score=least_score, spans=spans)
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
        num_left=len(known) - len(probes),
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


def _aligned(
    frames: FrameSequences,
    candidates: Iterable[tuple[int, int]],
    *,
    least_score: float,
    spans: Spans,
) -> Iterable[Pair]:
    few_score = least_score + FEW_MARGIN * (1 - least_score)
    for found in candidates:
        a, b = sorted(found, key=lambda number: frames.video_ids[number])
        one = frames.sequence(a)
        overlap = align(one, frames.sequence(b), least_score=least_score)
        if overlap is None or overlap.num_distinct < FEW_DISTINCT:
            continue
        if overlap.num_distinct == FEW_DISTINCT and overlap.score < few_score:
            continue
        mirrored = align(one, frames.sequence(b, mirrored=True), least_score=least_score)
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
