"""What to do again when a run goes on: files that moved, and files that were away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pipeline.settling import Content, piece_content, probe_content
from pipeline.source_files import FileState, states_of
from schemas.errors import VideoError
from schemas.plan import Piece, ShardSpec
from schemas.sidecar import Sidecar
from schemas.video import Probe

_States = dict[str, FileState | VideoError]
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
    states = states_of(piece.uri for piece in lost.values())
    places = _places(probes)
    there = [_follow(piece, places, states) for piece in lost.values()]
    return [piece for piece in there if _is_there(piece, states)]


def follow_moves(specs: Iterable[ShardSpec], probes: Sequence[Probe]) -> list[ShardSpec]:
    """The specs, with each piece's file where equal content lies now.

    Where the source lies is not part of what a ShardSpec is.
    """
    specs = list(specs)
    states = states_of(piece.uri for spec in specs for piece in spec.pieces)
    places = _places(probes)
    return [
        replace(spec, pieces=tuple(_follow(piece, places, states) for piece in spec.pieces))
        for spec in specs
    ]


def _places(probes: Iterable[Probe]) -> dict[Content, list[Probe]]:
    places: dict[Content, list[Probe]] = {}
    for probe in probes:
        if probe.reject is None:
            places.setdefault(probe_content(probe), []).append(probe)
    return places


def _follow(piece: Piece, places: Mapping[Content, Sequence[Probe]], states: _States) -> Piece:
    if _is_there(piece, states):
        return piece
    for probe in places.get(piece_content(piece), ()):
        moved = replace(piece, uri=probe.source.uri, mtime_ns=probe.mtime_ns)
        if _is_there(moved, states):
            return moved
    return piece


def _is_there(piece: Piece, states: _States) -> bool:
    if piece.uri not in states:
        states |= states_of([piece.uri])
    return states[piece.uri] == (piece.size_bytes, piece.mtime_ns)
