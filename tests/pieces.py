"""Pieces of videos for tests, with what matters to a test and nothing else."""

from __future__ import annotations

from typing import Any

from schemas.plan import Piece


def make_piece(uri: str, video_id: str, **changes: Any) -> Piece:
    """One clip of a video of a second, in one piece."""
    fields: dict[str, Any] = {
        "content_sha256": "",
        "size_bytes": 0,
        "mtime_ns": 0,
        "start_seconds": None,
        "end_seconds": None,
        "duration_seconds": 1.0,
        "truncated": False,
        "has_audio": False,
        "first_clip": 0,
        "num_clips": 1,
        "is_last": True,
        "estimated_bytes": 0,
    }
    return Piece(uri=uri, video_id=video_id, **fields | changes)
