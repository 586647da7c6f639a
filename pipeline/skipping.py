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
    moved is not left out. What the cache at `layout` already holds stays.

    Errors as of `read_superfluous`. NoSources: all of them would be left out.
    """
    superfluous = {(one.uri, one.start_seconds, one.end_seconds) for one in read_superfluous(where)}
    superfluous -= _cached(layout)
    kept = tuple(source for source in sources if _identity(source) not in superfluous)
    if not kept:
        raise NoSources(
            f"all {len(sources)} sources are superfluous by {where}",
            hint="leave --skip-duplicates out to cache them all the same",
        )
    return kept, len(sources) - len(kept)


def are_there(sources: Sequence[Source], *, layout: CacheLayout) -> Callable[[Source], bool]:
    """Whether a source is one of these, or of those that the cache at `layout` holds.

    Any other cannot make one of these superfluous.
    """
    there = {_identity(source) for source in sources} | _cached(layout)
    return lambda source: _identity(source) in there


def _cached(layout: CacheLayout) -> set[Identity]:
    return {_identity(p.source) for p in read_probes(layout) if p.reject is None}


def _identity(source: Source) -> Identity:
    return to_public(source.uri), source.start_seconds, source.end_seconds
