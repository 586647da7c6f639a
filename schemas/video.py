"""Source: a row of the input. Probe: what a look at one source told, without decoding a pixel."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from schemas.errors import SourceError
from schemas.reject import Reject, Stage

_BEFORE_ALL = -math.inf
MAX_SECONDS = 1e9
"""Thirty years: beyond what a clock in a container counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A row of the input."""

    uri: str
    """A local path (absolute) or a URL."""
    video_id: str | None = None
    """The user's id; None: taken from the content."""
    start_seconds: float | None = None
    end_seconds: float | None = None
    """Optional span [start, end) on the source's own clock."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The other columns of the row, kept in the probes."""

    def __post_init__(self) -> None:
        for value in (self.start_seconds, self.end_seconds):
            if value is not None and not abs(value) <= MAX_SECONDS:
                raise SourceError(f"{self.uri}: span has {value}, which is not a time in seconds")
        start, end = self.start_seconds, self.end_seconds
        if start is not None and end is not None and not start < end:
            raise SourceError(f"{self.uri}: span start {start} must be before its end {end}")
        if self.video_id is not None and not self.video_id:
            raise SourceError(f"{self.uri}: the id is empty; leave the column out or fill it")

    @property
    def identity(self) -> tuple[str, str, float, float]:
        """What makes two rows the same request; also their order."""
        return (
            self.uri,
            self.video_id or "",
            _BEFORE_ALL if self.start_seconds is None else self.start_seconds,
            math.inf if self.end_seconds is None else self.end_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Container and packet facts of one source; one row of probes/*.parquet."""

    source: Source
    video_id: str = ""
    """The user's id, else `v` and 16 digits of the content's sha256 (and the span); empty where
    nothing could be read."""
    content_sha256: str = ""
    size_bytes: int = 0
    mtime_ns: int = 0
    container: str = ""
    codec: str = ""
    width: int = 0
    height: int = 0
    """As coded, before rotation and non-square pixels."""
    average_fps: float = 0.0
    """As the header says; for information, never used for times."""
    num_packets: int = 0
    first_seconds: float = 0.0
    last_seconds: float = 0.0
    """Times of the first and the last packet that is shown."""
    duration_seconds: float = 0.0
    """From the first frame shown to the end of the last; of the whole file, whatever the span."""
    has_audio: bool = False
    truncated: bool = False
    """The packets end before the container says that the video does."""
    times_go_back: bool = False
    """The packets' times are not those of display in one run from start to end: the clock was reset
    in the middle, or the container (AVI) stores only the order of decoding."""
    reject: Reject | None = None

    @property
    def status(self) -> str:
        return "ok" if self.reject is None else "rejected"

    def rejected(self, reason: str, detail: str, *, stage: Stage = "probe") -> Probe:
        """This probe as a reject."""
        reject = Reject(
            uri=self.source.uri,
            video_id=self.video_id or self.source.video_id or "",
            stage=stage,
            reason=reason,
            detail=detail,
        )
        return replace(self, reject=reject)


def video_id_of(source: Source, content_sha256: str) -> str:
    """The user's id, else from the content; a span without an id is a video of its own.

    Seconds are written in whole microseconds: the finest step that containers commonly carry.
    """
    if source.video_id is not None:
        return source.video_id
    name = f"v{content_sha256[:16]}"
    if source.start_seconds is None and source.end_seconds is None:
        return name
    start = "" if source.start_seconds is None else str(round(source.start_seconds * 1e6))
    end = "" if source.end_seconds is None else str(round(source.end_seconds * 1e6))
    return f"{name}_{start}_{end}us".replace("-", "m")


def key_stem(video_id: str) -> str:
    """`video_id` as the start of a sample's key: only `[A-Za-z0-9_-]`, at most 64 characters.

    An id that is already so is kept; any other gets 10 digits of its hash, so that ids which
    differ only in the characters that are replaced stay apart.
    """
    clean = re.sub(r"[^A-Za-z0-9_-]+", "-", video_id).strip("-")
    if clean == video_id and len(clean) <= 64 and not clean.startswith("-"):
        return clean
    digits = hashlib.sha256(video_id.encode()).hexdigest()[:10]
    return f"{clean[:48]}-{digits}".lstrip("-")


def sample_key(video_id: str, clip_index: int) -> str:
    """The key of a clip: an identifier only, times are never read from it."""
    return f"{key_stem(video_id)}_{clip_index:06d}"
