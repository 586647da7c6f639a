"""`pipeline inspect CACHE::VIDEO`: the clips of a video as a table, with bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.bars import bar, sparkline
from pipeline.cli.show import (
    count_text,
    duration_text,
    print_facts,
    print_json,
    print_table,
    printable,
    size_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.cache import FeatureCache, SampleRow
    from schemas.quality import Quality

BAR_WIDTH = 10
LINE_WIDTH = 60
LEAST_LOUDNESS = -60.0
"""dB of full scale, that is an empty bar."""


def inspect_video(
    cache: FeatureCache, video_id: str, *, most_rows: int | None, as_json: bool
) -> None:
    """Print a video that is in the cache; `most_rows` of its clips, or all."""
    rows = [cache.row(key) for key in cache.videos[video_id]]
    sources = sorted(cache.uris.get(video_id, ()))
    if as_json:
        print_json(
            {
                "video_id": video_id,
                "sources": sources,
                "start_seconds": rows[0].start_seconds,
                "end_seconds": rows[-1].end_seconds,
                "clips": [_clip_json(row) for row in rows],
            }
        )
        return
    start, end = rows[0].start_seconds, rows[-1].end_seconds
    frames = sum(row.num_frames for row in rows)
    facts = [
        ("video", printable(video_id)),
        *(("source", printable(uri)) for uri in sources),
        ("time", f"{start:.3f} to {end:.3f} s, {duration_text(end - start)}"),
        ("clips", f"{len(rows):,}, {count_text(frames, 'frame')}"),
        ("bytes", size_text(sum(row.num_bytes for row in rows))),
    ]
    if (count := _count_missing(rows)) > 0:
        facts.append(("missing", f"{count_text(count, 'clip')} between those that are there"))
    print_facts([*facts, *quality_lines([row.quality for row in rows])])
    click.echo()
    header, cells = clip_table(rows[:most_rows])
    print_table(header, cells)


def clip_table(rows: Sequence[SampleRow]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Header and rows: times, frames, and bars of what is known of their quality."""
    judged = any(row.quality is not None for row in rows)
    heard = any(row.quality is not None and row.quality.loudness is not None for row in rows)
    names = ["clip", "start", "end", "frames", "damage"]
    names += ["motion", "brightness"] if judged else []
    names += ["loudness"] if heard else []
    cells = []
    for row in rows:
        damage = [kind for kind in ("truncated", "corrupt") if getattr(row, kind)]
        line: list[Any] = [row.clip_index, row.start_seconds, row.end_seconds, row.num_frames]
        line.append(", ".join(damage) or "-")
        if judged:
            line += [_share_bar(motion_of(row.quality)), _share_bar(_brightness_of(row.quality))]
        if heard:
            line.append(_loudness_bar(row.quality))
        cells.append((*line, row.key))
    return (*names, "key"), cells


def quality_lines(qualities: Sequence[Quality | None]) -> list[tuple[str, str]]:
    """Facts that show how a video goes on: a line of small bars for each that is known."""
    lines = []
    shares = {
        "motion": [motion_of(quality) for quality in qualities],
        "brightness": [_brightness_of(quality) for quality in qualities],
    }
    for name, values in shares.items():
        if len(values) > 1 and any(value is not None for value in values):
            lines.append((name, sparkline(values, low=0, high=1, width=LINE_WIDTH)))
    loud = [None if quality is None else quality.loudness for quality in qualities]
    if len(loud) > 1 and any(value is not None for value in loud):
        line = sparkline(loud, low=LEAST_LOUDNESS, high=0, width=LINE_WIDTH)
        lines.append(("loudness", line))
    return lines


def motion_of(quality: Quality | None) -> float | None:
    """The share of the picture that moves; None: not known, or the clip has one frame."""
    return None if quality is None or quality.static is None else 1 - quality.static


def _brightness_of(quality: Quality | None) -> float | None:
    return None if quality is None else quality.brightness


def _share_bar(value: float | None) -> str:
    return (
        "-"
        if value is None
        else f"{bar(value, largest=1, width=BAR_WIDTH, filled=True)} {value:.2f}"
    )


def _loudness_bar(quality: Quality | None) -> str:
    if quality is None or quality.loudness is None:
        return "-"
    loudness = quality.loudness
    shown = bar(loudness - LEAST_LOUDNESS, largest=-LEAST_LOUDNESS, width=BAR_WIDTH, filled=True)
    return f"{shown} {loudness:.0f} dB"


def _count_missing(rows: Sequence[SampleRow]) -> int:
    return rows[-1].clip_index - rows[0].clip_index + 1 - len(rows)


def _clip_json(row: SampleRow) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "key": row.key,
        "clip_index": row.clip_index,
        "start_seconds": row.start_seconds,
        "end_seconds": row.end_seconds,
        "frames": row.num_frames,
        "truncated": row.truncated,
        "corrupt": row.corrupt,
        "shard": row.shard,
        "bytes": row.num_bytes,
        "quality": None if row.quality is None else asdict(row.quality),
    }
