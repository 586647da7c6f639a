"""Encode one video here and without Beam: into a cache of it alone, as a run would have made it.

    cache = encode_video(find_video("talk.mp4"), recipe=recipe, stamps=stamps, encoders=encoders,
                         folder=tmp / "cache")

Every step is the function of a run: probe, plan, build, finalize. So a sample has the key and the
bytes that it has in any cache of the same recipe.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.cache import FeatureCache, open_cache
from pipeline.encoding import StreamEncoders
from pipeline.finalizing import account_for, finalize_cache
from pipeline.jail import DecoderProcess
from pipeline.layout import CacheLayout
from pipeline.planning import estimate_clip_bytes, extend_plan, write_plan
from pipeline.pool import DecoderPool, num_cores
from pipeline.probing import probe_source, write_probes
from pipeline.sharding import BuildTools, build_shard
from pipeline.signing import learn
from pipeline.sources import read_sources
from schemas.errors import UsageError
from schemas.plan import Piece, ShardSpec
from schemas.recipe import Recipe
from schemas.reject import REASONS, Reject
from schemas.timeline import Grid
from schemas.video import Probe, Source

Span = tuple[float, float]
"""[start, end) in seconds on the video's own clock."""


def find_video(where: str) -> Source:
    """The one video that a path or a URL names. UsageError: it names none, or several."""
    sources = read_sources([where]).sources
    if len(sources) != 1:
        raise UsageError(
            f"{where} names {len(sources)} videos, not one",
            hint="name one file; many are encoded with: pipeline run SOURCES CACHE",
        )
    return sources[0]


def encode_video(
    source: Source,
    *,
    recipe: Recipe,
    stamps: Mapping[str, Mapping[str, Any]],
    encoders: StreamEncoders,
    folder: Path,
    span: Span | None = None,
) -> FeatureCache:
    """The samples of one video, in a cache that is written to `folder`.

    `encoders` are those of the recipe and `stamps` theirs. `span`: only those clips of the video's
    own grid that overlap it, whose samples are the same as without. UsageError: the video cannot
    be used, with the reason; or no clip overlaps the span. DeviceError: one clip is too much for
    the GPU. StorageError: the disk is full.
    """
    layout = CacheLayout(folder)
    source = replace(source, uri=learn(source.uri))
    with _decoders(recipe) as (pool, hearer):
        probe = probe_source(
            source, limits=recipe.limits, process=pool.processes[0], scratch=layout.scratch
        )
        if probe.reject is not None:
            raise _as_usage(probe.reject)
        specs = _plan(probe, recipe, stamps)
        if span is not None:
            specs = _of_span(specs, span, probe=probe, recipe=recipe)
        write_probes([probe], layout)
        write_plan(specs, layout, recipe=recipe, stamps=stamps)
        tools = BuildTools(
            recipe=recipe, layout=layout, encoders=encoders, pool=pool, hearer=hearer
        )
        sidecars = [build_shard(spec, tools=tools) for spec in specs]
    if not any(sidecar.samples for sidecar in sidecars):
        raise _as_usage(sidecars[-1].rejects[-1])
    finalize_cache(
        layout,
        recipe=recipe,
        stamps=stamps,
        account=account_for([probe], sidecars),
        sources=[source],
        sidecars=sidecars,
        max_reject_rate=1.0,
    )
    return open_cache(folder)


@contextlib.contextmanager
def _decoders(recipe: Recipe) -> Iterator[tuple[DecoderPool, DecoderProcess | None]]:
    programs = recipe.decode.backend == "ffmpeg"
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(
            DecoderPool(recipe.limits, num_processes=num_cores(), allow_programs=programs)
        )
        pool.spawn()
        hearer = None
        if recipe.audio is not None:
            hearer = stack.enter_context(DecoderProcess(recipe.limits))
            hearer.spawn()
        yield pool, hearer


def _plan(probe: Probe, recipe: Recipe, stamps: Mapping[str, Mapping[str, Any]]) -> list[ShardSpec]:
    return extend_plan(
        [probe],
        recipe=recipe,
        recipe_fingerprint=recipe.fingerprint(stamps),
        clip_bytes=estimate_clip_bytes(recipe, stamps),
        existing=[],
    )


def _of_span(
    specs: Sequence[ShardSpec], span: Span, *, probe: Probe, recipe: Recipe
) -> list[ShardSpec]:
    """The plan with those of its clips that overlap the span. UsageError: there are none."""
    start, end = span
    grid = Grid.of(
        first_seconds=probe.first_seconds,
        fps=recipe.sampling.fps,
        start_seconds=probe.source.start_seconds,
        end_seconds=probe.source.end_seconds,
    )
    T = recipe.sampling.frames_per_clip

    def overlaps(piece: Piece, clip: int) -> bool:
        # The last clip of all lasts as long as the last frame, which only decoding tells.
        is_last = piece.is_last and clip == piece.first_clip + piece.num_clips - 1
        return grid.time(clip * T) < end and (is_last or grid.time((clip + 1) * T) > start)

    kept = []
    for spec in specs:
        pieces = []
        for piece in spec.pieces:
            stop = piece.first_clip + piece.num_clips
            clips = [clip for clip in range(piece.first_clip, stop) if overlaps(piece, clip)]
            if clips:
                cut = replace(
                    piece,
                    first_clip=clips[0],
                    num_clips=len(clips),
                    is_last=piece.is_last and clips[-1] == stop - 1,
                    estimated_bytes=piece.estimated_bytes * len(clips) // piece.num_clips,
                )
                pieces.append(cut)
        if pieces:
            kept.append(replace(spec, pieces=tuple(pieces)))
    if not kept or start >= probe.first_seconds + probe.duration_seconds:
        stop_seconds = probe.first_seconds + probe.duration_seconds
        raise UsageError(
            f"the span {start:g}-{end:g} lies outside of the video, which is"
            f" {probe.first_seconds:g}-{stop_seconds:g} seconds"
        )
    return kept


def _as_usage(reject: Reject) -> UsageError:
    meaning = REASONS[reject.reason][0]
    detail = f": {reject.detail}" if reject.detail else ""
    return UsageError(f"{reject.uri}: {reject.reason} ({meaning}){detail}")
