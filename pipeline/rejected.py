"""Which sources of a cache are rejected: the table of rejects, joined with the probes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from schemas.video import Probe, Source


def rejected_sources(
    probes: Iterable[Probe], rows: Iterable[Mapping[str, Any]]
) -> list[tuple[Source, Mapping[str, Any]]]:
    """Each source of which `rows` of the table of rejects tell, with its row, in order."""
    waiting: dict[tuple[str, str, str], list[Source]] = {}
    for probe in probes:
        # The columns that a row has of a source are not all that tell it from another.
        waiting.setdefault(_key(probe), []).append(probe.source)
    found = []
    for row in rows:
        for key in _keys(row):
            if waiting.get(key):
                found.append((waiting[key].pop(0), row))
                break
    return found


def as_line(source: Source) -> str:
    """One line of a list (jsonl) that `pipeline run` takes: the source as it was given."""
    own = {
        "uri": source.uri,
        "id": source.video_id,
        "start": source.start_seconds,
        "end": source.end_seconds,
    }
    told = {name: value for name, value in own.items() if value is not None}
    return json.dumps(told | source.extra, ensure_ascii=False)


def _key(probe: Probe) -> tuple[str, str, str]:
    if probe.reject is None:
        return probe.source.uri, probe.video_id, ""
    return probe.source.uri, probe.reject.video_id, f"{probe.reject.stage}: {probe.reject.reason}"


def _keys(row: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield row["uri"], row["video_id"], f"{row['stage']}: {row['reason']}"
    yield row["uri"], row["video_id"], ""
