"""What to do again when a run goes on: files that moved, and files that were away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipeline.local_files import size_and_time
from schemas.errors import VideoError
from schemas.plan import Piece, ShardSpec
from schemas.sidecar import Sidecar
from schemas.video import Probe

AWAY = ("not_found", "unreadable")
"""Reasons of rejects that end when the file is back."""


def videos_back(sidecars: Iterable[Sidecar], probes: Sequence[Probe]) -> set[str]:
    """Videos of which nothing was cached because their file was away, and now is there again."""
    cached: set[str] = set()
    away: set[str] = set()
    for sidecar in sidecars:
        cached |= {entry.video_id for entry in sidecar.samples}
        away |= {reject.video_id for reject in sidecar.rejects if reject.reason in AWAY}
    lost = away - cached
    return {p.video_id for p in probes if p.video_id in lost and p.reject is None and _is_there(p)}


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
