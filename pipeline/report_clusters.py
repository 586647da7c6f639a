"""Which cached videos are duplicates of each other, for a report: by the table beside the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.duplicate import PairKind
from pipeline.layout import CacheLayout
from pipeline.places import is_file
from pipeline.storage import read_table, table_rows
from schemas.errors import CacheDamaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Of one video in a cluster of duplicates."""

    cluster: int
    kept: bool
    """The one of the cluster that is suggested to be kept."""
    kind: PairKind | None
    """What it is of another one; None: it is kept."""
    score: float | None
    seconds: tuple[float, float] | None
    """What it shares with that one, on its own clock; None: it is kept, or has the same bytes."""
    like: str | None
    """video_id of that one."""
    like_seconds: tuple[float, float] | None
    """The same on that one's clock."""


def read_memberships(layout: CacheLayout) -> dict[str, Membership]:
    """video_id -> its cluster; empty where duplicates were never looked for. CacheDamaged."""
    place = layout.clusters
    if not is_file(place):
        return {}
    try:
        return {row["video_id"]: _membership(row) for row in table_rows(read_table(place))}
    except (LookupError, TypeError, ValueError) as error:
        raise CacheDamaged(
            f"{place}: not a table of clusters: {error}",
            hint="delete it and make it again: pipeline dedup",
        ) from error


def _membership(row: dict[str, Any]) -> Membership:
    def span(name: str) -> tuple[float, float] | None:
        start, end = row[f"{name}_start_seconds"], row[f"{name}_end_seconds"]
        return None if start is None else (float(start), float(end))

    return Membership(
        cluster=int(row["cluster"]),
        kept=bool(row["kept"]),
        kind=row["kind"],
        score=row["score"],
        seconds=span("shared"),
        like=row["like_video"],
        like_seconds=span("like"),
    )
