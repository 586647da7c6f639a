"""Probe a source: digest, container and packet facts; a bad video is a row, never an exception."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.answers import Nonsense, flag, mapping, number, text, whole
from pipeline.fetching import local_file
from pipeline.jail import DecoderProcess
from pipeline.layout import CacheLayout
from pipeline.source_files import (
    FileState,
    content_sha256,
    is_readable,
    size_and_time,
    states_of,
)
from pipeline.storage import publish_rows, read_table, table_rows
from schemas.errors import CacheDamaged, VideoError
from schemas.recipe import DecodeLimits
from schemas.tables import PROBE_SCHEMA, probe_from_row, probe_to_row
from schemas.timeline import Grid
from schemas.video import Probe, Source, video_id_of

_FACTS: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "container": text,
    "codec": text,
    "width": whole,
    "height": whole,
    "average_fps": number,
    "num_packets": whole,
    "first_seconds": number,
    "last_seconds": number,
    "duration_seconds": number,
    "has_audio": flag,
    "truncated": flag,
    "times_go_back": flag,
}
"""What is asked of a decoder process, and how it is read."""
_READ_BYTES_PER_SECOND = 5e6
"""Slow storage; sets the time limit of a probe."""


def probe_source(
    source: Source, *, limits: DecodeLimits, process: DecoderProcess, scratch: Path | None = None
) -> Probe:
    """What can be told of a source without decoding.

    A remote file is fetched into `scratch`, once. StorageError: the disk is full.
    """
    probe = Probe(source=source)
    try:
        size_bytes, mtime_ns = size_and_time(source.uri)
        probe = Probe(source=source, size_bytes=size_bytes, mtime_ns=mtime_ns)
        if size_bytes == 0:
            raise VideoError("empty_file", "zero bytes")
        with local_file(source.uri, num_bytes=size_bytes, scratch=scratch) as path:
            sha256 = content_sha256(str(path))
            video_id = video_id_of(source, sha256)
            probe = replace(probe, content_sha256=sha256, video_id=video_id)
            request = {
                "kind": "probe",
                "path": str(path),
                "max_pixels": limits.max_pixels,
                "max_duration_seconds": limits.max_duration_seconds,
            }
            duration = size_bytes / _READ_BYTES_PER_SECOND
            try:
                facts = _ask(request, limits=limits, process=process, duration_seconds=duration)
            except VideoError as error:
                # A decoder process may be killed for what is no fault of the video's, once.
                if error.reason != "crashed":
                    raise
                facts = _ask(request, limits=limits, process=process, duration_seconds=duration)
        probe = replace(probe, **facts)
        _check_span(probe)
    except VideoError as error:
        return probe.rejected(error.reason, error.detail)
    return probe


def _ask(
    request: dict[str, Any],
    *,
    limits: DecodeLimits,
    process: DecoderProcess,
    duration_seconds: float,
) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for answer, _ in process.request(request, duration_seconds=duration_seconds):
        try:
            facts = _read_facts(answer, max_duration_seconds=limits.max_duration_seconds)
        except Nonsense as error:
            process.kill()
            detail = f"the decoder process sent nonsense: {error}"
            raise VideoError("crashed", detail) from error
    return facts


def _read_facts(answer: dict[str, Any], *, max_duration_seconds: float) -> dict[str, Any]:
    told = mapping(answer, "facts")
    facts = {name: read(told, name) for name, read in _FACTS.items()}
    # A plan has a row for every few clips: a video of a million years would be planned for ever.
    if not 0 <= facts["last_seconds"] - facts["first_seconds"] <= max_duration_seconds:
        raise Nonsense("longer than a video may be")
    return facts


def _check_span(probe: Probe) -> None:
    start, end = probe.source.start_seconds, probe.source.end_seconds
    grid = Grid.of(first_seconds=probe.first_seconds, fps=1.0, start_seconds=start, end_seconds=end)
    if grid.num_samples(probe.last_seconds) == 0:
        video = f"[{probe.first_seconds:.3f}, {probe.last_seconds:.3f}] s"
        detail = f"frames are at {video}, the span is [{start}, {end}) s"
        raise VideoError("span_outside", detail)


def select_unprobed(
    sources: Iterable[Source], known: Iterable[Probe], *, retry: Collection[str] = ()
) -> list[Source]:
    """The sources that have to be looked at (again).

    Those without a probe, those whose file has another size or time than when probed, and those
    rejected for what may be otherwise now: an id that conflicted, a file that could not be read, a
    reason in `retry`. A good probe stands when its file has gone.
    """
    seen = {probe.source.identity: probe for probe in known}
    sources = list(sources)
    states = states_of(source.uri for source in sources if source.identity in seen)
    return [
        source
        for source in sources
        if _is_stale(source, seen.get(source.identity), states.get(source.uri), retry=retry)
    ]


def select_changed(fresh: Iterable[Probe], known: Iterable[Probe]) -> list[Probe]:
    """The fresh probes that tell something new: a table grows by these only."""
    seen = {probe.source.identity: probe for probe in known}
    return [probe for probe in fresh if seen.get(probe.source.identity) != probe]


def _is_stale(
    source: Source,
    probe: Probe | None,
    now: FileState | VideoError | None,
    *,
    retry: Collection[str],
) -> bool:
    if probe is None:
        return True
    if probe.reject is not None:
        if probe.reject.stage == "plan" or probe.reject.reason in retry:
            return True
        if probe.reject.reason == "unreadable" and is_readable(source.uri):
            return True
    if isinstance(now, VideoError):
        return probe.reject is not None and probe.reject.reason != now.reason
    return now != (probe.size_bytes, probe.mtime_ns)


def read_probes(layout: CacheLayout) -> list[Probe]:
    """The newest probe of every source that the cache has seen, in a fixed order. CacheDamaged."""
    newest: dict[object, Probe] = {}
    for path in layout.extensions(layout.probes):
        try:
            for row in table_rows(read_table(path)):
                probe = probe_from_row(row)
                newest[probe.source.identity] = probe
        except (LookupError, ValueError, TypeError) as error:
            raise CacheDamaged(f"{path}: not a table of probes: {error}") from error
        except CacheDamaged as error:
            raise CacheDamaged(
                error.message,
                hint="bring it back from a copy; or delete it and run again with all sources, which"
                " are then probed once more",
            ) from error
    return [newest[identity] for identity in sorted(newest)]  # type: ignore[type-var]


def write_probes(
    probes: Iterable[Probe], layout: CacheLayout, *, number: int | None = None
) -> None:
    """Add one immutable file of probes, under the next number unless it has one of its own."""
    rows = (probe_to_row(probe) for probe in sorted(probes, key=lambda p: p.source.identity))
    final = layout.extension(layout.probes, number)
    publish_rows(rows, PROBE_SCHEMA, final, scratch=layout.scratch)
