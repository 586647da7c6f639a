"""Reject: a video that could not be used, as a row. The reasons are a closed list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["probe", "plan", "decode", "encode"]

REASONS: dict[str, tuple[str, bool]] = {
    # reason: (what it means, whether a later run may succeed without the source changing)
    "not_found": ("no file at this path", True),
    "unreadable": ("the file exists but reading it fails", True),
    "source_changed": ("the content changed between probe and build, or under a given id", True),
    "timed_out": ("decoding made no progress within the time limit and was killed", True),
    "empty_file": ("the file has zero bytes", False),
    "not_a_video": ("no known container format, or its header is damaged", False),
    "refused_format": ("a playlist or picture, not a container that holds its own video", False),
    "no_video_stream": ("only audio, subtitles or cover art", False),
    "no_frames": ("a video stream from which no frame can be decoded", False),
    "no_times": ("a raw stream without times: put it into a container such as mp4 or mkv", False),
    "unsupported_codec": ("no decoder for the video stream", False),
    "too_many_pixels": ("a frame is larger than limits.max_pixels", False),
    "too_long": ("the video is longer than limits.max_duration_seconds", False),
    "out_of_memory": ("decoding needs more than limits.memory_bytes", False),
    "crashed": ("the decoder process died", False),
    "span_outside": ("the span asked for holds no frame of the video", False),
    "id_conflict": ("the id is already used for other content", False),
    "non_finite": ("an encoder returned NaN or infinity", False),
}


RETRYABLE = frozenset(reason for reason, (_, later) in REASONS.items() if later)


def is_retryable(reason: str) -> bool:
    """Whether a later run may succeed although the source is the same. KeyError: unknown reason."""
    return REASONS[reason][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A source that is not in the cache, and why."""

    uri: str
    video_id: str
    """The user's id, else from the content, else empty where nothing could be read."""
    stage: Stage
    reason: str
    """One of `REASONS`."""
    detail: str

    def __post_init__(self) -> None:
        if self.reason not in REASONS:
            raise ValueError(f"{self.reason = } is not one of {sorted(REASONS)}")

    @property
    def retryable(self) -> bool:
        return is_retryable(self.reason)

    def to_row(self) -> dict[str, object]:
        """The row of `pipeline rejects --json` and of rejects/*.parquet."""
        return {
            "uri": self.uri,
            "video_id": self.video_id,
            "stage": self.stage,
            "reason": self.reason,
            "detail": self.detail,
            "retryable": self.retryable,
        }
