"""Meeting: where the processes of one run meet, whatever executes it.

A local run meets in a folder (`run_folder.RunFolder`); a run on an engine meets through Beam and
in files beside the cache (`engine_meeting.EngineMeeting`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pipeline.engines import find_engine
from pipeline.layout import CacheLayout
from pipeline.measuring import Measured, Measures, ShardDone
from pipeline.options import RunOptions
from pipeline.places import Place, is_local
from pipeline.run_folder import RunFolder
from pipeline.source_files import is_remote
from schemas.errors import ReelcacheError, UsageError
from schemas.video import Probe, Source

_OF_THIS_MACHINE = ("file", "local", "memory")
"""Schemes of URLs that another machine cannot follow."""
SHARED_SCRATCH = ".tmp"
"""In a remote cache: files of a run that is at work."""


class NewShards(Protocol):
    """Tells of shards as workers commit them."""

    def new(self) -> list[ShardDone]:
        """Those that were committed since the last call."""
        ...


class Meeting(Protocol):
    """What owner and workers of a run tell each other; picklable."""

    @property
    def sources_file(self) -> str:
        """Path or URL of what `write_sources` wrote; see `run_folder.read_source_file`."""
        ...

    @property
    def scratch(self) -> Path:
        """A folder of the worker's machine for copies of videos."""
        ...

    def seal_urls(self, uris: Iterable[str]) -> None:
        """The owner lets the workers know the signed URLs of these sources. StorageError.

        What is left for them nobody can read who has not this object.
        """

    def learn_urls(self) -> None:
        """A worker knows from now on what `seal_urls` was told."""

    def write_sources(self, sources: Iterable[Source]) -> None:
        """The owner leaves the sources that are to be probed. StorageError."""

    def write_probes(self, probes: Iterable[Probe]) -> str:
        """A worker adds some probes: the name of their file. StorageError."""
        ...

    def read_probes(self) -> list[Probe]:
        """What the workers added: one probe a source, though an engine may repeat its work."""
        ...

    def counter(self) -> Measures:
        """For a worker to count and measure with."""
        ...

    def measured(self) -> Measured:
        """The sum of what all workers counted and measured, as far as the owner knows it."""
        ...

    def shard_log(self) -> NewShards:
        """For the owner to hear of shards, as far as the engine tells of them."""
        ...

    def write_rejects(self, shard: str, reasons: Mapping[str, int]) -> None:
        """A worker tells how many videos of a shard were rejected, by reason."""

    def rejects(self) -> Counter[str]:
        """The sum over all shards that were told of, as far as a worker knows it."""
        ...

    def claim_number(self) -> int:
        """0, 1, 2, ...: another one for each process on a machine that asks."""
        ...

    def reported_errors(self) -> contextlib.AbstractContextManager[None]:
        """A worker's errors within it reach the owner as `reported_error`."""
        ...

    def reported_error(self, error: Exception) -> ReelcacheError | None:
        """What a worker said of the error with which the engine ended, if one did."""
        ...


@contextlib.contextmanager
def open_meeting(
    layout: CacheLayout, run_folder: RunFolder, *, options: RunOptions
) -> Iterator[Meeting]:
    """Where the processes of this run meet; what it leaves in a remote cache is deleted after."""
    if options.is_local:
        yield run_folder
        return
    from pipeline.engine_meeting import EngineMeeting

    place: Place
    if is_local(layout.root):
        place = run_folder.path.absolute()  # goes with the lock
    else:
        remove_folder(layout.root / SHARED_SCRATCH)  # of a run that was killed
        place = layout.root / SHARED_SCRATCH / run_folder.path.name
    try:
        yield EngineMeeting(place, cache=str(layout.root))
    finally:
        if not is_local(layout.root):
            remove_folder(layout.root / SHARED_SCRATCH)


def check_reachable(options: RunOptions, *, root: Place, sources: Sequence[Source]) -> None:
    """UsageError: the engine's workers cannot reach the cache or a source."""
    if options.is_local:
        return
    engine = find_engine(options.runner)
    if not engine.is_far:
        return
    if _is_of_this_machine(str(root)):
        raise UsageError(
            f"--runner {engine.name}: its workers cannot reach the cache {root}",
            hint="name a URL of an object store, such as gs://my-bucket/cache",
        )
    local = [source.uri for source in sources if _is_of_this_machine(source.uri)]
    if local:
        raise UsageError(
            f"--runner {engine.name}: its workers cannot reach {len(local)} of {len(sources)}"
            f" sources, such as {local[0]}",
            hint="copy them to an object store and name their URLs",
        )


def _is_of_this_machine(uri: str) -> bool:
    return not is_remote(uri) or uri.partition("://")[0] in _OF_THIS_MACHINE


def remove_folder(place: Any) -> None:
    """A remote folder and what is in it, if it is there and can be deleted."""
    assert not isinstance(place, Path)
    with contextlib.suppress(OSError):
        place.fs.rm(place.path, recursive=True)
