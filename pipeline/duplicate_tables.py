"""The tables of duplicates beside a cache: clusters and pairs, replaced whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.deduplicating import Duplicates
from pipeline.duplicate import Copy
from pipeline.layout import CacheLayout
from pipeline.places import is_file, to_place
from pipeline.storage import publish_rows, read_table, table_rows
from schemas.errors import UsageError
from schemas.video import Source

CLUSTER_SCHEMA = pa.schema(
    [
        ("cluster", pa.int64()),
        ("video_id", pa.string()),
        ("uri", pa.string()),
        ("kept", pa.bool_()),
        ("why", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("duration_seconds", pa.float64()),
        ("start_seconds", pa.float64()),
        ("end_seconds", pa.float64()),
        ("kind", pa.string()),
        ("score", pa.float64()),
        ("shared_start_seconds", pa.float64()),
        ("shared_end_seconds", pa.float64()),
        ("like_video", pa.string()),
        ("like_start_seconds", pa.float64()),
        ("like_end_seconds", pa.float64()),
    ]
)
"""What a source shares with which video is null of the kept one; the spans are of equal bytes."""
PAIR_SCHEMA = pa.schema(
    [
        ("video_a", pa.string()),
        ("video_b", pa.string()),
        ("start_a_seconds", pa.float64()),
        ("end_a_seconds", pa.float64()),
        ("start_b_seconds", pa.float64()),
        ("end_b_seconds", pa.float64()),
        ("score", pa.float64()),
        ("kind", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Superfluous:
    """A source that need not be kept: what `--skip-duplicates` goes by."""

    source: Source
    instead: Source
    """The one that is kept, which has all or nearly all of it."""


def write_duplicates(layout: CacheLayout, found: Duplicates) -> None:
    """CACHE/duplicates/clusters.parquet and pairs.parquet. StorageError."""
    pairs = [{name: getattr(pair, name) for name in PAIR_SCHEMA.names} for pair in found.pairs]
    publish_rows(pairs, PAIR_SCHEMA, layout.pairs, scratch=layout.scratch)
    publish_rows(_cluster_rows(found), CLUSTER_SCHEMA, layout.clusters, scratch=layout.scratch)


def read_superfluous(where: str) -> list[Superfluous]:
    """Of a cache, or of a table of clusters. UsageError: it is none. CacheDamaged: unreadable."""
    place = to_place(where)
    if not where.endswith(".parquet"):
        place = CacheLayout(place).clusters
    if not is_file(place):
        raise UsageError(
            f"{place}: no table of duplicates",
            hint="make it with: pipeline dedup CACHE; without WHERE, --skip-duplicates comes last"
            " or before another option",
        )
    try:
        rows = list(table_rows(read_table(place)))
        kept = {row["cluster"]: _source(row) for row in rows if row["kept"]}
        others = [row for row in rows if not row["kept"]]
        if headless := {row["cluster"] for row in others} - set(kept):
            raise TypeError(f"of cluster {min(headless)} nothing is kept")
        return [Superfluous(source=_source(row), instead=kept[row["cluster"]]) for row in others]
    except (LookupError, TypeError) as error:
        what = f"{error}" if isinstance(error, TypeError) else f"no column {error}"
        raise UsageError(
            f"{place}: not a table of clusters: {what}",
            hint="name a cache, or the duplicates/clusters.parquet that `pipeline dedup` makes",
        ) from error


def _source(row: dict[str, Any]) -> Source:
    return Source(
        uri=row["uri"], start_seconds=row["start_seconds"], end_seconds=row["end_seconds"]
    )


def _cluster_rows(found: Duplicates) -> Iterator[dict[str, Any]]:
    for cluster in found.clusters:
        # The kept one last: who goes by video_id alone then takes its row.
        for member in cluster.copies:
            what = {"exact": "the same bytes as", "copy": "a copy of", "part": "a part of"}
            shared: dict[str, Any] = {
                "why": f"{what[member.kind]} {cluster.keep.uri}",
                "kind": member.kind,
                "score": member.score,
            }
            if (pair := member.pair) is not None:
                shared |= {
                    "shared_start_seconds": pair.start_b_seconds,
                    "shared_end_seconds": pair.end_b_seconds,
                    "like_video": pair.video_a,
                    "like_start_seconds": pair.start_a_seconds,
                    "like_end_seconds": pair.end_a_seconds,
                }
            yield _row(cluster.number, member.copy, kept=False) | shared
        why = "whole, most pixels, longest or largest"
        yield _row(cluster.number, cluster.keep, kept=True) | {"why": why}


def _row(cluster: int, copy: Copy, *, kept: bool) -> dict[str, Any]:
    told = {name: getattr(copy, name) for name in CLUSTER_SCHEMA.names if hasattr(copy, name)}
    return dict.fromkeys(CLUSTER_SCHEMA.names) | told | {"cluster": cluster, "kept": kept}
