"""The tables of a cache: index (a row a sample), probes (a row a source), plan, rejects, events.

The only module of this floor that imports pyarrow; import it where a table is read or written.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa

from schemas.quality import QUALITY_COLUMNS
from schemas.reject import Reject
from schemas.sidecar import Sidecar
from schemas.video import Probe, Source

INDEX_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("video_id", pa.string()),
        ("clip_index", pa.int64()),
        ("start_seconds", pa.float64()),
        ("end_seconds", pa.float64()),
        ("num_frames", pa.int32()),
        ("truncated", pa.bool_()),
        ("corrupt", pa.bool_()),
        ("shard", pa.string()),
        ("offset", pa.int64()),
        ("bytes", pa.int64()),
        ("member_names", pa.list_(pa.string())),
        ("member_offsets", pa.list_(pa.int64())),
        ("member_bytes", pa.list_(pa.int64())),
        *((name, pa.float64()) for name in QUALITY_COLUMNS),
    ]
)

PLAN_SCHEMA = pa.schema(
    [
        ("shard_index", pa.int64()),
        ("split", pa.string()),
        ("recipe_fingerprint", pa.string()),
        ("uri", pa.string()),
        ("video_id", pa.string()),
        ("content_sha256", pa.string()),
        ("size_bytes", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("start_seconds", pa.float64()),
        ("end_seconds", pa.float64()),
        ("duration_seconds", pa.float64()),
        ("truncated", pa.bool_()),
        ("has_audio", pa.bool_()),
        ("times_go_back", pa.bool_()),
        ("first_clip", pa.int64()),
        ("num_clips", pa.int64()),
        ("is_last", pa.bool_()),
        ("estimated_bytes", pa.int64()),
    ]
)

PROBE_SCHEMA = pa.schema(
    [
        ("video_id", pa.string()),
        ("uri", pa.string()),
        ("status", pa.string()),
        ("given_id", pa.string()),
        ("start_seconds", pa.float64()),
        ("end_seconds", pa.float64()),
        ("extra", pa.string()),
        ("content_sha256", pa.string()),
        ("size_bytes", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("container", pa.string()),
        ("codec", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("average_fps", pa.float64()),
        ("num_packets", pa.int64()),
        ("first_seconds", pa.float64()),
        ("last_seconds", pa.float64()),
        ("duration_seconds", pa.float64()),
        ("has_audio", pa.bool_()),
        ("truncated", pa.bool_()),
        ("times_go_back", pa.bool_()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)

REJECT_SCHEMA = pa.schema(
    [
        ("uri", pa.string()),
        ("video_id", pa.string()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("retryable", pa.bool_()),
    ]
)

EVENT_SCHEMA = pa.schema(
    [
        ("video_id", pa.string()),
        ("start_seconds", pa.float64()),
        ("end_seconds", pa.float64()),
        ("kind", pa.string()),
        ("text", pa.string()),
        ("score", pa.float64()),
    ]
)

_PROBE_FACTS = (
    "content_sha256",
    "size_bytes",
    "mtime_ns",
    "container",
    "codec",
    "width",
    "height",
    "average_fps",
    "num_packets",
    "first_seconds",
    "last_seconds",
    "duration_seconds",
    "has_audio",
    "truncated",
    "times_go_back",
)


def as_index(table: pa.Table) -> pa.Table:
    """An index as of INDEX_SCHEMA; one that was written without quality gets empty columns of it.

    KeyError: the columns are not an index's.
    """
    for name in QUALITY_COLUMNS:
        if name not in table.schema.names:
            table = table.append_column(name, pa.nulls(table.num_rows, pa.float64()))
    if table.schema.names != INDEX_SCHEMA.names:
        raise KeyError(f"columns {table.schema.names} are not an index's")
    return table


def index_rows(sidecar: Sidecar) -> list[dict[str, Any]]:
    """Rows of INDEX_SCHEMA for the samples of one shard, in the order of the tar."""
    return [
        {
            "key": entry.key,
            "video_id": entry.video_id,
            "clip_index": entry.clip_index,
            "start_seconds": entry.start_seconds,
            "end_seconds": entry.end_seconds,
            "num_frames": entry.num_frames,
            "truncated": entry.truncated,
            "corrupt": entry.corrupt,
            "shard": sidecar.name,
            "offset": entry.offset,
            "bytes": entry.num_bytes,
            "member_names": list(entry.members),
            "member_offsets": [offset for offset, _ in entry.members.values()],
            "member_bytes": [size for _, size in entry.members.values()],
            **{name: getattr(entry.quality, name, None) for name in QUALITY_COLUMNS},
        }
        for entry in sidecar.samples
    ]


def probe_to_row(probe: Probe) -> dict[str, Any]:
    """A row of PROBE_SCHEMA."""
    source, reject = probe.source, probe.reject
    return {
        "video_id": probe.video_id,
        "uri": source.uri,
        "status": probe.status,
        "given_id": source.video_id,
        "start_seconds": source.start_seconds,
        "end_seconds": source.end_seconds,
        "extra": json.dumps(source.extra, sort_keys=True, ensure_ascii=False, default=str),
        **{name: getattr(probe, name) for name in _PROBE_FACTS},
        "stage": reject.stage if reject else "",
        "reason": reject.reason if reject else "",
        "detail": reject.detail if reject else "",
    }


def probe_from_row(row: dict[str, Any]) -> Probe:
    """The inverse of `probe_to_row`."""
    reject = None
    if row["status"] != "ok":
        reject = Reject(
            uri=row["uri"],
            video_id=row["video_id"] or row["given_id"] or "",
            stage=row["stage"],
            reason=row["reason"],
            detail=row["detail"],
        )
    source = Source(
        uri=row["uri"],
        video_id=row["given_id"],
        start_seconds=row["start_seconds"],
        end_seconds=row["end_seconds"],
        extra=json.loads(row["extra"]),
    )
    facts = {name: row[name] for name in _PROBE_FACTS}
    for name in ("container", "codec"):  # the same few words in millions of rows
        facts[name] = sys.intern(facts[name])
    return Probe(source=source, video_id=row["video_id"], reject=reject, **facts)
