"""Write shards anew from the bytes of samples that lie in other shards: nothing is decoded.

The same holdings give the same bytes, so that what was killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.finalizing import account_for, finalize_cache, read_sidecars
from pipeline.holdings import Holding
from pipeline.layout import CacheLayout
from pipeline.locking import hold_cache
from pipeline.neighbours import tar_index
from pipeline.packing import BLOCK, TarWriter
from pipeline.places import list_sizes
from pipeline.planning import read_plan, write_plan
from pipeline.probing import read_probes, write_probes
from pipeline.storage import publish, publish_bytes, temporary_file
from schemas.errors import UsageError
from schemas.plan import ShardSpec
from schemas.recipe import Recipe
from schemas.sidecar import SampleEntry, Sidecar
from schemas.video import Probe

NUM_WRITERS = 4
"""Shards that are written at once: one is read while another is flushed or sent."""
READ_BYTES = 16 << 20
"""That are read at once; a larger sample is read by itself."""
_NAME_BYTES, _SIZE_FIELD = 100, slice(124, 135)
"""Of a USTAR header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewShard:
    """A shard to be written, and the holdings it is written from, one a piece."""

    spec: ShardSpec
    holdings: tuple[Holding, ...]

    @property
    def num_bytes(self) -> int:
        """Of its samples."""
        return sum(holding.num_bytes for holding in self.holdings)


def check_target(layout: CacheLayout) -> None:
    """UsageError: there is a finished cache already, or something that is none."""
    if layout.info.name in list_sizes(layout.root):
        raise UsageError(
            f"{layout.root} holds a cache already", hint="name a new folder; or delete that one"
        )


def bytes_of_tars(shards: Iterable[NewShard]) -> int:
    """Of the tars that the shards are written from, each counted once."""
    return sum(holding.sidecar.tar_bytes for holding in _tars(shards))


def check_tars(
    shards: Iterable[NewShard], *, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Read the whole of every tar that the shards are written from.

    `progress` is told of bytes. CacheDamaged: one has another digest than when it was written.
    """
    told = _counted(progress)

    def check(holding: Holding) -> None:
        cache, sidecar = holding.cache, holding.sidecar
        digest, buffer = hashlib.sha256(), memoryview(bytearray(READ_BYTES))
        for offset in range(0, sidecar.tar_bytes, READ_BYTES):
            view = buffer[: min(READ_BYTES, sidecar.tar_bytes - offset)]
            count = cache.tars.read_into(sidecar.name, [view], offset=offset)
            digest.update(view[:count])
            told(count)
        if digest.hexdigest() != sidecar.tar_sha256:
            path = cache.layout.tar(sidecar.name)
            raise cache.damaged(f"{path}: its bytes are not those that were written")

    with ThreadPoolExecutor(NUM_WRITERS, thread_name_prefix="check") as readers:
        for _ in readers.map(check, _tars(shards)):
            pass


def _tars(shards: Iterable[NewShard]) -> list[Holding]:
    """A holding of each tar."""
    held = (one for shard in shards for one in shard.holdings if one.samples)
    return list({id(holding.sidecar): holding for holding in held}.values())


def write_shards(
    layout: CacheLayout,
    shards: Sequence[NewShard],
    probes: Sequence[Probe],
    *,
    recipe: Recipe,
    stamps: Mapping[str, Mapping[str, Any]],
    link: bool = False,
    progress: Callable[[int], None] = lambda _: None,
    finish: Callable[[], None] = lambda: None,
) -> int:
    """A new cache of these shards and probes: how many tars are links to those of other caches.

    What a killed call has left is used, where it was of the same shards. `link`: a tar of which
    nothing changes is not copied where both lie in one local file system. `progress` is told of
    bytes; `finish` is called before cache.json, the last file, is written.

    UsageError: the place holds another cache, finished or not. StorageError: it cannot be written.
    CacheHeld: someone is at work on it. CacheDamaged: a tar is not what was written.
    """
    check_target(layout)
    specs = [shard.spec for shard in shards]
    with hold_cache(layout) as hold:
        check_target(layout)
        _begin(layout, specs, probes, recipe=recipe, stamps=stamps)
        committed = layout.committed()
        told = _counted(progress)

        def write(shard: NewShard) -> bool:
            if shard.spec.name in committed:
                told(shard.num_bytes)
                return False
            hold.check()
            return _write_shard(layout, shard, link=link, progress=told)

        with ThreadPoolExecutor(NUM_WRITERS, thread_name_prefix="shard") as writers:
            try:
                num_links = sum(writers.map(write, shards))
            except BaseException:
                writers.shutdown(cancel_futures=True)
                raise
        hold.check()
        finish()
        sidecars = read_sidecars(specs, layout)
        finalize_cache(
            layout,
            recipe=recipe,
            stamps=stamps,
            account=account_for(probes, sidecars),
            sources=[probe.source for probe in probes],
            sidecars=sidecars,
            max_reject_rate=1.0,
        )
    return num_links


def _counted(progress: Callable[[int], None]) -> Callable[[int], None]:
    # For several threads.
    lock = threading.Lock()

    def tell(count: int) -> None:
        with lock:
            progress(count)

    return tell


def _begin(
    layout: CacheLayout,
    specs: Sequence[ShardSpec],
    probes: Sequence[Probe],
    *,
    recipe: Recipe,
    stamps: Mapping[str, Mapping[str, Any]],
) -> None:
    # As a run does: probes, then the plan. What is there already must be the same.
    begun = layout.extensions(layout.probes) or layout.extensions(layout.plan)
    ordered = sorted(probes, key=lambda probe: probe.source.identity)
    if not layout.extensions(layout.probes):
        write_probes(ordered, layout)
    if not layout.extensions(layout.plan):
        write_plan(specs, layout, recipe=recipe, stamps=stamps)
    if begun and (read_plan(layout) != specs or read_probes(layout) != ordered):
        raise UsageError(
            f"{layout.root} holds an unfinished cache of something else",
            hint="name a new folder; or delete what was begun there",
        )


def _write_shard(
    layout: CacheLayout, shard: NewShard, *, link: bool, progress: Callable[[int], None]
) -> bool:
    """Whether the tar is a link."""
    spec, holdings = shard.spec, shard.holdings
    origin = _origin(holdings)
    is_link = origin is not None and link and _link(origin, layout, spec.name)
    if origin is not None and is_link:
        samples = origin.sidecar.samples
        sha256, num_bytes = origin.sidecar.tar_sha256, origin.sidecar.tar_bytes
        progress(shard.num_bytes)
    else:
        with temporary_file(layout.scratch, name=f"{spec.name}.tar") as temporary:
            with TarWriter(temporary, place=layout.root) as writer:
                samples = tuple(_copy_samples(holdings, writer, progress=progress))
                sha256, num_bytes = writer.finish()
            if origin is not None and sha256 != origin.sidecar.tar_sha256:
                path = origin.cache.layout.tar(origin.sidecar.name)
                raise origin.cache.damaged(f"{path}: its bytes are not those that were written")
            if samples:
                publish(temporary, layout.tar(spec.name))
    if samples:
        publish_bytes(tar_index(samples), layout.tar_index(spec.name), scratch=layout.scratch)
    else:
        sha256, num_bytes = "", 0
    sidecar = Sidecar(
        name=spec.name,
        index=spec.index,
        split=spec.split,
        fingerprint=spec.fingerprint,
        recipe_fingerprint=spec.recipe_fingerprint,
        tar_sha256=sha256,
        tar_bytes=num_bytes,
        samples=samples,
        videos=tuple(
            replace(holding.outcome, num_clips=len(holding.samples))
            for holding in holdings
            if holding.outcome is not None
        ),
        missing=tuple(gap for holding in holdings for gap in holding.missing),
        rejects=tuple(reject for holding in holdings for reject in holding.rejects),
        versions=_versions(holdings),
    )
    data = sidecar.to_json().encode()
    publish_bytes(data, layout.sidecar(spec.name), scratch=layout.scratch)
    return is_link


def _origin(holdings: Sequence[Holding]) -> Holding | None:
    """One of the holdings, where their samples are all those of one tar, in its order."""
    wanted = [entry for holding in holdings for entry in holding.samples]
    sidecars = {id(holding.sidecar) for holding in holdings if holding.samples}
    if len(sidecars) != 1:
        return None
    first = next(holding for holding in holdings if holding.samples)
    return first if wanted == list(first.sidecar.samples) else None


def _link(origin: Holding, layout: CacheLayout, name: str) -> bool:
    old, new = origin.cache.layout.tar(origin.sidecar.name), layout.tar(name)
    if not (isinstance(old, Path) and isinstance(new, Path)):
        return False
    if old.stat().st_size != origin.sidecar.tar_bytes:
        raise origin.cache.damaged(f"{old} has another size than was written")
    beside = layout.scratch / f"{name}.{uuid.uuid4().hex}"
    try:
        beside.hardlink_to(old.resolve())
    except OSError:  # another disk, or a file system without links
        return False
    publish(beside, new)
    return True


def _copy_samples(
    holdings: Iterable[Holding], writer: TarWriter, *, progress: Callable[[int], None]
) -> Iterator[SampleEntry]:
    for holding, entries in _batches(holdings):
        start = entries[0].offset
        data = np.empty(sum(entry.num_bytes for entry in entries), dtype=np.uint8).data
        tar = holding.cache.layout.tar(holding.sidecar.name)
        if holding.cache.tars.read_into(holding.sidecar.name, [data], offset=start) != len(data):
            raise holding.cache.damaged(f"{tar} ends inside {entries[-1].key}")
        for entry in entries:
            if not _is_sample(data, entry, start=start):
                raise holding.cache.damaged(f"{tar}: {entry.key} is not where it was written")
        shift = writer.append(data) - start
        for entry in entries:
            members = {name: (at + shift, size) for name, (at, size) in entry.members.items()}
            yield replace(entry, offset=entry.offset + shift, members=members)
        progress(len(data))


def _batches(holdings: Iterable[Holding]) -> Iterator[tuple[Holding, list[SampleEntry]]]:
    # Samples that lie back to back are read at once.
    batch: list[SampleEntry] = []
    of: Holding | None = None
    for holding in holdings:
        for entry in holding.samples:
            if of is not None and batch:
                last = batch[-1]
                follows = (
                    of.sidecar is holding.sidecar and last.offset + last.num_bytes == entry.offset
                )
                size = entry.offset + entry.num_bytes - batch[0].offset
                if not follows or size > READ_BYTES:
                    yield of, batch
                    batch = []
            of = holding
            batch.append(entry)
    if of is not None and batch:
        yield of, batch


def _is_sample(data: memoryview, entry: SampleEntry, *, start: int) -> bool:
    """Whether the headers in a tar are those of the sample's members."""
    for name, (offset, size) in entry.members.items():
        at = offset - start - BLOCK
        header = bytes(data[at : at + BLOCK]) if at >= 0 else b""
        told = header[:_NAME_BYTES].rstrip(b"\0"), header[_SIZE_FIELD]
        if told != (f"{entry.key}.{name}".encode(), b"%011o" % size):
            return False
    return True


def _versions(holdings: Iterable[Holding]) -> dict[str, str]:
    """Of libraries; several of one where shards were built by several."""
    found: dict[str, set[str]] = {}
    for holding in holdings:
        for name, version in holding.sidecar.versions.items():
            found.setdefault(name, set()).update(version.split(", "))
    return {name: ", ".join(sorted(versions)) for name, versions in sorted(found.items())}
