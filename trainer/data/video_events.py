"""VideoEvents: the events of a cache that a model reads beside its clips, by video."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.events import read_events, read_maker, require_kinds
from pipeline.layout import CacheLayout
from schemas.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoEvents:
    """Events of some kinds."""

    kinds: tuple[str, ...]
    by_video: Mapping[str, Sequence[Event]]
    """In order of time."""
    looked_at: Mapping[str, frozenset[str]]
    """Kind -> videos that its detector has looked at; of other tables nothing is known."""

    @classmethod
    def read(cls, layout: CacheLayout, *, kinds: Sequence[str]) -> VideoEvents:
        """UsageError: there is no table of a kind. CacheDamaged."""
        by_video = read_events(layout, kinds=kinds)
        looked_at = {}
        for kind in kinds:
            _, in_vain = read_maker(layout, kind=kind)
            if in_vain is not None:
                found = {
                    video_id
                    for video_id, events in by_video.items()
                    if any(event.kind == kind for event in events)
                }
                looked_at[kind] = in_vain | found
        return cls(kinds=tuple(kinds), by_video=by_video, looked_at=looked_at)

    def of(self, video_id: str) -> tuple[Event, ...] | None:
        """Those of a video; None: a detector has not looked at it."""
        if any(video_id not in videos for videos in self.looked_at.values()):
            return None
        return tuple(self.by_video.get(video_id, ()))


def makers_of(layout: CacheLayout, *, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Kind -> what its table was made by. UsageError: there is no table of a kind."""
    require_kinds(layout, kinds)
    return {kind: read_maker(layout, kind=kind)[0] for kind in kinds}
