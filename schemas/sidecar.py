"""Sidecar: the JSON beside a tar. It is the commit marker: a tar without it does not exist.

It holds no time of day, host or duration, so that a shard built twice has the same sidecar.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from schemas.errors import CacheDamaged
from schemas.json_text import parse_json
from schemas.quality import Quality
from schemas.recipe import FORMAT_VERSION
from schemas.reject import Reject


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEntry:
    """Where one sample lies in the tar."""

    key: str
    video_id: str
    clip_index: int
    start_seconds: float
    end_seconds: float
    num_frames: int
    """Frames that are not fill."""
    offset: int
    """Of the first header of the sample."""
    num_bytes: int
    """Headers and padding included; samples lie back to back."""
    members: dict[str, tuple[int, int]]
    """Member name without the key -> (offset of the data in the tar, bytes)."""
    truncated: bool
    corrupt: bool
    quality: Quality | None = None
    """None: written by a version that did not judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingClips:
    """Planned clips that are not in the shard, and why."""

    video_id: str
    first_clip: int
    num_clips: int
    reason: str
    """`truncated`, `corrupt` or `timestamps` (the packets promised more frames), else a reason of
    a reject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoOutcome:
    """What decoding one piece of a video told."""

    video_id: str
    num_clips: int
    num_frames_decoded: int
    num_decode_errors: int
    truncated: bool
    corrupt: bool
    order: str
    """How it was decoded. By PyAV: `selected` (only wanted frames), `all`, `sorted` (times go
    back). Or by another backend: `decord`, `ffmpeg`."""
    why: str
    """Why it was not decoded in the order tried first; empty where it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """One committed shard."""

    name: str
    index: int
    split: str
    fingerprint: str
    """Of the ShardSpec."""
    recipe_fingerprint: str
    tar_sha256: str
    """Empty where every sample was rejected: then there is no tar."""
    tar_bytes: int
    samples: tuple[SampleEntry, ...]
    videos: tuple[VideoOutcome, ...]
    missing: tuple[MissingClips, ...]
    rejects: tuple[Reject, ...]
    versions: dict[str, str]
    """Libraries that shape the bytes."""
    format_version: int = FORMAT_VERSION
    file_sha256: str = field(default="", compare=False, repr=False)
    """Of the file that it was read from; not in it."""

    def to_json(self) -> str:
        """Indented and sorted: the same text for the same shard."""
        fields = asdict(self)
        del fields["file_sha256"]
        fields["rejects"] = [reject.to_row() for reject in self.rejects]
        return json.dumps(fields, sort_keys=True, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str) -> Sidecar:
        """The inverse of `to_json`. CacheDamaged names `where`."""
        try:
            fields: dict[str, Any] = parse_json(text)
            samples = tuple(_read_entry(entry) for entry in fields["samples"])
            rejects = tuple(
                Reject(**{key: value for key, value in row.items() if key != "retryable"})
                for row in fields["rejects"]
            )
            videos = tuple(VideoOutcome(**row) for row in fields["videos"])
            missing = tuple(MissingClips(**row) for row in fields["missing"])
            changed: dict[str, Any] = {
                "samples": samples,
                "rejects": rejects,
                "videos": videos,
                "missing": missing,
            }
            data = text.encode() if isinstance(text, str) else text
            changed["file_sha256"] = hashlib.sha256(data).hexdigest()
            return cls(**{**fields, **changed})
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CacheDamaged(
                f"{where}: not a sidecar: {error}",
                hint="it was damaged after it was written: delete it and run again to build its"
                " shard once more",
            ) from error


def _read_entry(fields: dict[str, Any]) -> SampleEntry:
    quality = fields.get("quality")
    read = {
        "members": {name: (extent[0], extent[1]) for name, extent in fields["members"].items()},
        "quality": None if quality is None else Quality(**quality),
    }
    return SampleEntry(**{**fields, **read})
