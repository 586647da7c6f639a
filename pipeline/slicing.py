"""Slice: a cache of some clips of another one, made of the same bytes, valid for every reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipeline.cache import FeatureCache
from pipeline.carrying import carry_events
from pipeline.choosing import Choice
from pipeline.holdings import Holding, keep_clips, read_holdings
from pipeline.layout import CacheLayout
from pipeline.planning import estimate_clip_bytes, group_pieces
from pipeline.probing import read_probes
from pipeline.repacking import NewShard, write_shards
from schemas.errors import FingerprintMismatch, UsageError
from schemas.plan import ShardSpec
from schemas.video import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a slice is made of."""

    cache: FeatureCache
    shards: tuple[NewShard, ...]
    probes: tuple[Probe, ...]

    @property
    def video_ids(self) -> set[str]:
        return {holding.piece.video_id for holding in self._holdings() if holding.samples}

    @property
    def num_clips(self) -> int:
        return sum(len(holding.samples) for holding in self._holdings())

    @property
    def num_bytes(self) -> int:
        """Of samples in tars."""
        return sum(shard.num_bytes for shard in self.shards)

    def _holdings(self) -> Iterable[Holding]:
        return (holding for shard in self.shards for holding in shard.holdings)


def plan_slice(cache: FeatureCache, choice: Choice) -> Slice:
    """What a slice of the chosen clips consists of; nothing is written.

    Videos are packed into shards as a run packs them. Sources of kept videos, by all their names,
    and rejected ones that were named come along; others do not.

    UsageError: nothing is chosen. FingerprintMismatch: the cache is of another version. Else as of
    `read_holdings`.
    """
    check_own_fingerprint(cache)
    keys = set(cache.index.column("key").filter(choice.rows).to_pylist())
    probes = read_probes(cache.layout)
    check_sources(cache, probes)
    holdings = read_holdings(cache)
    held = {holding.piece.video_id for holding in holdings}
    named = {
        probe.source.identity: probe.video_id
        for probe in probes
        if probe.source.identity in choice.rejected
        and (probe.reject is not None or probe.video_id in held)
    }
    kept = keep_clips(holdings, keys, whole=set(named.values()))
    num_clips = sum(len(holding.samples) for holding in kept)
    if not num_clips:
        raise UsageError("no clip is chosen, and a cache without clips is none")
    if num_clips != len(keys):
        raise cache.damaged(
            f"{len(keys)} clips are chosen in the index, {num_clips} of them are in the shards"
        )
    video_ids = {holding.piece.video_id for holding in kept}
    return Slice(
        cache=cache,
        shards=tuple(_group(kept, cache)),
        probes=tuple(
            probe
            for probe in probes
            if probe.source.identity in named
            or (probe.reject is None and probe.video_id in video_ids)
        ),
    )


def write_slice(
    plan: Slice, layout: CacheLayout, *, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Write it as a new cache; what a killed call has left there is used.

    `progress` is told of bytes. Errors are those of `write_shards`; UsageError also where the place
    is the cache's own.
    """
    check_apart(layout, [plan.cache])
    cache = plan.cache
    write_shards(
        layout,
        plan.shards,
        plan.probes,
        recipe=cache.recipe,
        stamps=cache.info.stamps,
        progress=progress,
        finish=lambda: carry_events([cache.layout], layout, video_ids=plan.video_ids),
    )


def check_own_fingerprint(cache: FeatureCache) -> None:
    """FingerprintMismatch: this version computes another one than is in cache.json."""
    if cache.recipe.fingerprint(cache.info.stamps) != cache.fingerprint:
        raise FingerprintMismatch(
            f"{cache.layout.root}: its recipe and stamps do not give its fingerprint"
            f" {cache.fingerprint[:8]}",
            hint=f"was it made by another version? see: pipeline verify {cache.layout.root}",
        )


def check_sources(cache: FeatureCache, probes: Iterable[Probe]) -> None:
    """CacheDamaged: there are clips of a video whose source nothing tells."""
    lost = sorted(cache.videos.keys() - {one.video_id for one in probes if one.reject is None})
    if lost:
        raise cache.damaged(
            f"{cache.layout.probes} does not know the source of {len(lost)} of"
            f" {len(cache.videos)} videos, such as {lost[0]}"
        )


def check_apart(layout: CacheLayout, caches: Iterable[FeatureCache]) -> None:
    """UsageError: the new cache would lie in one of those that it is made of."""
    for cache in caches:
        old, new = str(_real(cache.layout)), str(_real(layout))
        if f"{new}/".startswith(f"{old.rstrip('/')}/"):
            raise UsageError(f"{layout.root} is, or lies in, the cache it would be made of")


def _real(layout: CacheLayout) -> object:
    root = layout.root
    return root.resolve() if hasattr(root, "resolve") else root


def _group(holdings: Iterable[Holding], cache: FeatureCache) -> Iterable[NewShard]:
    by_split: dict[str, dict[tuple[str, int], Holding]] = {}
    for holding in holdings:
        by_split.setdefault(holding.sidecar.split, {})[holding.place] = holding
    clip_bytes = estimate_clip_bytes(cache.recipe, cache.info.stamps)
    index = 0
    for split, places in sorted(by_split.items()):
        pieces = [holding.piece for holding in places.values()]
        for group in group_pieces(pieces, recipe=cache.recipe, clip_bytes=clip_bytes):
            spec = ShardSpec(
                index=index,
                split=split,
                recipe_fingerprint=cache.fingerprint,
                pieces=tuple(group),
            )
            members = (places[piece.video_id, piece.first_clip] for piece in group)
            yield NewShard(spec=spec, holdings=tuple(members))
            index += 1
