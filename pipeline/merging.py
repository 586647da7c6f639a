"""Merge: one cache of the clips of several, made of the same bytes, valid for every reader."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.cache import FeatureCache
from pipeline.carrying import carry_events
from pipeline.holdings import Holding, keep_clips, read_holdings
from pipeline.layout import CacheLayout
from pipeline.probing import read_probes
from pipeline.repacking import NewShard, write_shards
from pipeline.settling import Content, piece_content
from pipeline.slicing import check_apart, check_own_fingerprint, check_sources
from schemas.errors import FingerprintMismatch, UsageError
from schemas.plan import ShardSpec
from schemas.recipe import differing_fields
from schemas.sidecar import MissingClips
from schemas.video import Probe

MAX_TOLD = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What a merged cache is made of."""

    caches: tuple[FeatureCache, ...]
    shards: tuple[NewShard, ...]
    probes: tuple[Probe, ...]
    num_shared: int
    """Clips that an earlier cache has as well, and that are taken once."""

    @property
    def video_ids(self) -> set[str]:
        return {
            holding.piece.video_id
            for shard in self.shards
            for holding in shard.holdings
            if holding.samples
        }

    @property
    def num_clips(self) -> int:
        return sum(len(one.samples) for shard in self.shards for one in shard.holdings)

    @property
    def num_bytes(self) -> int:
        """Of samples in tars."""
        return sum(shard.num_bytes for shard in self.shards)


def plan_merge(caches: Sequence[FeatureCache]) -> Merge:
    """What a merge consists of; nothing is written.

    A clip that several caches have is taken from the first; a source that is cached in one is
    cached. Shards stay as they are but for what is left out of them, and get new numbers.

    FingerprintMismatch: the caches are of several recipes, with the differing fields. UsageError:
    an id stands for several contents, or a content has several ids. Else as of `read_holdings`.
    """
    _check_fingerprints(caches)
    for cache in caches:
        check_sources(cache, read_probes(cache.layout))
    held = [read_holdings(cache) for cache in caches]
    names = _settle(caches, held)
    owners: dict[str, set[int]] = {}
    first_of: dict[str, int] = {}
    clips: dict[str, set[int]] = {}
    for number, holdings in enumerate(held):
        for holding in holdings:
            video_id = names[number].get(holding.piece.video_id, holding.piece.video_id)
            first_of.setdefault(video_id, number)
            if holding.samples:
                owners.setdefault(video_id, set()).add(number)
                indices = clips.setdefault(video_id, set())
                indices.update(entry.clip_index for entry in holding.samples)
    taken: set[str] = set()
    num_shared = 0
    shards: list[NewShard] = []
    for number, (cache, holdings) in enumerate(zip(caches, held, strict=True)):
        own = [one for one in holdings if one.piece.video_id not in names[number]]
        own = [
            one
            for one in own
            if one.samples or _tells(one, number, owners=owners, first_of=first_of)
        ]
        keys = {entry.key for one in holdings for entry in one.samples}
        fresh = {entry.key for one in own for entry in one.samples} - taken
        num_shared += len(keys) - len(fresh)
        taken |= fresh
        silent = {one.piece.video_id for one in own if not one.samples}
        kept = keep_clips(own, fresh, whole=silent - owners.keys())
        kept = [_without_found(one, clips) for one in kept]
        shards += _as_shards(kept, cache, first=len(shards))
    if not any(holding.samples for shard in shards for holding in shard.holdings):
        raise UsageError("the caches hold no clip")
    return Merge(
        caches=tuple(caches),
        shards=tuple(shards),
        probes=tuple(_merge_probes(caches, names, held=first_of.keys(), cached=owners.keys())),
        num_shared=num_shared,
    )


def write_merge(
    plan: Merge,
    layout: CacheLayout,
    *,
    link: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Write it as a new cache: how many tars are links to those of the caches.

    Arguments and errors are those of `write_shards`; UsageError also where the place is in one of
    the caches.
    """
    check_apart(layout, plan.caches)
    first = plan.caches[0]
    layouts = [cache.layout for cache in plan.caches]
    return write_shards(
        layout,
        plan.shards,
        plan.probes,
        recipe=first.recipe,
        stamps=first.info.stamps,
        link=link,
        progress=progress,
        finish=lambda: carry_events(layouts, layout, video_ids=plan.video_ids),
    )


def _check_fingerprints(caches: Sequence[FeatureCache]) -> None:
    first = caches[0]
    for cache in caches:
        check_own_fingerprint(cache)
        if cache.fingerprint != first.fingerprint:
            identities = [one.recipe.identity(one.info.stamps) for one in (first, cache)]
            fields = "; ".join(differing_fields(*identities))
            raise FingerprintMismatch(
                f"{first.layout.root} was made by recipe {first.recipe.name!r}"
                f" ({first.fingerprint[:8]}), {cache.layout.root} by {cache.recipe.name!r}"
                f" ({cache.fingerprint[:8]}): {fields}",
                hint="a cache has features of one recipe; encode one of them anew",
            )


def _settle(
    caches: Sequence[FeatureCache], held: Sequence[Sequence[Holding]]
) -> list[dict[str, str]]:
    """For each cache: its ids of videos that an earlier one has under another id -> that id."""
    content_of: dict[str, tuple[Content, int]] = {}
    id_of: dict[Content, str] = {}
    clips: dict[str, set[int]] = {}
    names: list[dict[str, str]] = []
    problems: list[str] = []
    for number, holdings in enumerate(held):
        renamed: dict[str, str] = {}
        found: dict[str, set[int]] = {}
        contents: dict[str, Content] = {}
        for holding in holdings:
            video_id = holding.piece.video_id
            contents[video_id] = piece_content(holding.piece)
            indices = found.setdefault(video_id, set())
            indices.update(entry.clip_index for entry in holding.samples)
        for video_id, content in contents.items():
            here = caches[number].layout.root
            other = id_of.get(content)
            known, where = content_of.setdefault(video_id, (content, number))
            if known != content:
                there = caches[where].layout.root
                problems.append(f"{video_id!r} is other content in {there} than in {here}")
            elif other is not None and other != video_id:
                if not found[video_id] <= clips[other]:
                    there = caches[content_of[other][1]].layout.root
                    problems.append(
                        f"one content is {other!r} in {there} and {video_id!r} in {here}, with"
                        " clips that the former has not"
                    )
                renamed[video_id] = other
                continue
            id_of.setdefault(content, video_id)
            clips.setdefault(video_id, set()).update(found[video_id])
        names.append(renamed)
    if problems:
        more = f"\n  and {len(problems) - MAX_TOLD} more" if len(problems) > MAX_TOLD else ""
        raise UsageError(
            f"ids of {len(problems)} videos contradict each other:\n  "
            + "\n  ".join(problems[:MAX_TOLD])
            + more,
            hint="leave such videos out of one of the caches by: pipeline slice",
        )
    return names


def _tells(
    holding: Holding, number: int, *, owners: dict[str, set[int]], first_of: dict[str, int]
) -> bool:
    # What came to nothing is told of by the cache that has the rest of the video, else by the first
    # one that tried.
    video_id = holding.piece.video_id
    if video_id in owners:
        return owners[video_id] == {number}
    return first_of[video_id] == number


def _without_found(holding: Holding, clips: dict[str, set[int]]) -> Holding:
    """Without what is missing here and cached in another one of the caches."""
    missing: list[MissingClips] = []
    found = clips.get(holding.piece.video_id, set())
    for gap in holding.missing:
        lacking = range(gap.first_clip, gap.first_clip + gap.num_clips)
        for clip in (clip for clip in lacking if clip not in found):
            last = missing[-1] if missing else None
            if last and last.reason == gap.reason and last.first_clip + last.num_clips == clip:
                missing[-1] = replace(last, num_clips=last.num_clips + 1)
            else:
                missing.append(replace(gap, first_clip=clip, num_clips=1))
    return replace(holding, missing=tuple(missing))


def _as_shards(
    holdings: Iterable[Holding], cache: FeatureCache, *, first: int
) -> Iterator[NewShard]:
    groups: dict[str, list[Holding]] = {}
    for holding in holdings:
        groups.setdefault(holding.sidecar.name, []).append(holding)
    for number, group in enumerate(groups.values()):
        spec = ShardSpec(
            index=first + number,
            split=group[0].sidecar.split,
            recipe_fingerprint=cache.fingerprint,
            pieces=tuple(holding.piece for holding in group),
        )
        yield NewShard(spec=spec, holdings=tuple(group))


def _merge_probes(
    caches: Sequence[FeatureCache],
    names: Sequence[dict[str, str]],
    *,
    held: Collection[str],
    cached: Collection[str],
) -> Iterator[Probe]:
    """One a source: the first that is cached, else the first; without what is still to be built."""
    chosen: dict[tuple[str, str, float, float], Probe] = {}

    def is_cached(probe: Probe) -> bool:
        return probe.reject is None and probe.video_id in cached

    for cache, renamed in zip(caches, names, strict=True):
        for probe in read_probes(cache.layout):
            one = replace(probe, video_id=renamed.get(probe.video_id, probe.video_id))
            if one.reject is None and one.video_id not in held:
                continue
            before = chosen.get(one.source.identity)
            if before is None or (is_cached(one) and not is_cached(before)):
                chosen[one.source.identity] = one
    yield from (chosen[identity] for identity in sorted(chosen))
