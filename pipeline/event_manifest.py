"""Events as a list of sources: every event a span of its video, for `pipeline run`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.cache import FeatureCache
from pipeline.probing import read_probes
from pipeline.storage import storage_errors
from schemas.event import Event

COLUMNS = ("uri", "id", "start", "end", "video", "kind", "text")
"""What a run reads, and what it keeps in its probes."""


def write_manifest(
    cache: FeatureCache, events: Mapping[str, Sequence[Event]], path: Path
) -> tuple[int, int]:
    """Write a CSV file: (how many spans it has, how many events are no spans).

    An id is that of the video, the kind and a number. An event without length, or of a video that
    the cache knows no file of, is left out. StorageError.
    """
    uris: dict[str, str] = {}
    for probe in read_probes(cache.layout):
        if probe.reject is None:
            uris.setdefault(probe.video_id, probe.source.uri)
    rows: list[tuple[str | float, ...]] = []
    num_left_out = 0
    for video_id, some in sorted(events.items()):
        numbers: dict[str, int] = {}
        for event in some:
            if video_id not in uris or not event.start_seconds < event.end_seconds:
                num_left_out += 1
                continue
            number = numbers[event.kind] = numbers.get(event.kind, -1) + 1
            name = f"{video_id}-{event.kind}-{number:04d}"
            start, end = event.start_seconds, event.end_seconds
            rows.append((uris[video_id], name, start, end, video_id, event.kind, event.text))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.getvalue(), encoding="utf-8")
    return len(rows), num_left_out
