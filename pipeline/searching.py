"""Search a cache: which spans of its videos are nearest to a query."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.cache import FeatureCache
from pipeline.clip_vectors import Vectors, mean_of_frames, to_directions
from pipeline.places import read_bytes
from pipeline.pooling import Pool, mean_of_grids
from pipeline.probing import read_probes
from pipeline.search_index import SearchIndex
from schemas.errors import CacheDamaged, UsageError
from schemas.sample import decode_npy

LEAST_SHARE = 0.5
"""Of the score of a span's best clip, of a clip that joins it."""
FEWEST = 64
"""Clips that are asked for at first, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A clip that was found."""

    key: str
    video_id: str
    clip_index: int
    start_seconds: float
    end_seconds: float
    score: float
    """Inner product of the directions: 1 for the same, in a text space seldom above 0.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSpan:
    """Clips next to each other in a video, or a single one."""

    rank: int
    """From 1 on."""
    score: float
    """Of its best clip."""
    key: str
    """Of its best clip."""
    video_id: str
    source: str
    """Where a file of the video lies, or lay."""
    start_seconds: float
    end_seconds: float
    """[start, end) on the source's clock."""
    keys: tuple[str, ...]
    """Of all its clips, in order of time."""


def vector_of_clip(
    cache: FeatureCache, key: str, *, stream: str, kept_as: str, pool: Pool | None = mean_of_grids
) -> Vectors:
    """(D,) float32: the mean of a clip's real frames, before centring.

    From what is kept of its shard, else from the sample itself by `pool`. UsageError: no such key,
    or nothing is kept and there is no `pool`.
    """
    row = cache.row(key)
    T = cache.recipe.sampling.frames_per_clip
    kept = _kept_frames(cache, key, shard=row.shard, kept_as=kept_as)
    if kept is None:
        if pool is None:
            raise UsageError(
                f"{key} was not put into the text space yet",
                hint=f"its weights do so: --weights {stream}=FILE",
            )
        kept = pool(cache[key].decode(stream)).astype(np.float16)
    vector_D: Vectors = mean_of_frames(kept[None], np.array([row.num_frames]), T=T)[0]
    return vector_D


def _kept_frames(cache: FeatureCache, key: str, *, shard: str, kept_as: str) -> Vectors | None:
    rows = cache.extents.rows_by_shard()[shard]
    names = cache.index.column("key").take(rows).to_pylist()
    try:
        vectors_NGD = decode_npy(read_bytes(cache.layout.vectors_of(kept_as, shard)))
    except (OSError, ValueError):
        return None
    if vectors_NGD.ndim != 3 or len(vectors_NGD) != len(names) or vectors_NGD.dtype != np.float16:
        return None
    frames_GD: Vectors = vectors_NGD[names.index(key)]
    return frames_GD


def find_clips(
    cache: FeatureCache, index: SearchIndex, query_D: Vectors, *, leave_out: Collection[str] = ()
) -> Iterator[Hit]:
    """The clips that are nearest to a query, the best first; `leave_out` are keys.

    `query_D` is a vector before centring, of length > 0. As many as are asked for, up to all.
    """
    centre_D = index.info.centre_vector()
    if query_D.shape != centre_D.shape:
        raise CacheDamaged(f"the index has vectors of {len(centre_D)}, the query {len(query_D)}")
    direction_1D = to_directions(query_D[None], centre_D=centre_D)
    # Nothing but sentences comes into a text space from elsewhere than the vectors.
    thorough = index.info.space == "text"
    columns = {
        name: cache.index.column(name)
        for name in ("key", "video_id", "clip_index", "start_seconds", "end_seconds")
    }
    told: set[int] = set()
    num = FEWEST + len(leave_out)
    while True:
        num = min(num, len(index.vectors))
        scores, numbers = (
            one[0] for one in index.vectors.search(direction_1D, num=num, thorough=thorough)
        )
        fresh = 0
        for score, number in zip(scores.tolist(), numbers.tolist(), strict=True):
            if number < 0 or number in told:
                continue
            told.add(number)
            fresh += 1
            row = int(index.rows[number])
            if row < 0:
                continue
            fields = {name: column[row].as_py() for name, column in columns.items()}
            if fields["key"] not in leave_out:
                yield Hit(**fields, score=float(score))
        if num >= len(index.vectors) or not fresh:
            return
        num *= 4


def merge_hits(hits: Iterator[Hit], *, top: int, merge: bool) -> list[tuple[Hit, ...]]:
    """Up to `top` spans, the best first: clips of a video that follow each other are one.

    A clip joins the span beside it if it is at least half as near as its best clip, and nearer than
    the first span that is no longer told of: what would not have been found by itself stays out.
    """
    spans: list[list[Hit]] = []
    for hit in hits:
        beside = [span for span in spans if merge and _joins(hit, span)]
        if not beside:
            if len(spans) == top:
                break
            spans.append([hit])
            continue
        beside[0].append(hit)
        for other in beside[1:]:  # the better one comes first
            beside[0].extend(other)
            spans.remove(other)
    return [tuple(sorted(span, key=lambda hit: hit.clip_index)) for span in spans]


def _joins(hit: Hit, span: list[Hit]) -> bool:
    near = span[0].video_id == hit.video_id and hit.score >= LEAST_SHARE * abs(span[0].score)
    return near and any(abs(one.clip_index - hit.clip_index) == 1 for one in span)


def find_spans(
    cache: FeatureCache,
    index: SearchIndex,
    query_D: Vectors,
    *,
    top: int,
    merge: bool = True,
    leave_out: Collection[str] = (),
) -> list[FoundSpan]:
    """The spans nearest to a query; see `find_clips` and `merge_hits`."""
    hits = find_clips(cache, index, query_D, leave_out=leave_out)
    merged = merge_hits(hits, top=top, merge=merge)
    sources = sources_by_video(cache, {span[0].video_id for span in merged})
    found = []
    for rank, span in enumerate(merged, start=1):
        best = max(span, key=lambda hit: hit.score)
        found.append(
            FoundSpan(
                rank=rank,
                score=best.score,
                key=best.key,
                video_id=best.video_id,
                source=sources.get(best.video_id, ""),
                start_seconds=span[0].start_seconds,
                end_seconds=span[-1].end_seconds,
                keys=tuple(hit.key for hit in span),
            )
        )
    return found


def sources_by_video(cache: FeatureCache, video_ids: Collection[str]) -> dict[str, str]:
    """video_id -> the uri of one of its files."""
    found: dict[str, str] = {}
    for probe in read_probes(cache.layout):
        if probe.reject is None and probe.video_id in video_ids:
            found.setdefault(probe.video_id, probe.source.uri)
    return found


def write_previews(cache: FeatureCache, spans: list[FoundSpan], folder: Path) -> dict[int, Path]:
    """Rank -> a strip of the frames of its clips, as a JPEG in `folder`.

    A rank is missing where the cache has no previews. UsageError: the folder cannot be written.
    """
    written: dict[int, Path] = {}
    for span in spans:
        strip = _strip(cache, span)
        if strip is None:
            continue
        path = folder / f"{span.rank:03}_{span.key}.jpg"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(strip)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
        written[span.rank] = path
    return written


def _strip(cache: FeatureCache, span: FoundSpan) -> bytes | None:
    previews = [cache[key].preview for key in span.keys]
    strips = [preview for preview in previews if preview is not None]
    if len(strips) < 2:
        return strips[0] if strips else None
    from PIL import Image

    # One clip below the other: strips of a long span would be too wide to be looked at.
    images = [Image.open(io.BytesIO(strip)).convert("RGB") for strip in strips]
    size = max(image.width for image in images), sum(image.height for image in images)
    sheet, top = Image.new("RGB", size), 0
    for image in images:
        sheet.paste(image, (0, top))
        top += image.height
    data = io.BytesIO()
    sheet.save(data, format="JPEG", quality=85)
    return data.getvalue()
