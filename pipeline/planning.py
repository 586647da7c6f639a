"""Plan: a pure, deterministic function of probes and recipe. Existing ShardSpecs never change."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from pipeline.cache import read_info
from pipeline.layout import CacheLayout
from pipeline.places import list_sizes
from pipeline.storage import publish_rows, read_table, table_rows
from schemas.compact import stored_shape
from schemas.errors import CacheDamaged, FingerprintMismatch, RecipeError
from schemas.json_text import parse_json
from schemas.plan import Piece, ShardSpec, specs_from_rows
from schemas.recipe import AUDIO, Recipe, differing_fields
from schemas.tables import PLAN_SCHEMA
from schemas.timeline import Grid, num_clips, windows_per_clip
from schemas.video import Probe, key_stem

SPLIT = "train"
_HEADER_BYTES = 512
_NPY_BYTES = 128
"""Before the values of an array."""
_PREVIEW_BYTES = (620, 1450, 1.58)
"""A JPEG at the quality of `packing`: its tables, a frame of 64 lines, and the power of the height
with which that grows. Means of 88 real videos, at 16 to 512 lines and 1 to 16 frames."""
_JSON_BYTES = 1024
_LOST_PLAN = "bring it back from a copy of the cache, or make a new cache"


def estimate_clip_bytes(recipe: Recipe, stamps: Mapping[str, Mapping[str, Any]]) -> int:
    """Bytes that one clip takes in a tar: features, times, mask, JSON, preview, tar headers."""
    return sum(estimate_member_bytes(recipe, stamps).values())


def estimate_member_bytes(
    recipe: Recipe, stamps: Mapping[str, Mapping[str, Any]]
) -> dict[str, int]:
    """Of one clip in a tar: stream, `audio`, `preview` and `rest` -> bytes, with tar headers.

    All are exact but those of previews, which differ from picture to picture, and of JSON where
    names are long.
    """
    n = recipe.sampling.frames_per_clip
    told = feature_bytes(recipe, stamps)
    members = {name: [size + _NPY_BYTES for size in sizes] for name, sizes in told.items()}
    if recipe.preview.enabled:
        tables, frame, power = _PREVIEW_BYTES
        members["preview"] = [int(tables + n * frame * (recipe.preview.height / 64) ** power)]
    members["rest"] = [16 * n + _NPY_BYTES, n + _NPY_BYTES, _JSON_BYTES]
    return {
        name: sum(_HEADER_BYTES + -(-size // 512) * 512 for size in sizes)
        for name, sizes in members.items()
    }


def feature_bytes(
    recipe: Recipe, stamps: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[int, ...]]:
    """Stream, and `audio` -> bytes of the arrays that a clip has of it: values, scales or mask."""
    n = recipe.sampling.frames_per_clip
    sizes: dict[str, tuple[int, ...]] = {}
    for name, stream in recipe.streams.items():
        shape = stored_shape(stream, stamps[name], num_frames=n)
        num_values = math.prod(shape)
        is_int8 = stream.dtype == "int8"
        sizes[name] = (num_values, 4 * shape[-1]) if is_int8 else (2 * num_values,)
    if recipe.audio is not None:
        windows = windows_per_clip(fps=recipe.sampling.fps, frames_per_clip=n)
        num_values = windows * recipe.audio.tokens_per_window * stamps[AUDIO]["dim"]
        sizes[AUDIO] = (2 * num_values, windows)
    return sizes


def extend_plan(
    probes: Iterable[Probe],
    *,
    recipe: Recipe,
    recipe_fingerprint: str,
    clip_bytes: int,
    existing: Sequence[ShardSpec],
    again: Sequence[Piece] = (),
) -> list[ShardSpec]:
    """The ShardSpecs to add: videos that the plan does not have yet, and pieces to do `again`.

    Whole videos go into a shard until it is full by bytes or by seconds of video; a video of more
    bytes than a shard takes is cut at clip boundaries, one that is only long has a shard of its
    own. The order of `probes` makes no difference.
    """
    planned = {piece.video_id for spec in existing for piece in spec.pieces}
    videos: dict[str, Probe] = {}
    for probe in sorted(probes, key=_preference):
        if probe.reject is None and probe.video_id not in planned:
            videos.setdefault(probe.video_id, probe)
    most_clips = max(1, recipe.shards.target_bytes // clip_bytes)
    pieces = list(again)
    for probe in videos.values():
        pieces += cut_pieces(probe, recipe, shard_clips=most_clips, clip_bytes=clip_bytes)
    first = 1 + max((spec.index for spec in existing), default=-1)
    return [
        ShardSpec(
            index=first + number,
            split=SPLIT,
            recipe_fingerprint=recipe_fingerprint,
            pieces=tuple(group),
        )
        for number, group in enumerate(group_pieces(pieces, recipe=recipe, clip_bytes=clip_bytes))
    ]


def group_pieces(pieces: Iterable[Piece], *, recipe: Recipe, clip_bytes: int) -> list[list[Piece]]:
    """Pieces shard by shard: in the order of keys, until a shard is full by bytes or by seconds."""
    clip_seconds = recipe.sampling.frames_per_clip / recipe.sampling.fps
    most_clips = max(1, recipe.shards.target_bytes // clip_bytes)
    few_clips = max(1, min(most_clips, int(recipe.shards.max_seconds / clip_seconds)))
    groups: list[list[Piece]] = []
    room = 0
    for piece in sorted(pieces, key=_shard_order):
        if piece.num_clips > room:
            groups.append([])
            room = few_clips
        groups[-1].append(piece)
        room -= piece.num_clips
    return groups


def _shard_order(piece: Piece) -> tuple[str, int]:
    # The order of keys in a tar: a key is the stem and "_" and the clip.
    return key_stem(piece.video_id) + "_", piece.first_clip


def _preference(probe: Probe) -> tuple[str, str]:
    # Of byte-identical files one is decoded: by name first, so that a folder may move.
    return PurePath(probe.source.uri).name, probe.source.uri


def cut_pieces(probe: Probe, recipe: Recipe, *, shard_clips: int, clip_bytes: int) -> list[Piece]:
    """The clips of a video, in pieces of at most `shard_clips`."""
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
        times_go_back=probe.times_go_back,
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
    """All ShardSpecs, in order of their index. CacheDamaged."""
    paths = layout.extensions(layout.plan)
    try:
        rows = (row for path in paths for row in table_rows(read_table(path)))
        return sorted(specs_from_rows(rows), key=lambda spec: spec.index)
    except (LookupError, ValueError, TypeError) as error:
        raise CacheDamaged(f"{layout.plan}: not a plan: {error}", hint=_LOST_PLAN) from error
    except CacheDamaged as error:
        raise CacheDamaged(error.message, hint=_LOST_PLAN) from error


def write_plan(
    specs: Iterable[ShardSpec],
    layout: CacheLayout,
    *,
    recipe: Recipe,
    stamps: Mapping[str, Mapping[str, Any]],
    number: int | None = None,
) -> None:
    """Add one immutable file of ShardSpecs; it carries the recipe, whatever becomes of the run.

    It has the next number, or the one given.
    """
    rows = (row for spec in specs for row in spec.to_rows())
    made_by = json.dumps(
        {
            "fingerprint": recipe.fingerprint(stamps),
            "recipe": recipe.to_mapping(),
            "stamps": stamps,
        }
    )
    schema = PLAN_SCHEMA.with_metadata({"made_by": made_by})
    publish_rows(rows, schema, layout.extension(layout.plan, number), scratch=layout.scratch)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBy:
    """What a plan was made with."""

    fingerprint: str
    """As it was computed then: another version may compute another one."""
    recipe: Recipe
    stamps: dict[str, dict[str, Any]]


def read_made_by(layout: CacheLayout) -> MadeBy | None:
    """What the plan was made with; None without a plan. CacheDamaged."""
    files = layout.extensions(layout.plan)
    if not files:
        return None
    try:
        metadata = read_table(files[-1]).schema.metadata or {}
        made_by = parse_json(metadata[b"made_by"])
        recipe = Recipe.from_mapping(made_by["recipe"])
        return MadeBy(fingerprint=made_by["fingerprint"], recipe=recipe, stamps=made_by["stamps"])
    except (LookupError, ValueError, TypeError, AttributeError, RecipeError) as error:
        detail = f"does not say which recipe made it: {error}"
        raise CacheDamaged(f"{files[-1]}: {detail}", hint=_LOST_PLAN) from error
    except CacheDamaged as error:
        raise CacheDamaged(error.message, hint=_LOST_PLAN) from error


def check_recipe(
    layout: CacheLayout, recipe: Recipe, stamps: Mapping[str, Mapping[str, Any]]
) -> None:
    """FingerprintMismatch, with the differing fields, if the cache was begun by another recipe.

    CacheDamaged, CacheError: cache.json is not what this version reads.
    """
    if layout.info.name in list_sizes(layout.root):
        read_info(layout)  # of a format that this version knows
    old = read_made_by(layout)
    if old is None:
        return
    want = recipe.fingerprint(stamps)
    if old.fingerprint != want:
        fields = differing_fields(old.recipe.identity(old.stamps), recipe.identity(stamps))
        what = "; ".join(fields) or "another version of reelcache made it"
        hint = (
            "use another folder for the new recipe, or leave out --recipe and --set to go on with"
            " the cache's own"
        )
        if fields and all(".weights_sha256: " in field for field in fields):
            hint = "give the weights that it was made with, or use another folder for these"
        raise FingerprintMismatch(
            f"{layout.root} was made by recipe {old.recipe.name!r} ({old.fingerprint[:8]}), this is"
            f" {recipe.name!r} ({want[:8]}): {what}",
            hint=hint,
        )
