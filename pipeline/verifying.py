"""Verify a cache: digests, counts, shapes, times, index against tars, fingerprint.

Every byte of every tar is read. Nothing raises for what is wrong with the cache: it is a finding.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.cache import read_info, read_recipe
from pipeline.checking import sample_problems
from pipeline.finalizing import account_for
from pipeline.layout import CacheLayout
from pipeline.neighbours import energon_files, exact_files
from pipeline.places import Place, list_sizes, local_copy, read_bytes, to_place
from pipeline.planning import read_plan
from pipeline.probing import read_probes
from pipeline.storage import parse_table, read_table
from schemas.cache_info import CacheInfo, ShardEntry
from schemas.errors import CacheDamaged
from schemas.plan import ShardSpec
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.sidecar import SampleEntry, Sidecar
from schemas.tables import as_index, index_rows

KINDS: dict[str, str] = {
    "cache_json": "cache.json contradicts itself or the files",
    "fingerprint": "the recipe and the stamps do not give the fingerprint, or a shard has another",
    "missing_tar": "a tar of the cache is not there",
    "missing_sidecar": "a sidecar of the cache is not there",
    "damaged_sidecar": "a sidecar cannot be read or contradicts cache.json",
    "truncated_tar": "a tar is shorter or longer than when it was written",
    "digest": "the bytes of a tar are not those that were written",
    "members": "a tar's members are not those of its sidecar",
    "duplicate_key": "a key occurs twice",
    "index": "the index is not that of the shards",
    "sample": "a member cannot be decoded or has a wrong shape or dtype",
    "times": "times or mask break their rules",
    "counts": "counts do not add up, or a source is neither cached nor rejected",
    "plan": "the plan does not know the shards",
    "table": "a file of plan/ or probes/ is not the one that was written",
    "unfinished": "a later run has not finished: run it again",
    "stray_tar": "a tar that belongs to no shard; readers that list tars would take it",
    "rejects": "the table of rejects is not that of the probes and sidecars",
    "reader_files": "a file that other readers need is missing or is another",
    "values": "(--deep) a feature is NaN or infinite, or a preview is not a picture",
    "features": "(--deep) encoded again from its source, a clip has other features",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    kind: str
    """One of KINDS."""
    where: str
    detail: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind = } is not one of {sorted(KINDS)}")


@dataclass(slots=True)
class Verification:
    """What `verify_cache` found."""

    findings: list[Finding] = field(default_factory=list)
    num_samples: int = 0
    num_shards: int = 0

    @property
    def ok(self) -> bool:
        return not self.findings

    def add(self, kind: str, where: object, detail: str) -> None:
        """One more finding."""
        self.findings.append(Finding(kind=kind, where=str(where), detail=detail))


def verify_cache(
    path: str | os.PathLike[str],
    *,
    deep: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Verification:
    """Check a cache from end to end; with `deep` also every value and picture.

    `progress` is called with the bytes of each shard that is done. UsageError, CacheIncomplete,
    CacheDamaged, CacheError: there is no cache.json that could be checked against.
    """
    layout = CacheLayout(to_place(path))
    info = read_info(layout)
    result = Verification(num_shards=sum(1 for entry in info.shards if entry.num_samples))
    recipe = _check_info(info, layout, result)
    sidecars: list[Sidecar] = []
    for entry in info.shards:
        sidecar = _check_shard(entry, info, recipe, layout, result, deep=deep)
        if sidecar is not None:
            sidecars.append(sidecar)
        progress(entry.tar_bytes)
    complete = len(sidecars) == len(info.shards)
    finished = _check_tables(info, layout, result)
    specs = _check_plan(info, layout, result) if finished else []
    _check_keys(sidecars, result)
    _check_videos(sidecars, specs, result)
    _check_index(info, layout, sidecars, result, complete=complete)
    if complete and finished:
        _check_counts(info, layout, sidecars, result)
    return result


def _check_info(info: CacheInfo, layout: CacheLayout, result: Verification) -> Recipe | None:
    try:
        recipe = read_recipe(info, layout)
    except CacheDamaged as error:
        result.add("cache_json", layout.info, error.message)
        return None
    if recipe.fingerprint(info.stamps) != info.fingerprint:
        detail = "recipe and stamps in cache.json give another fingerprint"
        result.add("fingerprint", layout.info, detail)
    return recipe


def _check_shard(
    entry: ShardEntry,
    info: CacheInfo,
    recipe: Recipe | None,
    layout: CacheLayout,
    result: Verification,
    *,
    deep: bool,
) -> Sidecar | None:
    tar, sidecar_path = layout.tar(entry.name), layout.sidecar(entry.name)
    sidecar: Sidecar | None = None
    try:
        text = read_bytes(sidecar_path)
        sidecar = Sidecar.from_json(text, where=sidecar_path.name)
    except FileNotFoundError:
        result.add("missing_sidecar", sidecar_path, "not there")
    except (CacheDamaged, OSError) as error:
        result.add("damaged_sidecar", sidecar_path, str(error))
    if sidecar is not None:
        told = (sidecar.tar_sha256, sidecar.tar_bytes, len(sidecar.samples))
        if told != (entry.sha256, entry.tar_bytes, entry.num_samples):
            result.add("damaged_sidecar", sidecar_path, "contradicts cache.json")
        if entry.sidecar_sha256 not in ("", _sha256(text)):
            result.add("damaged_sidecar", sidecar_path, "its sha256 is not the one in cache.json")
        if sidecar.recipe_fingerprint != info.fingerprint:
            detail = f"{sidecar.recipe_fingerprint[:8]}, the cache has {info.fingerprint[:8]}"
            result.add("fingerprint", sidecar_path, detail)
    if entry.num_samples:
        try:
            with local_copy(tar, scratch=layout.scratch) as copy:
                if _check_tar(entry, copy, tar, result) and sidecar is not None:
                    _check_members(sidecar, copy, tar, result)
                    _check_samples(sidecar, copy, info, recipe, result, deep=deep)
        except (FileNotFoundError, IsADirectoryError):
            result.add("missing_tar", tar, "not there")
        except OSError as error:
            result.add("missing_tar", tar, f"cannot be read: {error.strerror or error}")
    return sidecar


def _check_tar(entry: ShardEntry, copy: Path, tar: Place, result: Verification) -> bool:
    size = copy.stat().st_size
    if size != entry.tar_bytes:
        result.add("truncated_tar", tar, f"{size} bytes, {entry.tar_bytes} were written")
        return False
    with copy.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry.sha256:
        result.add("digest", tar, f"sha256 {digest[:16]}, written was {entry.sha256[:16]}")
    return True


def _check_members(sidecar: Sidecar, copy: Path, tar: Place, result: Verification) -> None:
    expected = {
        f"{entry.key}.{name}": place
        for entry in sidecar.samples
        for name, place in entry.members.items()
    }
    try:
        with tarfile.open(copy, "r:") as archive:
            found = [(m.name, (m.offset_data, m.size)) for m in archive.getmembers()]
    except tarfile.TarError as error:
        result.add("members", tar, f"not a tar: {error}")
        return
    for name, count in Counter(name for name, _ in found).items():
        if count > 1:
            result.add("duplicate_key", tar, f"member {name} occurs {count} times")
    differing = set(found) ^ set(expected.items())
    if differing:
        detail = f"{len(differing)} members differ from the sidecar, such as {min(differing)[0]}"
        result.add("members", tar, detail)


def _check_samples(
    sidecar: Sidecar,
    copy: Path,
    info: CacheInfo,
    recipe: Recipe | None,
    result: Verification,
    *,
    deep: bool,
) -> None:
    streams = tuple(recipe.streams) if recipe is not None else ()
    with copy.open("rb") as file:
        for entry in sidecar.samples:
            result.num_samples += 1
            where = f"{sidecar.name}.tar::{entry.key}"
            members = {
                name: os.pread(file.fileno(), size, offset)
                for name, (offset, size) in entry.members.items()
            }
            try:
                sample = Sample.from_members(entry.key, members, streams=streams)
            except CacheDamaged as error:
                result.add("sample", where, str(error))
                continue
            for kind, detail in sample_problems(
                sample, entry, members=set(members), info=info, recipe=recipe, deep=deep
            ):
                result.add(kind, where, detail)


def _check_tables(info: CacheInfo, layout: CacheLayout, result: Verification) -> bool:
    """Whether cache.json is of the last run."""
    found = {
        f"{folder.name}/{path.name}": path
        for folder in (layout.plan, layout.probes)
        for path in layout.extensions(folder)
    }
    for name, sha256 in info.tables.items():
        if name not in found:
            result.add("table", layout.root / name, "not there")
        elif _sha256(_read(found[name])) != sha256:
            result.add("table", found[name], "its sha256 is not the one in cache.json")
    later = sorted(found.keys() - info.tables.keys())
    if later:
        result.add("unfinished", layout.root / later[0], "it is later than cache.json")
    return not later


def _sha256(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _read(path: Place) -> bytes | None:
    try:
        return read_bytes(path)
    except OSError:
        return None


def _check_plan(info: CacheInfo, layout: CacheLayout, result: Verification) -> list[ShardSpec]:
    """What was planned, as far as it can be read."""
    listed = {entry.name for entry in info.shards}
    try:
        specs = read_plan(layout)
    except CacheDamaged as error:
        result.add("plan", layout.plan, error.message)
        return []
    planned = {spec.name for spec in specs}
    if listed - planned:
        result.add("plan", layout.plan, f"does not know the shard {min(listed - planned)}")
    for name in sorted(list_sizes(layout.shards)):
        if name.endswith(".tar") and name[: -len(".tar")] not in listed | planned:
            result.add("stray_tar", layout.shards / name, "belongs to no shard: delete it")
    return specs


def _check_keys(sidecars: list[Sidecar], result: Verification) -> None:
    keys = Counter(entry.key for sidecar in sidecars for entry in sidecar.samples)
    for key, count in keys.items():
        if count > 1:
            result.add("duplicate_key", key, f"occurs {count} times in the cache")


def _check_videos(
    sidecars: list[Sidecar], specs: Sequence[ShardSpec], result: Verification
) -> None:
    planned: dict[str, set[int]] = {}
    built = {sidecar.name for sidecar in sidecars}
    for piece in (piece for spec in specs if spec.name in built for piece in spec.pieces):
        clips = range(piece.first_clip, piece.first_clip + piece.num_clips)
        planned.setdefault(piece.video_id, set()).update(clips)
    videos: dict[str, list[SampleEntry]] = {}
    for sidecar in sidecars:
        for entry in sidecar.samples:
            videos.setdefault(entry.video_id, []).append(entry)
    gaps: dict[str, set[int]] = {}
    for sidecar in sidecars:
        for gap in sidecar.missing:
            clips = range(gap.first_clip, gap.first_clip + gap.num_clips)
            gaps.setdefault(gap.video_id, set()).update(clips)
    for video_id, entries in videos.items():
        entries.sort(key=lambda entry: entry.clip_index)
        found = {entry.clip_index for entry in entries}
        lost = planned.get(video_id, set()) - found - gaps.get(video_id, set())
        if lost:
            result.add("counts", video_id, f"clip {min(lost)} is neither cached nor missing")
        for before, after in itertools.pairwise(entries):
            if after.start_seconds < before.end_seconds - 1e-6:
                detail = f"clip {after.clip_index} begins before clip {before.clip_index} ends"
                result.add("times", video_id, detail)


def _check_index(
    info: CacheInfo,
    layout: CacheLayout,
    sidecars: list[Sidecar],
    result: Verification,
    *,
    complete: bool,
) -> None:
    try:
        data = read_bytes(layout.index)
        rows = as_index(parse_table(data)).to_pylist()
    except (OSError, ValueError, KeyError) as error:
        result.add("index", layout.index, f"cannot be read: {error}")
        return
    if hashlib.sha256(data).hexdigest() != info.index_sha256:
        result.add("index", layout.index, "its sha256 is not the one in cache.json")
    names = {sidecar.name for sidecar in sidecars}
    expected = [row for sidecar in sidecars for row in index_rows(sidecar)]
    if [row for row in rows if row["shard"] in names] != expected:
        result.add("index", layout.index, "its rows are not those of the sidecars")
    elif complete and len(rows) != len(expected):
        result.add("index", layout.index, "it has rows of shards that are not in cache.json")
    if complete:
        for path, data in exact_files(sidecars, layout).items():
            if _read(path) != data:
                result.add("reader_files", path, "not there, or not that of the shards")
        there = list_sizes(layout.energon)
        for path in energon_files(layout):
            if path.name not in there:
                result.add("reader_files", path, "not there")


def _check_counts(
    info: CacheInfo, layout: CacheLayout, sidecars: list[Sidecar], result: Verification
) -> None:
    samples = [entry for sidecar in sidecars for entry in sidecar.samples]
    told = {
        "samples": len(samples),
        "frames": sum(entry.num_frames for entry in samples),
        "videos": len({entry.video_id for entry in samples}),
        "bytes": sum(sidecar.tar_bytes for sidecar in sidecars),
        "missing": sum(gap.num_clips for sidecar in sidecars for gap in sidecar.missing),
        "shards": sum(1 for sidecar in sidecars if sidecar.samples),
    }
    try:
        account = account_for(read_probes(layout), sidecars)
        expected = [reject.to_row() for reject in account.rejects]
        if read_table(layout.rejects).to_pylist() != expected:
            result.add("rejects", layout.rejects, "not those of the probes and sidecars")
        told |= {
            "sources": len(account.outcomes),
            "cached": account.num_cached,
            "rejected": len(account.rejects),
            "retryable": account.num_retryable,
        }
    except KeyError as error:
        result.add("counts", layout.root, f"video {error} is neither cached nor rejected")
    except CacheDamaged as error:
        result.add("counts", layout.root, error.message)
    for name, value in told.items():
        if info.counts.get(name) != value:
            detail = f"cache.json says {info.counts.get(name)} {name}, there are {value}"
            result.add("counts", layout.info, detail)
