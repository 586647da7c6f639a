"""Holdings: what a cache holds of each planned piece: its samples, what is missing of it, and why.

What slice and merge take from caches and put together anew.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.cache import FeatureCache
from pipeline.places import read_many
from pipeline.planning import read_plan
from schemas.plan import Piece, ShardSpec
from schemas.reject import Reject
from schemas.sidecar import MissingClips, SampleEntry, Sidecar, VideoOutcome


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holding:
    """A piece, and what became of it in one shard."""

    cache: FeatureCache
    piece: Piece
    sidecar: Sidecar
    """Of the shard in which it lies."""
    samples: tuple[SampleEntry, ...] = ()
    """In order of clips; where they lie in that shard."""
    outcome: VideoOutcome | None = None
    missing: tuple[MissingClips, ...] = ()
    rejects: tuple[Reject, ...] = ()

    @property
    def place(self) -> tuple[str, int]:
        """The video and the first clip: in one cache no two holdings have the same."""
        return self.piece.video_id, self.piece.first_clip

    @property
    def num_bytes(self) -> int:
        """Of its samples in the tar."""
        return sum(entry.num_bytes for entry in self.samples)


def read_holdings(cache: FeatureCache) -> list[Holding]:
    """All of a cache, in the order of its plan, as cache.json knows it: no more of a later run.

    Of a piece that was tried several times the newest outcome counts. CacheDamaged: plan or
    sidecars are not those of the cache.
    """
    listed = {entry.name for entry in cache.info.shards}
    specs = [spec for spec in read_plan(cache.layout) if spec.name in listed]
    if len(specs) < len(listed):
        unknown = min(listed - {spec.name for spec in specs})
        raise cache.damaged(f"{cache.layout.plan} does not know the shard {unknown}")
    newest: dict[tuple[str, int], Holding] = {}
    for spec, sidecar in zip(specs, _read_sidecars(specs, cache), strict=True):
        for holding in _of_shard(cache, spec, sidecar):
            newest.pop(holding.place, None)
            newest[holding.place] = holding
    return list(newest.values())


def keep_clips(
    holdings: Iterable[Holding], keys: Collection[str], *, whole: Collection[str] = ()
) -> list[Holding]:
    """What remains where only the samples with these keys are kept.

    Of videos that lose no sample (and of those named `whole`) nothing changes: what is missing of
    them and why is kept too. Of others each run of kept clips becomes a piece of its own.
    """
    holdings = list(holdings)
    had: dict[str, bool] = {}
    for holding in holdings:
        video_id = holding.piece.video_id
        is_kept = all(entry.key in keys for entry in holding.samples)
        had[video_id] = had.get(video_id, True) and is_kept
    cached = {holding.piece.video_id for holding in holdings if holding.samples}
    kept: list[Holding] = []
    for holding in holdings:
        video_id = holding.piece.video_id
        if video_id in whole or (video_id in cached and had[video_id]):
            kept.append(holding)
        elif video_id in cached:
            kept += _runs(holding, keys)
    return kept


def _read_sidecars(specs: Sequence[ShardSpec], cache: FeatureCache) -> Iterator[Sidecar]:
    try:
        for path, text in read_many([cache.layout.sidecar(spec.name) for spec in specs]):
            yield Sidecar.from_json(text, where=str(path))
    except OSError as error:
        raise cache.damaged(f"a sidecar cannot be read: {error}") from error


def _of_shard(cache: FeatureCache, spec: ShardSpec, sidecar: Sidecar) -> Iterator[Holding]:
    starts: dict[str, list[int]] = {}
    for piece in spec.pieces:
        bisect.insort(starts.setdefault(piece.video_id, []), piece.first_clip)

    def place(video_id: str, clip: int) -> tuple[str, int]:
        # The last piece of a video also takes clips beyond those that were planned.
        before = bisect.bisect(starts[video_id], clip)
        return video_id, starts[video_id][max(0, before - 1)]

    samples: dict[tuple[str, int], list[SampleEntry]] = {}
    missing: dict[tuple[str, int], list[MissingClips]] = {}
    outcomes: dict[str, list[VideoOutcome]] = {}
    rejects: dict[str, list[Reject]] = {}
    try:
        for entry in sidecar.samples:
            samples.setdefault(place(entry.video_id, entry.clip_index), []).append(entry)
        for gap in sidecar.missing:
            missing.setdefault(place(gap.video_id, gap.first_clip), []).append(gap)
    except KeyError as error:
        raise cache.damaged(f"{sidecar.name}.json: the plan has no {error} in it") from error
    for outcome in sidecar.videos:
        outcomes.setdefault(outcome.video_id, []).append(outcome)
    for reject in sidecar.rejects:
        rejects.setdefault(reject.video_id, []).append(reject)
    for piece in spec.pieces:
        where = piece.video_id, piece.first_clip
        told = rejects.get(piece.video_id) if where not in samples else None
        reject_of = (told.pop(0),) if told else ()
        decoded = outcomes.get(piece.video_id) if not reject_of else None
        yield Holding(
            cache=cache,
            piece=piece,
            sidecar=sidecar,
            samples=tuple(samples.get(where, ())),
            outcome=decoded.pop(0) if decoded else None,
            missing=tuple(missing.get(where, ())),
            rejects=reject_of,
        )


def _runs(holding: Holding, keys: Collection[str]) -> Iterator[Holding]:
    runs: list[list[SampleEntry]] = []
    for entry in holding.samples:
        if entry.key not in keys:
            continue
        if not runs or entry.clip_index != runs[-1][-1].clip_index + 1:
            runs.append([])
        runs[-1].append(entry)
    piece = holding.piece
    clip_bytes = piece.estimated_bytes // max(1, piece.num_clips)
    for run in runs:
        is_last = piece.is_last and run[-1] is holding.samples[-1]
        yield replace(
            holding,
            piece=replace(
                piece,
                first_clip=run[0].clip_index,
                num_clips=len(run),
                is_last=is_last,
                estimated_bytes=len(run) * clip_bytes,
            ),
            samples=tuple(run),
            missing=(),
            rejects=(),
        )
