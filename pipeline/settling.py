"""Settle which video each new source is: equal content is one video, one id is one content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from schemas.plan import Piece, ShardSpec
from schemas.video import Probe, video_id_of

Content = tuple[str, float | None, float | None]
"""sha256 and span: what one video is."""


def settle_ids(
    fresh: Sequence[Probe], *, known: Sequence[Probe], existing: Iterable[ShardSpec]
) -> list[Probe]:
    """The fresh probes, each with the id of its video, or a reject where ids contradict.

    Equal content is one video, whatever ids it was given: the id in the plan, else the smallest
    one given, else the one from the content. An id that is already used for other content is a
    reject; of several new contents under one id all are, so that their order makes no difference.
    """
    pieces = {piece.video_id: piece for spec in existing for piece in spec.pieces}
    superseded = {probe.source.identity for probe in fresh}
    standing = [p for p in known if p.reject is None and p.source.identity not in superseded]
    id_of_content = {probe_content(probe): probe.video_id for probe in standing} | {
        piece_content(piece): video_id for video_id, piece in pieces.items()
    }
    usable = [probe for probe in fresh if probe.reject is None]
    claims: dict[str, set[Content]] = {}
    for probe in usable:
        claims.setdefault(probe.video_id, set()).add(probe_content(probe))
    held = {video_id: piece_content(piece) for video_id, piece in pieces.items()}
    for probe in standing:
        for video_id in (probe.video_id, video_id_of(probe.source, probe.content_sha256)):
            held.setdefault(video_id, probe_content(probe))
    settled: dict[int, Probe] = {}
    by_content: dict[Content, list[int]] = {}
    for number, probe in enumerate(fresh):
        settled[number] = probe
        if probe.reject is not None:
            continue
        holder = held.get(probe.video_id)
        if holder is not None and holder != probe_content(probe):
            piece = pieces.get(probe.video_id)
            same_file = piece is not None and piece.uri == probe.source.uri
            reason = "source_changed" if same_file else "id_conflict"
            detail = f"the cache holds {probe.video_id!r} with the content {holder[0][:16]}"
            settled[number] = probe.rejected(reason, detail, stage="plan")
        elif holder is None and len(claims[probe.video_id]) > 1:
            detail = f"{probe.video_id!r} is given to {len(claims[probe.video_id])} contents"
            settled[number] = probe.rejected("id_conflict", detail, stage="plan")
        else:
            by_content.setdefault(probe_content(probe), []).append(number)
    for content, numbers in by_content.items():
        given = [i for n in numbers if (i := fresh[n].source.video_id) is not None]
        own = fresh[numbers[0]].video_id
        video_id = id_of_content.get(content) or min(given, default=own)
        for number in numbers:
            settled[number] = replace(fresh[number], video_id=video_id)
    return [settled[number] for number in range(len(fresh))]


def probe_content(probe: Probe) -> Content:
    """What video a probe is of."""
    return probe.content_sha256, probe.source.start_seconds, probe.source.end_seconds


def piece_content(piece: Piece) -> Content:
    """What video a piece is of."""
    return piece.content_sha256, piece.start_seconds, piece.end_seconds
