"""Files that arrive: which sources there are now, and which of them are no longer being written.

A file has settled when its size and time of change have stayed the same for a while, or when that
time is so long ago. A list of sources is itself such a file: until it has settled, what it said
before still holds.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.source_files import is_remote, size_and_time, to_path, to_uri
from pipeline.sources import LIST_EXTENSIONS, read_sources
from schemas.errors import NoSources, SourceError, VideoError
from schemas.video import Source

State = tuple[int, int]
"""Bytes, and time of last change in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When one look at the files is taken."""

    steady: float
    """Seconds of a clock that is never set."""
    wall: float
    """Seconds since 1970, as times of files are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One file in one state."""

    state: State
    first: Moment
    """The look at which it was first in this state."""
    arrived: float
    """Wall time: when it was last written, or first seen where that is later."""

    def has_settled(self, now: Moment, *, settle_seconds: float) -> bool:
        """Whether nobody seems to be writing it any more."""
        age = now.wall - self.state[1] / 1e9
        return now.steady - self.first.steady >= settle_seconds or age >= settle_seconds


class Sights:
    """What was seen of each file, look by look."""

    def __init__(self) -> None:
        self._seen: dict[str, Sight] = {}

    def look(self, uri: str, now: Moment, *, before: Moment | None) -> Sight | None:
        """The file as it is now; None: it is not there. `before` is the look before this one."""
        try:
            state = size_and_time(uri)
        except VideoError:
            self._seen.pop(uri, None)
            return None
        known = self._seen.get(uri)
        if known is None or known.state != state:
            # It came after the look before. What was moved here keeps an older time of its own.
            written = state[1] / 1e9
            came = before is not None and before.wall <= written <= now.wall
            known = Sight(state=state, first=now, arrived=written if came else now.wall)
            self._seen[uri] = known
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What the arguments name at one look."""

    sources: tuple[Source, ...]
    num_lists_waiting: int
    """Lists that are being written."""
    errors: tuple[SourceError, ...]
    """Of arguments that cannot be read now."""


class Lister:
    """Reads what the user names as SOURCES, again and again."""

    def __init__(self, arguments: Sequence[str], *, settle_seconds: float) -> None:
        self._arguments = arguments
        self._settle_seconds = settle_seconds
        self._sights = Sights()
        self._lists: dict[str, tuple[State, tuple[Source, ...]]] = {}

    def list(self, now: Moment, *, before: Moment | None) -> Listing:
        """The sources, each once. An empty folder or list, or a glob without a match, is none."""
        found: dict[object, Source] = {}
        errors: list[SourceError] = []
        num_waiting = 0
        for argument in _expand(self._arguments):
            try:
                if _is_list(argument):
                    sources, waits = self._read_list(argument, now, before=before)
                    num_waiting += waits
                else:
                    sources = read_sources([argument]).sources
            except NoSources:
                continue
            except SourceError as error:
                errors.append(error)
                sources = self._lists[argument][1] if argument in self._lists else ()
            except OSError as error:  # a folder that goes while it is walked
                errors.append(SourceError(f"{argument}: {error.strerror}"))
                continue
            for source in sources:
                found.setdefault(source.identity, source)
        return Listing(
            sources=tuple(found.values()), num_lists_waiting=num_waiting, errors=tuple(errors)
        )

    def _read_list(
        self, argument: str, now: Moment, *, before: Moment | None
    ) -> tuple[tuple[Source, ...], bool]:
        state, sources = self._lists.get(argument, (None, ()))
        sight = self._sights.look(to_uri(str(to_path(argument))), now, before=before)
        if sight is None:
            raise SourceError(f"{argument}: no such file")
        if sight.state == state:
            return sources, False
        if not sight.has_settled(now, settle_seconds=self._settle_seconds):
            return sources, True
        try:
            sources = read_sources([argument]).sources
        except NoSources:
            sources = ()
        self._lists[argument] = sight.state, sources
        return sources, False


def _is_list(argument: str) -> bool:
    if is_remote(argument):  # appears whole
        return False
    path = to_path(argument)
    return path.suffix.lower() in LIST_EXTENSIONS and not path.is_dir()


def _expand(arguments: Iterable[str]) -> list[str]:
    found: list[str] = []
    for argument in arguments:
        is_glob = not is_remote(argument) and glob.has_magic(argument)
        if is_glob and not to_path(argument).exists():
            found += sorted(glob.glob(argument, recursive=True))  # noqa: PTH207 - absolute patterns
        else:
            found.append(argument)
    return found
