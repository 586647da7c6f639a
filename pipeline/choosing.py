"""Choose clips of a cache: by a manifest of videos and spans, by videos' names, by a filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.clip_columns import clip_columns
from pipeline.filtering import where_mask
from pipeline.manifest import ManifestRow
from pipeline.probing import read_probes
from pipeline.signing import to_public
from pipeline.source_files import is_remote, to_path, to_uri
from schemas.errors import UsageError
from schemas.settings import nearest
from schemas.video import Probe

MAX_TOLD = 5
Identity = tuple[str, str, float, float]
"""Of a source, see `Source`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Clips of a cache."""

    rows: npt.NDArray[np.bool_]
    """(N,): which rows of the index."""
    rejected: frozenset[Identity]
    """Sources that were named and are rejected in the cache."""
    num_null: int
    """Clips that were left out since a filter met null."""
    skipped: tuple[str, ...]
    """What of the manifest the cache does not have, in words."""


def choose_clips(
    cache: FeatureCache,
    *,
    manifest: Sequence[ManifestRow] | None = None,
    videos: Sequence[str] = (),
    where: str | None = None,
    skip_missing: bool = False,
) -> Choice:
    """The clips that manifest or videos name, else all, and of these what passes the filter.

    A row of a manifest with a span means the clips that overlap it. Names are ids, uris, ids that
    were given to a source, or the name of a file that only one source has. A rejected source has no
    clips, so that no filter lets it pass.

    UsageError: a name or row matches nothing (rows may be skipped), or the expression is wrong.
    """
    names = _Names(cache)
    rows = np.ones(len(cache), dtype=np.bool_)
    rejected: set[Identity] = set()
    skipped: list[str] = []
    if manifest is not None or videos:
        rows[:] = False
        for name in videos:
            if not names.choose(name, rows, rejected):
                raise UsageError(f"no video {name!r} in the cache{nearest(name, names.known)}")
        for row in manifest or ():
            why_not = names.choose_row(row, rows, rejected)
            if why_not:
                skipped.append(f"{row.where}: {why_not}")
        if skipped and not skip_missing:
            shown = "\n  ".join(skipped[:MAX_TOLD])
            more = f"\n  and {len(skipped) - MAX_TOLD} more" if len(skipped) > MAX_TOLD else ""
            raise UsageError(
                f"{len(skipped)} of {len(manifest or ())} rows match nothing in the cache:"
                f"\n  {shown}{more}",
                hint="--skip-missing leaves such rows out",
            )
    num_null = 0
    if where is not None:
        mask = where_mask(clip_columns(cache), where)
        passed = mask.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        num_null = int(rows[mask.is_null().to_numpy(zero_copy_only=False)].sum())
        rows &= passed
        rejected.clear()
    return Choice(
        rows=rows, rejected=frozenset(rejected), num_null=num_null, skipped=tuple(skipped)
    )


class _Names:
    """What the videos and sources of a cache are called."""

    def __init__(self, cache: FeatureCache) -> None:
        index = cache.index
        self._rows_of = cache.rows_by_video
        self._starts = index.column("start_seconds").to_numpy()
        self._ends = index.column("end_seconds").to_numpy()
        self._probes: dict[str, list[Probe]] = {}
        for probe in read_probes(cache.layout):
            source = probe.source
            for name in {source.uri, source.video_id, probe.video_id} - {None, ""}:
                self._probes.setdefault(str(name), []).append(probe)
        files: dict[str, list[Probe]] = {}
        for uri in {probe.source.uri for probes in self._probes.values() for probe in probes}:
            files.setdefault(uri.rpartition("/")[2], []).extend(self._probes[uri])
        for name, probes in files.items():
            if len({probe.source.uri for probe in probes}) == 1:
                self._probes.setdefault(name, probes)
        self.known = self._rows_of.keys() | self._probes.keys()

    def choose(self, name: str, rows: npt.NDArray[np.bool_], rejected: set[Identity]) -> bool:
        """Add the clips of what has a name: whether there is such a thing."""
        public = to_public(name)
        for one in (name, public, public if is_remote(public) else to_uri(str(to_path(public)))):
            if one in self._rows_of:
                rows[self._rows_of[one]] = True
                return True
            if one in self._probes:
                self._add(self._probes[one], rows, rejected)
                return True
        return False

    def choose_row(
        self, row: ManifestRow, rows: npt.NDArray[np.bool_], rejected: set[Identity]
    ) -> str:
        """Add what a row names: why there is nothing, or an empty text."""
        found = next((name for name in row.names if name in self.known), None)
        if found is None:
            return f"{row.names[-1]!r}{nearest(row.names[-1], self.known)}"
        probes = self._probes.get(found, [])
        same = [probe for probe in probes if probe.source.identity == row.source.identity]
        if same or row.span == (None, None):
            if probes:
                self._add(same or probes, rows, rejected)
            else:
                rows[self._rows_of[found]] = True
            return ""
        # The video itself may have been a span: all that are of the source count.
        ids = {probe.video_id for probe in probes} | {found}
        near = [self._rows_of[one] for one in ids if one in self._rows_of]
        if not near:
            self._add(probes, rows, rejected)
            return ""
        start = -np.inf if row.source.start_seconds is None else row.source.start_seconds
        end = np.inf if row.source.end_seconds is None else row.source.end_seconds
        candidates = np.concatenate(near)
        overlapping = candidates[
            (self._starts[candidates] < end) & (self._ends[candidates] > start)
        ]
        rows[overlapping] = True
        return "" if len(overlapping) else f"no clip of {found!r} overlaps [{start}, {end}) s"

    def _add(
        self, probes: Iterable[Probe], rows: npt.NDArray[np.bool_], rejected: set[Identity]
    ) -> None:
        for probe in probes:
            if probe.video_id in self._rows_of and probe.reject is None:
                rows[self._rows_of[probe.video_id]] = True
            else:
                rejected.add(probe.source.identity)
