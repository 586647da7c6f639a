"""Event: something that happens during a stretch of a video, such as a scene or what is said."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A row of events/{kind}.parquet."""

    video_id: str
    start_seconds: float
    end_seconds: float
    """[start, end) on the source's own clock, as the times of samples."""
    kind: str
    """scene, speech, transcript, or a word of the user's."""
    text: str = ""
    """What is said or seen, where that is known."""
    score: float | None = None
    """How sure the detector is, in [0, 1]; None: it does not say."""

    def __post_init__(self) -> None:
        times = self.start_seconds, self.end_seconds
        if not (all(map(math.isfinite, times)) and times[0] <= times[1]):
            raise ValueError(f"{self.video_id}: an event must start before it ends, not {times}")
        if self.score is not None and not 0 <= self.score <= 1:
            raise ValueError(f"{self.video_id}: score {self.score} must be in [0, 1]")

    @property
    def order(self) -> tuple[str, float, float, str]:
        """By video, then by time."""
        return (self.video_id, self.start_seconds, self.end_seconds, self.text)
