"""Attempt: one decoding of a piece, and what a sidecar says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline.decoding import DecodeOutcome, Order
from pipeline.packing import Mark
from schemas.errors import VideoError
from schemas.plan import Piece
from schemas.reject import Reject
from schemas.sidecar import MissingClips, SampleEntry, VideoOutcome


@dataclass(slots=True, eq=False)
class Attempt:
    """One decoding of a piece: what has come of it."""

    piece: Piece
    order: Order
    why: str
    mark: Mark | None = None
    """Of the tar before the first sample."""
    samples: list[SampleEntry] = field(default_factory=list)
    outcome: DecodeOutcome | None = None
    error: VideoError | None = None
    is_void: bool = False
    """What still comes of it is not wanted."""

    def give_up(self, error: VideoError) -> None:
        """The piece is rejected."""
        self.error, self.is_void = error, True


def video_outcome(attempt: Attempt) -> VideoOutcome:
    """How a piece that is used was decoded."""
    outcome = attempt.outcome
    assert outcome is not None
    return VideoOutcome(
        video_id=attempt.piece.video_id,
        num_clips=len(attempt.samples),
        num_frames_decoded=outcome.num_frames_decoded,
        num_decode_errors=outcome.num_decode_errors,
        truncated=attempt.piece.truncated,
        corrupt=outcome.corrupt,
        order=attempt.order,
        why=attempt.why,
    )


def missing_clips(attempt: Attempt) -> Iterator[MissingClips]:
    """The planned clips that did not come, if any, and why."""
    piece = attempt.piece
    lacking = piece.num_clips - len(attempt.samples)
    if lacking <= 0:
        return
    if attempt.error is not None:
        reason = attempt.error.reason
    elif piece.truncated:
        reason = "truncated"
    else:
        assert attempt.outcome is not None
        reason = "corrupt" if attempt.outcome.corrupt else "timestamps"
    yield MissingClips(
        video_id=piece.video_id,
        first_clip=piece.first_clip + len(attempt.samples),
        num_clips=lacking,
        reason=reason,
    )


def to_reject(attempt: Attempt) -> Reject:
    """A piece that was given up."""
    error = attempt.error
    assert error is not None
    return Reject(
        uri=attempt.piece.uri,
        video_id=attempt.piece.video_id,
        stage="encode" if error.reason == "non_finite" else "decode",
        reason=error.reason,
        detail=error.detail,
    )
