"""The flow on a streaming engine: references to videos are windowed, never pixels or features.

    notifications or a watched pattern -> Source -> probe -> which video it is (state)
        -> window, batches of probes -> ShardSpecs -> build (as in the batch flow)

A shard closes on references: what crosses a step is a row of a source, of a probe or of a plan.
There is no finalize here, since a stream has no end: a bounded run over the cache, once the stream
is drained, writes index, rejects and cache.json.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
from apache_beam.coders import StrUtf8Coder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.transforms.window import FixedWindows

from pipeline.layout import CacheLayout
from pipeline.limiting import RejectLimit
from pipeline.meeting import Meeting
from pipeline.options import RunOptions
from pipeline.places import Place, list_sizes
from pipeline.planning import estimate_clip_bytes, extend_plan, write_plan
from pipeline.probing import write_probes
from pipeline.settling import probe_content
from pipeline.storage import read_table
from pipeline.transforms import BuildShards, ProbeVideos
from schemas.plan import ShardSpec
from schemas.recipe import Recipe
from schemas.tables import probe_to_row
from schemas.video import Probe, Source

HASH_BITS = 34
MIN_WINDOW_SECONDS = 10
FIRST_ID = beam.DoFn.StateParam(ReadModifyWriteStateSpec("video_id", StrUtf8Coder()))
FIRST_CONTENT = beam.DoFn.StateParam(ReadModifyWriteStateSpec("content", StrUtf8Coder()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """When a shard closes on the videos that have arrived."""

    window_seconds: int = 60
    """A shard holds videos of one window only."""
    batch_videos: int = 100
    """Videos that are planned together; the recipe's limits of shards hold as well."""
    buffer_seconds: float | None = None
    """A batch that is not full waits no longer; None: until its window ends."""
    num_buckets: int = 16
    """Batches that are gathered side by side."""

    def __post_init__(self) -> None:
        if self.window_seconds < MIN_WINDOW_SECONDS:
            raise ValueError(f"{self.window_seconds = } must be at least {MIN_WINDOW_SECONDS}")


@dataclass
class ReadNotifications(beam.PTransform):  # type: ignore[misc]
    """Notifications of new objects, as Cloud Storage sends them to Pub/Sub -> Source."""

    subscription: str
    """projects/P/subscriptions/S"""

    def expand(self, root: Any) -> Any:
        messages = root | beam.io.ReadFromPubSub(
            subscription=self.subscription, with_attributes=True
        )
        return messages | "ToSource" >> beam.FlatMap(lambda one: to_sources(one.attributes))


@dataclass
class WatchPattern(beam.PTransform):  # type: ignore[misc]
    """Files that match a pattern, new and changed ones -> Source."""

    pattern: str
    interval_seconds: float = 30.0

    def expand(self, root: Any) -> Any:
        from apache_beam.io.fileio import MatchContinuously

        found = root | MatchContinuously(
            self.pattern, interval=self.interval_seconds, match_updated_files=True
        )
        return found | "ToSource" >> beam.Map(lambda one: Source(uri=one.path))


def to_sources(attributes: dict[str, str]) -> list[Source]:
    """The object that a notification tells of; of one that was deleted, nothing."""
    if attributes.get("eventType", "OBJECT_FINALIZE") != "OBJECT_FINALIZE":
        return []
    return [Source(uri=f"gs://{attributes['bucketId']}/{attributes['objectId']}")]


def build_stream(
    references: Any,
    *,
    layout: CacheLayout,
    meeting: Meeting,
    recipe: Recipe,
    stamps: dict[str, dict[str, Any]],
    options: RunOptions,
    settings: StreamSettings,
) -> Any:
    """Sources in, a PCollection of Source, bounded or not; names of committed shards out."""
    unlimited = RejectLimit(
        num_sources=0, max_rate=1.0, before={}, uncounted=frozenset(), cache=str(layout.root)
    )
    probes = references | "ProbeVideos" >> ProbeVideos(recipe.limits, meeting)
    settled = probes | "Settle" >> SettleVideos()
    batches = settled | "Batch" >> BatchReferences(settings)
    specs = batches | "Plan" >> beam.ParDo(
        _PlanBatch(layout, recipe=recipe, stamps=stamps, settings=settings)
    )
    return (
        specs
        | "Spread" >> beam.Reshuffle()
        | "BuildShards" >> BuildShards(recipe, layout, meeting, stamps, options, unlimited)
    )


@dataclass
class SettleVideos(beam.PTransform):  # type: ignore[misc]
    """Probe -> (Probe, whether its content is new).

    The first id of a content, and the first content of an id, are kept as state for as long as the
    stream lives.
    """

    def expand(self, probes: Any) -> Any:
        return (
            probes
            | "ByContent" >> _keys(str, lambda probe: repr(_content_or_identity(probe)))
            | "OneId" >> beam.ParDo(_OneId())
            | "ById" >> _keys(str, lambda pair: pair[0].video_id)
            | "OneContent" >> beam.ParDo(_OneContent())
        )


@dataclass
class BatchReferences(beam.PTransform):  # type: ignore[misc]
    """(Probe, is new) -> (bucket, batch of them) of one window."""

    settings: StreamSettings

    def expand(self, settled: Any) -> Any:
        num_buckets = self.settings.num_buckets
        return (
            settled
            | "Window" >> beam.WindowInto(FixedWindows(self.settings.window_seconds))
            | "Bucket" >> _keys(int, lambda pair: bucket_of(pair[0], num_buckets=num_buckets))
            | beam.GroupIntoBatches(
                self.settings.batch_videos,
                max_buffering_duration_secs=self.settings.buffer_seconds,
            )
        )


def bucket_of(probe: Probe, *, num_buckets: int) -> int:
    """In [0, num_buckets), the same on every machine."""
    digest = hashlib.sha256(probe.source.uri.encode()).digest()
    return int.from_bytes(digest[:8], "big") % num_buckets


def window_number(window_end_seconds: float, text: str, *, window_seconds: int) -> int:
    """A number for what a window holds, below 2**62: the window, then a hash of `text`."""
    window = max(0, int(window_end_seconds)) // window_seconds  # without a time: before all times
    digest = hashlib.sha256(text.encode()).digest()
    return window << HASH_BITS | int.from_bytes(digest[:8], "big") >> (64 - HASH_BITS)


def plan_batch(
    batch: Sequence[tuple[Probe, bool]],
    layout: CacheLayout,
    *,
    window_end_seconds: float,
    recipe: Recipe,
    stamps: dict[str, dict[str, Any]],
    clip_bytes: int,
    window_seconds: int,
) -> list[ShardSpec]:
    """Add a batch of (Probe, is new), in order of sources, to probes/ and plan/: its ShardSpecs.

    Done again it gives the same ShardSpecs and writes the same files: an engine repeats its work.
    """
    own_number = functools.partial(
        _own_number, window_end_seconds=window_end_seconds, window_seconds=window_seconds
    )
    probes = [probe for probe, _ in batch]
    rows = [probe_to_row(probe) for probe in probes]
    files = functools.partial(layout.extension, layout.probes)
    write_probes(probes, layout, number=own_number(repr(rows), files, lambda _: rows))
    files = functools.partial(layout.extension, layout.plan)
    specs = []
    for spec in extend_plan(
        [probe for probe, is_new in batch if is_new],
        recipe=recipe,
        recipe_fingerprint=recipe.fingerprint(stamps),
        clip_bytes=clip_bytes,
        existing=(),
    ):
        index = own_number(spec.fingerprint, files, functools.partial(_rows_at, spec))
        specs.append(replace(spec, index=index))
        write_plan(specs[-1:], layout, recipe=recipe, stamps=stamps, number=index)
    return specs


def _rows_at(spec: ShardSpec, index: int) -> list[dict[str, Any]]:
    return replace(spec, index=index).to_rows()


def _own_number(
    text: str,
    file: Callable[[int], Place],
    rows: Callable[[int], list[dict[str, Any]]],
    *,
    window_end_seconds: float,
    window_seconds: int,
) -> int:
    # Two texts may have one hash: then the second takes another one.
    for salt in itertools.count():
        number = window_number(window_end_seconds, f"{salt} {text}", window_seconds=window_seconds)
        path = file(number)
        if path.name not in list_sizes(path.parent) or read_table(path).to_pylist() == rows(number):
            return number
    raise AssertionError


def _keys(kind: type, key: Callable[[Any], Any]) -> Any:
    # With their type an engine knows how to write keys so that equal ones are equal bytes.
    return beam.WithKeys(key).with_output_types(beam.typehints.KV[kind, Any])


def _content_or_identity(probe: Probe) -> tuple[object, ...]:
    # What was rejected has no content that could be another's.
    return probe.source.identity if probe.reject else probe_content(probe)


class _OneId(beam.DoFn):  # type: ignore[misc]
    def process(
        self, element: tuple[str, Probe], first: Any = FIRST_ID
    ) -> Iterator[tuple[Probe, bool]]:
        _, probe = element
        if probe.reject is not None:
            yield probe, False
            return
        video_id = first.read()
        if video_id is None:
            first.write(probe.video_id)
        yield replace(probe, video_id=video_id or probe.video_id), video_id is None


class _OneContent(beam.DoFn):  # type: ignore[misc]
    def process(
        self, element: tuple[str, tuple[Probe, bool]], first: Any = FIRST_CONTENT
    ) -> Iterator[tuple[Probe, bool]]:
        video_id, (probe, is_new) = element
        if probe.reject is not None:
            yield probe, False
            return
        content = repr(probe_content(probe))
        held = first.read()
        if held is None:
            first.write(content)
        if held in (None, content):
            yield probe, is_new
        else:
            detail = f"{video_id!r} was given to other content before"
            yield probe.rejected("id_conflict", detail, stage="plan"), False


class _PlanBatch(beam.DoFn):  # type: ignore[misc]
    def __init__(
        self,
        layout: CacheLayout,
        *,
        recipe: Recipe,
        stamps: dict[str, dict[str, Any]],
        settings: StreamSettings,
    ) -> None:
        self._layout = layout
        self._recipe = recipe
        self._stamps = stamps
        self._settings = settings

    def setup(self) -> None:
        self._clip_bytes = estimate_clip_bytes(self._recipe, self._stamps)

    def process(
        self,
        element: tuple[int, Iterable[tuple[Probe, bool]]],
        window: Any = beam.DoFn.WindowParam,
    ) -> Iterator[ShardSpec]:
        _, pairs = element
        yield from plan_batch(
            sorted(pairs, key=lambda pair: pair[0].source.identity),
            self._layout,
            window_end_seconds=float(window.end),
            recipe=self._recipe,
            stamps=self._stamps,
            clip_bytes=self._clip_bytes,
            window_seconds=self._settings.window_seconds,
        )
