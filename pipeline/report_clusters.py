"""Which cached videos are duplicates of each other, for a report: by the table beside the cache."""

from __future__ import annotations

from dataclasses import dataclass

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


def read_memberships(layout: CacheLayout) -> dict[str, Membership]:
    """video_id -> its cluster; empty where duplicates were never looked for. CacheDamaged."""
    place = layout.clusters
    if not is_file(place):
        return {}
    try:
        return {
            row["video_id"]: Membership(cluster=int(row["cluster"]), kept=bool(row["kept"]))
            for row in table_rows(read_table(place))
        }
    except (LookupError, TypeError, ValueError) as error:
        raise CacheDamaged(
            f"{place}: not a table of clusters: {error}",
            hint="delete it and make it again: pipeline dedup",
        ) from error
