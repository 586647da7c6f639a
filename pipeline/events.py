"""The tables of events beside a cache: one of each kind, written whole.

They say more about the cached videos than features do, and are no part of what cache.json vouches
for: a table may be replaced or deleted at any time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pipeline.layout import CacheLayout
from pipeline.places import list_sizes
from pipeline.storage import publish_rows, read_table, table_rows
from schemas.errors import CacheDamaged, UsageError
from schemas.event import Event
from schemas.json_text import parse_json
from schemas.tables import EVENT_SCHEMA

_KIND = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
NOTHING_FOUND = "nothing_found"
"""In `made_by` of a detector: ids of the videos in which it found nothing."""
_MADE_BY = b"reelcache.made_by"


def write_events(
    layout: CacheLayout, *, kind: str, events: Iterable[Event], made_by: Mapping[str, Any]
) -> None:
    """Replace the table of a kind. `made_by`, JSON-ready, is what `read_made_by` gives again.

    UsageError: the kind is no plain word, or an event is of another one. StorageError.
    """
    check_kind(kind)
    rows = []
    for event in sorted(events, key=lambda event: event.order):
        if event.kind != kind:
            raise UsageError(f"an event of the kind {event.kind!r} in a table of {kind!r}")
        rows.append({name: getattr(event, name) for name in EVENT_SCHEMA.names})
    schema = EVENT_SCHEMA.with_metadata({_MADE_BY: json.dumps(dict(made_by), sort_keys=True)})
    publish_rows(rows, schema, layout.events_of(kind), scratch=layout.scratch)


def read_events(
    layout: CacheLayout, *, kinds: Collection[str] | None = None
) -> dict[str, list[Event]]:
    """video_id -> its events in order of time; of the kinds, or of all that there are.

    UsageError: there is no table of a kind. CacheDamaged: a table cannot be read as one.
    """
    if kinds is None:
        kinds = list_kinds(layout)
    else:
        require_kinds(layout, kinds)
    events = [event for kind in kinds for event in _read(layout, kind)]
    found: dict[str, list[Event]] = {}
    for event in sorted(events, key=lambda event: event.order):
        found.setdefault(event.video_id, []).append(event)
    return found


def read_made_by(layout: CacheLayout, *, kind: str) -> dict[str, Any]:
    """What the table of a kind was made by; empty where there is no table or it does not say."""
    if kind not in list_kinds(layout):
        return {}
    metadata = read_table(layout.events_of(kind)).schema.metadata or {}
    try:
        made_by: dict[str, Any] = dict(parse_json(metadata.get(_MADE_BY, b"{}")))
    except (ValueError, TypeError) as error:
        place = layout.events_of(kind)
        raise CacheDamaged(f"{place}: does not say what it was made by: {error}") from error
    return made_by


def read_maker(layout: CacheLayout, *, kind: str) -> tuple[dict[str, Any], frozenset[str] | None]:
    """(what the table of a kind was made by, ids of the videos that were looked at in vain).

    Of a table that no detector made the second is None: where it has no event, there is none.
    """
    made_by = read_made_by(layout, kind=kind)
    in_vain = made_by.pop(NOTHING_FOUND, None)
    return made_by, None if in_vain is None else frozenset(in_vain)


def list_kinds(layout: CacheLayout) -> list[str]:
    """The kinds of which there is a table, sorted."""
    names = (name.partition(".") for name in list_sizes(layout.events))
    return sorted(kind for kind, _, rest in names if rest == "parquet" and _KIND.fullmatch(kind))


def require_kinds(layout: CacheLayout, kinds: Collection[str]) -> None:
    """UsageError: there is no table of one of the kinds."""
    there = list_kinds(layout)
    for kind in kinds:
        if kind not in there:
            raise UsageError(
                f"{layout.root} has no events of the kind {kind!r}, only {', '.join(there) or '-'}",
                hint=f"see: pipeline events {layout.root}",
            )


def check_kind(kind: str) -> None:
    """UsageError: the kind cannot be the name of a table."""
    if not _KIND.fullmatch(kind):
        raise UsageError(f"{kind!r} cannot be a kind of events: it must be a word of a-z, 0-9, - _")


def _read(layout: CacheLayout, kind: str) -> list[Event]:
    path = layout.events_of(kind)
    try:
        table = read_table(path)
    except CacheDamaged as error:
        error.hint = "delete it and make it again"
        raise
    if table.schema.names != EVENT_SCHEMA.names:
        raise CacheDamaged(
            f"{path}: columns {table.schema.names} are not those of events",
            hint="delete it and make it again",
        )
    try:
        return [Event(**row) for row in table_rows(table)]
    except (ValueError, TypeError) as error:
        raise CacheDamaged(f"{path}: {error}", hint="delete it and make it again") from error
