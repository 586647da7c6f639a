"""What to do again when a run goes on: files that moved, and files that were away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    specs: Iterable[ShardSpec],
    sidecars: Iterable[Sidecar],
    probes: Sequence[Probe],
    *,
    retry: Collection[str] = (),
    video_ids: Collection[str] = (),
) -> list[Piece]:
    """Pieces to do again: nothing of them was cached, and their file is there.

    Those whose file was away, and those of `video_ids` that were rejected for a reason in `retry`.
    Of a piece that was planned several times the last outcome counts; one that is planned and not
    yet built is not planned once more.
    """
    committed = {sidecar.name: sidecar for sidecar in sidecars}
    lost: dict[tuple[str, int], tuple[Piece, str]] = {}
    times: Counter[tuple[str, int, str]] = Counter()
    for spec in specs:
        sidecar = committed.get(spec.name)
        reasons = {r.video_id: r.reason for r in sidecar.rejects} if sidecar else {}
        for piece in spec.pieces:
            place = piece.video_id, piece.first_clip
            lost.pop(place, None)
            if piece.video_id in reasons:
                lost[place] = piece, reasons[piece.video_id]
                times[*place, reasons[piece.video_id]] += 1
    asked, ids = frozenset(retry), frozenset(video_ids)
    again = [
        piece
        for place, (piece, reason) in lost.items()
        if _comes_back(reason, times=times[*place, reason])
        or (reason in asked and piece.video_id in ids)
    ]
    states = states_of(piece.uri for piece in again)
    places = _places(probes)
    there = [_follow(piece, places, states) for piece in again]
    return [piece for piece in there if _is_there(piece, states)]


def _comes_back(reason: str, *, times: int) -> bool:
    # A file that can be found and not read would be planned by every run.
    return reason in AWAY and (reason != "unreadable" or times == 1)


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
