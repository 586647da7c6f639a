"""Item: one annotation with what is seen of its video; the unit of order and of packs."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.data.annotation import Annotation
from trainer.data.video_view import VideoView


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to learn from."""

    id: str
    """The annotation's; unique among those of its data."""
    data: str
    """Label of the file that it comes from."""
    annotation: Annotation
    view: VideoView | None
    """None: text only. Items of the same video and span share one."""
    shard: str = ""
    """Where its first clip lies; empty where there is nothing to read."""
