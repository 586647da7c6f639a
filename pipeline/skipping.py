"""Leave out of a run what duplicates of another cache, or of this one, say is superfluous."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.duplicate_tables import read_superfluous
from pipeline.layout import CacheLayout
from pipeline.probing import read_probes
from pipeline.signing import to_public
from schemas.errors import NoSources
from schemas.video import Source

Identity = tuple[str, float | None, float | None]


def skip_duplicates(
    sources: Sequence[Source], *, where: str, layout: CacheLayout
) -> tuple[tuple[Source, ...], int]:
    """(the sources of a run that are worth caching, how many were left out).

    `where` is a cache or its table of clusters. A source is known by its uri and span: one that has
    moved is not left out. What the cache at `layout` already holds stays, and so does that of which
    the better one is not there: neither cached nor among the sources, or rejected before.

    Errors as of `read_superfluous`. NoSources: all of them would be left out.
    """
    cached, there = _cached_and_there(sources, layout=layout)
    found = read_superfluous(where)
    superfluous = {_identity(one.source) for one in found if _identity(one.instead) in there}
    # Two ids that the user gave to one file are two videos in the table, and one uri.
    superfluous -= cached | {_identity(one.instead) for one in found}
    kept = tuple(source for source in sources if _identity(source) not in superfluous)
    if not kept:
        raise NoSources(
            f"all {len(sources)} sources are superfluous by {where}",
            hint="leave --skip-duplicates out to cache them all the same",
        )
    return kept, len(sources) - len(kept)


def are_there(sources: Sequence[Source], *, layout: CacheLayout) -> Callable[[Source], bool]:
    """Whether a source is one of these that was not rejected, or is cached at `layout`.

    Any other cannot make one of these superfluous.
    """
    _, there = _cached_and_there(sources, layout=layout)
    return lambda source: _identity(source) in there


def _cached_and_there(
    sources: Sequence[Source], *, layout: CacheLayout
) -> tuple[set[Identity], set[Identity]]:
    probes = read_probes(layout)
    cached = {_identity(probe.source) for probe in probes if probe.reject is None}
    rejected = {_identity(probe.source) for probe in probes if probe.reject is not None}
    return cached, {_identity(source) for source in sources} - rejected | cached


def _identity(source: Source) -> Identity:
    return to_public(source.uri), source.start_seconds, source.end_seconds
