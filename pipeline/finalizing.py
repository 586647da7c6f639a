"""Finalize: from the committed sidecars to index, rejects and, last, cache.json.

It trusts the sidecars on disk and not what the run returned, and checks that no source is lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.layout import CacheLayout
from pipeline.neighbours import write_neighbour_files
from pipeline.places import Place, list_sizes, read_bytes, read_many
from pipeline.storage import publish_bytes, publish_rows
from schemas.account import Account, commonest_reasons
from schemas.cache_info import CacheInfo, ShardEntry
from schemas.errors import CacheDamaged, CacheIncomplete, NothingUsable, TooManyRejects
from schemas.plan import ShardSpec
from schemas.recipe import Recipe
from schemas.reject import Reject
from schemas.sidecar import Sidecar
from schemas.tables import INDEX_SCHEMA, REJECT_SCHEMA, index_rows
from schemas.video import Probe, Source


def finalize_cache(
    layout: CacheLayout,
    *,
    recipe: Recipe,
    stamps: Mapping[str, Mapping[str, Any]],
    account: Account,
    sources: Sequence[Source],
    sidecars: Sequence[Sidecar],
    max_reject_rate: float,
) -> None:
    """Write what readers need; cache.json comes last and only if enough sources are usable.

    NothingUsable: none of the run's `sources`. TooManyRejects: too large a part was rejected. The
    rejects are written nevertheless.
    """
    write_rejects(account, layout)
    own = Account(outcomes={s.identity: account.outcomes[s.identity] for s in sources})
    if own.num_cached or not account.num_cached:
        check_reject_rate(own, layout, max_reject_rate=max_reject_rate)
    _write_index(layout, recipe, stamps, account, sidecars)
    # Nothing of this run is usable, and what there was before is as good as it was.
    check_reject_rate(own, layout, max_reject_rate=max_reject_rate)


def write_rejects(account: Account, layout: CacheLayout) -> None:
    """The table of rejects, for `pipeline rejects`. StorageError."""
    rows: list[dict[str, object]] = [reject.to_row() for reject in account.rejects]
    publish_rows(rows, REJECT_SCHEMA, layout.rejects, scratch=layout.scratch)


def _write_index(
    layout: CacheLayout,
    recipe: Recipe,
    stamps: Mapping[str, Mapping[str, Any]],
    account: Account,
    sidecars: Sequence[Sidecar],
) -> None:
    rows = [row for sidecar in sidecars for row in index_rows(sidecar)]
    _check_unique([row["key"] for row in rows])
    publish_rows(rows, INDEX_SCHEMA, layout.index, scratch=layout.scratch)
    write_neighbour_files(sidecars, layout)
    info = _describe(layout, recipe, stamps, account, sidecars)
    publish_bytes(info.to_json().encode(), layout.info, scratch=layout.scratch)


def read_sidecars(specs: Sequence[ShardSpec], layout: CacheLayout) -> list[Sidecar]:
    """The sidecars of all planned shards, in order. CacheIncomplete: one is not committed."""
    committed = layout.committed()
    lacking = [spec.name for spec in specs if spec.name not in committed]
    if lacking:
        raise CacheIncomplete(
            f"{len(lacking)} of {len(specs)} planned shards are not built, first {lacking[0]}",
            hint="run the same command again; what is committed is kept",
        )
    return read_committed(specs, layout)


def read_committed(specs: Sequence[ShardSpec], layout: CacheLayout) -> list[Sidecar]:
    """The sidecars of those planned shards that are committed.

    CacheDamaged: a tar is gone or has another size, or a shard is not in the plan.
    """
    files = list_sizes(layout.shards)
    committed = layout.committed()
    strange = committed - {spec.name for spec in specs}
    if strange:
        raise CacheDamaged(
            f"{layout.plan} does not know {len(strange)} of the shards, such as {min(strange)}",
            hint="the plan was changed or lost: bring it back, or make a new cache",
        )
    sidecars = []
    paths = [layout.sidecar(spec.name) for spec in specs if spec.name in committed]
    for path, text in read_many(paths):
        sidecar = Sidecar.from_json(text, where=str(path))
        tar = layout.tar(path.stem)
        if sidecar.samples and files.get(tar.name) != sidecar.tar_bytes:
            what = "has another size than was written" if tar.name in files else "is gone"
            raise CacheDamaged(
                f"{tar} {what}, its sidecar is there",
                hint=f"delete {path} and run again to rebuild the shard; pipeline verify"
                f" {layout.root} lists all that is wrong",
            )
        sidecars.append(sidecar)
    return sidecars


def account_for(
    probes: Sequence[Probe], sidecars: Sequence[Sidecar], *, pending: Collection[str] = ()
) -> Account:
    """One outcome for every source: cached, or one reject, the newest.

    Sources of equal content share the outcome of their video. Those of `pending` videos, which are
    still to be built, are left out unless a part of them is cached.
    """
    cached = {entry.video_id for sidecar in sidecars for entry in sidecar.samples}
    failed: dict[str, Reject] = {}
    for sidecar in sidecars:
        for reject in sidecar.rejects:
            failed[reject.video_id] = reject
    outcomes: dict[tuple[str, str, float, float], Reject | None] = {}
    for probe in probes:
        outcome = probe.reject
        if outcome is None and probe.video_id not in cached:
            if probe.video_id in pending:
                continue
            # A source that is neither cached nor rejected is lost: a bug, so let it be a KeyError.
            outcome = replace(failed[probe.video_id], uri=probe.source.uri)
        outcomes[probe.source.identity] = outcome
    return Account(outcomes=outcomes)


def account_so_far(
    probes: Sequence[Probe], committed: Sequence[Sidecar], todo: Sequence[ShardSpec]
) -> Account:
    """The outcomes that are certain while `todo` is still to be built."""
    pending = {piece.video_id for spec in todo for piece in spec.pieces}
    return account_for(probes, committed, pending=pending)


@contextlib.contextmanager
def rejects_told(
    specs: Sequence[ShardSpec], probes: Sequence[Probe], layout: CacheLayout
) -> Iterator[None]:
    """Where a run is stopped for its rejects, `pipeline rejects` tells of those that are known."""
    try:
        yield
    except TooManyRejects:
        committed = layout.committed()
        todo = [spec for spec in specs if spec.name not in committed]
        write_rejects(account_so_far(probes, read_committed(specs, layout), todo), layout)
        raise


def check_reject_rate(account: Account, layout: CacheLayout, *, max_reject_rate: float) -> None:
    """TooManyRejects: the rate is above the limit. NothingUsable: not one source is."""
    reasons = commonest_reasons(account.rejects, limit=3)
    if account.num_cached == 0:
        raise NothingUsable(
            f"none of {len(account.outcomes)} sources is usable: {reasons}",
            hint=f"see: pipeline rejects {shlex.quote(str(layout.root))}",
        )
    if account.reject_rate > max_reject_rate:
        raise TooManyRejects(
            f"{len(account.rejects)} of {len(account.outcomes)} sources were rejected"
            f" ({account.reject_rate:.1%}, the limit is {max_reject_rate:.1%}): {reasons}",
            hint=f"see: pipeline rejects {shlex.quote(str(layout.root))}; what is built is kept:"
            " run again with a higher --max-reject-rate to finish the cache",
        )


def _check_unique(keys: Sequence[str]) -> None:
    repeated = [key for key, count in Counter(keys).items() if count > 1]
    if repeated:
        raise CacheDamaged(f"{len(repeated)} keys occur twice, the first is {repeated[0]}")


def _describe(
    layout: CacheLayout,
    recipe: Recipe,
    stamps: Mapping[str, Mapping[str, Any]],
    account: Account,
    sidecars: Sequence[Sidecar],
) -> CacheInfo:
    samples = [entry for sidecar in sidecars for entry in sidecar.samples]
    return CacheInfo(
        fingerprint=recipe.fingerprint(stamps),
        recipe=recipe.to_mapping(),
        stamps={name: dict(stamp) for name, stamp in stamps.items()},
        counts={
            "sources": len(account.outcomes),
            "cached": account.num_cached,
            "rejected": len(account.rejects),
            "retryable": account.num_retryable,
            "videos": len({entry.video_id for entry in samples}),
            "samples": len(samples),
            "frames": sum(entry.num_frames for entry in samples),
            "missing": sum(gap.num_clips for sidecar in sidecars for gap in sidecar.missing),
            "shards": sum(1 for sidecar in sidecars if sidecar.samples),
            "bytes": sum(sidecar.tar_bytes for sidecar in sidecars),
        },
        shards=tuple(
            ShardEntry(
                name=sidecar.name,
                sha256=sidecar.tar_sha256,
                tar_bytes=sidecar.tar_bytes,
                num_samples=len(sidecar.samples),
                sidecar_sha256=sidecar.file_sha256,
            )
            for sidecar in sidecars
        ),
        index_sha256=_sha256(layout.index),
        tables={
            f"{folder.name}/{path.name}": _sha256(path)
            for folder in (layout.plan, layout.probes)
            for path in layout.extensions(folder)
        },
    )


def _sha256(path: Place) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()
