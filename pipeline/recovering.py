"""What to do again when a run goes on: files that moved, and files that were away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipeline.local_files import size_and_time
from schemas.errors import VideoError
from schemas.plan import Piece, ShardSpec
from schemas.sidecar import Sidecar
from schemas.video import Probe

AWAY = ("not_found", "unreadable", "source_changed")
"""Reasons of rejects that end when the file that was planned is back."""


def pieces_back(
    specs: Iterable[ShardSpec], sidecars: Iterable[Sidecar], probes: Sequence[Probe]
) -> list[Piece]:
    """Pieces of which nothing was cached because their file was away, and now is there again.

    Of a piece that was planned several times the last outcome counts.
    """
    planned = {spec.name: spec for spec in specs}
    lost: dict[tuple[str, int], Piece] = {}
    for sidecar in sidecars:
        away = {reject.video_id for reject in sidecar.rejects if reject.reason in AWAY}
        for piece in planned[sidecar.name].pieces:
            lost.pop((piece.video_id, piece.first_clip), None)
            if piece.video_id in away:
                lost[piece.video_id, piece.first_clip] = piece
    there = [
        spec.pieces[0] for piece in lost.values() for spec in follow_moves([_alone(piece)], probes)
    ]
    return [piece for piece in there if _file_is(piece.uri, piece.size_bytes, piece.mtime_ns)]


def _alone(piece: Piece) -> ShardSpec:
    return ShardSpec(index=0, split="", recipe_fingerprint="", pieces=(piece,))


def follow_moves(specs: Iterable[ShardSpec], probes: Sequence[Probe]) -> list[ShardSpec]:
    """The specs, with each piece's file where equal content lies now.

    Where the source lies is not part of what a ShardSpec is.
    """
    places: dict[object, list[Probe]] = {}
    for probe in probes:
        if probe.reject is None:
            places.setdefault(_content(probe), []).append(probe)

    def follow(piece: Piece) -> Piece:
        if _file_is(piece.uri, piece.size_bytes, piece.mtime_ns):
            return piece
        content = (piece.content_sha256, piece.start_seconds, piece.end_seconds)
        for probe in places.get(content, ()):
            if _is_there(probe):
                return replace(piece, uri=probe.source.uri, mtime_ns=probe.mtime_ns)
        return piece

    return [replace(spec, pieces=tuple(follow(piece) for piece in spec.pieces)) for spec in specs]


def _content(probe: Probe) -> object:
    return probe.content_sha256, probe.source.start_seconds, probe.source.end_seconds


def _is_there(probe: Probe) -> bool:
    return _file_is(probe.source.uri, probe.size_bytes, probe.mtime_ns)


def _file_is(uri: str, size_bytes: int, mtime_ns: int) -> bool:
    try:
        return size_and_time(uri) == (size_bytes, mtime_ns)
    except VideoError:
        return False
