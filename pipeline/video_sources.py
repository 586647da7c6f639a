"""The videos of a cache as files that can be decoded again."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pipeline.cache import FeatureCache
from pipeline.planning import read_plan
from pipeline.probing import read_probes
from pipeline.recovering import follow_moves
from schemas.plan import Piece
from schemas.timeline import Grid
from schemas.video import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoSource:
    """A video of a cache and its file."""

    piece: Piece
    """All of the video; where its file lies now, if equal content has moved."""
    origin_seconds: float
    """When its first frame is displayed, or its span begins: where window 0 of its sound is."""
    end_seconds: float
    """When its last frame is over as the container says, or its span."""

    @property
    def video_id(self) -> str:
        return self.piece.video_id

    @property
    def seconds(self) -> float:
        """How long it is; >= 0."""
        return max(0.0, self.end_seconds - self.origin_seconds)


def video_sources(cache: FeatureCache, *, video_ids: Collection[str]) -> list[VideoSource]:
    """Those of the videos that the plan and the probes know, in the order of their ids.

    Whether a file is there and unchanged, only opening it tells. CacheDamaged.
    """
    probes = [probe for probe in read_probes(cache.layout) if probe.reject is None]
    pieces = newest_pieces(cache, probes, video_ids=video_ids)
    firsts = {probe.video_id: probe.first_seconds for probe in probes}
    return [
        _source(pieces[video_id], firsts[video_id], cache)
        for video_id in sorted(pieces)
        if video_id in firsts
    ]


def newest_pieces(
    cache: FeatureCache, probes: Sequence[Probe], *, video_ids: Collection[str]
) -> dict[str, Piece]:
    """video_id -> the piece of it that was planned last, whose file is where it lies now.

    If equal content of it has moved, that is where one of `probes`, the cache's, has it.
    CacheDamaged.
    """
    wanted = frozenset(video_ids)
    specs = [
        replace(spec, pieces=tuple(one for one in spec.pieces if one.video_id in wanted))
        for spec in read_plan(cache.layout)
    ]
    return {piece.video_id: piece for spec in follow_moves(specs, probes) for piece in spec.pieces}


def _source(piece: Piece, first_seconds: float, cache: FeatureCache) -> VideoSource:
    sampling = cache.recipe.sampling
    grid = Grid.of(
        first_seconds=first_seconds,
        fps=sampling.fps,
        start_seconds=piece.start_seconds,
        end_seconds=piece.end_seconds,
    )
    end = first_seconds + piece.duration_seconds
    if piece.end_seconds is not None:
        end = min(end, piece.end_seconds)
    num_frames = max(1, math.ceil((end - grid.origin_seconds) * sampling.fps))
    whole = replace(
        piece,
        first_clip=0,
        num_clips=-(-num_frames // sampling.frames_per_clip),
        is_last=True,
    )
    return VideoSource(piece=whole, origin_seconds=grid.origin_seconds, end_seconds=end)
