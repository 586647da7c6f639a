"""Plan: a pure, deterministic function of probes and recipe. Existing ShardSpecs never change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

import pyarrow.parquet as pq

from encoders.base import EncoderSpec
from pipeline.layout import CacheLayout
from pipeline.storage import publish_rows
from schemas.plan import Piece, ShardSpec, specs_from_rows
from schemas.recipe import Recipe
from schemas.tables import PLAN_SCHEMA
from schemas.timeline import Grid, num_clips
from schemas.video import Probe, key_stem

SPLIT = "train"
_HEADER_BYTES = 512
_PREVIEW_BYTES_PER_PIXEL = 0.25
"""JPEG at the quality of `packing`."""
_JSON_BYTES = 512


def estimate_clip_bytes(recipe: Recipe, specs: Mapping[str, EncoderSpec]) -> int:
    """Bytes that one clip takes in a tar: features, times, mask, JSON, preview, tar headers."""
    n = recipe.sampling.frames_per_clip
    members = [2 * specs[name].feature_values(n) + 128 for name in recipe.streams]
    members += [16 * n + 128, n + 128, _JSON_BYTES]
    if recipe.preview.enabled:
        pixels = n * recipe.preview.height**2 * 16 / 9
        members.append(int(pixels * _PREVIEW_BYTES_PER_PIXEL))
    return sum(_HEADER_BYTES + -(-size // 512) * 512 for size in members)


def settle_ids(probes: Sequence[Probe], existing: Iterable[ShardSpec]) -> list[Probe]:
    """The probes, with a reject for each whose id is already used for other content.

    What the cache already holds under an id wins; of several new contents under one id none does,
    so that the outcome does not depend on the order.
    """
    planned = {piece.video_id: piece for spec in existing for piece in spec.pieces}
    contents: dict[str, set[object]] = {}
    for probe in probes:
        if probe.reject is None:
            contents.setdefault(probe.video_id, set()).add(_content(probe))
    settled = []
    for probe in probes:
        piece = planned.get(probe.video_id)
        if probe.reject is not None:
            pass
        elif piece is not None:
            held = (piece.content_sha256, piece.start_seconds, piece.end_seconds)
            if held != _content(probe):
                same = piece.uri == probe.source.uri and held[1:] == _content(probe)[1:]
                reason = "source_changed" if same else "id_conflict"
                detail = f"the cache holds {probe.video_id!r} with content {held[0][:16]}"
                probe = probe.rejected(reason, detail, stage="plan")
        elif len(contents[probe.video_id]) > 1:
            detail = f"{probe.video_id!r} is given to {len(contents[probe.video_id])} contents"
            probe = probe.rejected("id_conflict", detail, stage="plan")
        settled.append(probe)
    return settled


def extend_plan(
    probes: Iterable[Probe],
    *,
    recipe: Recipe,
    recipe_fingerprint: str,
    clip_bytes: int,
    existing: Sequence[ShardSpec],
) -> list[ShardSpec]:
    """The ShardSpecs to add for the videos that the plan does not have yet.

    Whole videos go into a shard until it is full by bytes or by seconds of video; a video longer
    than a shard is cut at clip boundaries. The order of `probes` makes no difference.
    """
    planned = {piece.video_id for spec in existing for piece in spec.pieces}
    videos: dict[str, Probe] = {}
    for probe in sorted(probes, key=_preference):
        if probe.reject is None and probe.video_id not in planned:
            videos.setdefault(probe.video_id, probe)
    clip_seconds = recipe.sampling.frames_per_clip / recipe.sampling.fps
    shard_clips = max(
        1,
        min(
            recipe.shards.target_bytes // clip_bytes,
            int(recipe.shards.max_seconds / clip_seconds),
        ),
    )
    groups: list[list[Piece]] = []
    room = 0
    for video_id in sorted(videos, key=_shard_order):
        for piece in _cut(videos[video_id], recipe, shard_clips=shard_clips, clip_bytes=clip_bytes):
            if piece.num_clips > room:
                groups.append([])
                room = shard_clips
            groups[-1].append(piece)
            room -= piece.num_clips
    first = 1 + max((spec.index for spec in existing), default=-1)
    return [
        ShardSpec(
            index=first + number,
            split=SPLIT,
            recipe_fingerprint=recipe_fingerprint,
            pieces=tuple(group),
        )
        for number, group in enumerate(groups)
    ]


def _shard_order(video_id: str) -> str:
    # The order of keys in a tar: a key is the stem and "_" and the clip.
    return key_stem(video_id) + "_"


def _preference(probe: Probe) -> tuple[str, str]:
    # Of byte-identical files one is decoded; by name first, so that moving a folder changes nothing.
    return PurePath(probe.source.uri).name, probe.source.uri


def _content(probe: Probe) -> tuple[str, float | None, float | None]:
    return probe.content_sha256, probe.source.start_seconds, probe.source.end_seconds


def _cut(probe: Probe, recipe: Recipe, *, shard_clips: int, clip_bytes: int) -> list[Piece]:
    source = probe.source
    grid = Grid.of(
        first_seconds=probe.first_seconds,
        fps=recipe.sampling.fps,
        start_seconds=source.start_seconds,
        end_seconds=source.end_seconds,
    )
    total = num_clips(grid.num_samples(probe.last_seconds), recipe.sampling.frames_per_clip)
    whole = Piece(
        uri=source.uri,
        video_id=probe.video_id,
        content_sha256=probe.content_sha256,
        size_bytes=probe.size_bytes,
        mtime_ns=probe.mtime_ns,
        start_seconds=source.start_seconds,
        end_seconds=source.end_seconds,
        duration_seconds=probe.duration_seconds,
        truncated=probe.truncated,
        has_audio=probe.has_audio,
        first_clip=0,
        num_clips=total,
        is_last=True,
        estimated_bytes=total * clip_bytes,
    )
    return [
        replace(
            whole,
            first_clip=start,
            num_clips=min(shard_clips, total - start),
            is_last=start + shard_clips >= total,
            estimated_bytes=min(shard_clips, total - start) * clip_bytes,
        )
        for start in range(0, total, shard_clips)
    ]


def read_plan(layout: CacheLayout) -> list[ShardSpec]:
    """All ShardSpecs, in order of their index."""
    rows = [
        row for path in layout.extensions(layout.plan) for row in pq.read_table(path).to_pylist()
    ]
    return sorted(specs_from_rows(rows), key=lambda spec: spec.index)


def write_plan(specs: Iterable[ShardSpec], layout: CacheLayout) -> None:
    """Add one immutable file of ShardSpecs."""
    rows = [row for spec in specs for row in spec.to_rows()]
    publish_rows(rows, PLAN_SCHEMA, layout.next_extension(layout.plan), scratch=layout.scratch)
