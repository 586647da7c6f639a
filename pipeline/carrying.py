"""Carry tables of events over to a cache that is made of others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pipeline.events import list_kinds, read_events, read_made_by, write_events
from pipeline.layout import CacheLayout
from schemas.event import Event


def carry_events(
    old: Sequence[CacheLayout], new: CacheLayout, *, video_ids: Collection[str]
) -> None:
    """Write the events of these videos, of all kinds that there are, beside the new cache.

    Of several caches the first one that has events of a kind for a video tells them. Where they
    were not made by the same, `made_by` is {"merged": what each says}. StorageError.
    """
    for kind in sorted({kind for layout in old for kind in list_kinds(layout)}):
        told: dict[str, list[Event]] = {}
        makers: list[dict[str, Any]] = []
        for layout in old:
            if kind not in list_kinds(layout):
                continue
            made_by = read_made_by(layout, kind=kind)
            if made_by not in makers:
                makers.append(made_by)
            for video_id, events in read_events(layout, kinds=[kind]).items():
                if video_id in video_ids:
                    told.setdefault(video_id, events)
        write_events(
            new,
            kind=kind,
            events=[event for events in told.values() for event in events],
            made_by=makers[0] if len(makers) == 1 else {"merged": makers},
        )
