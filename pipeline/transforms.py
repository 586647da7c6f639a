"""Beam wiring only: each PTransform hands one element to a plain function.

What crosses a step is a row of a source, a row of a plan or a name of a shard: never a pixel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.beam_metrics import BeamMetrics
from pipeline.jail import DecoderProcess
from pipeline.keeping import encoders_of
from pipeline.layout import CacheLayout
from pipeline.limiting import RejectLimit
from pipeline.meeting import Meeting
from pipeline.options import RunOptions
from pipeline.places import to_place
from pipeline.planning import read_plan
from pipeline.pool import DecoderPool
from pipeline.probing import probe_source, read_probes
from pipeline.recovering import follow_moves
from pipeline.run_folder import read_source_file
from pipeline.sharding import BuildTools, build_shard
from schemas.plan import ShardSpec
from schemas.recipe import DecodeLimits, Recipe
from schemas.video import Probe, Source


@dataclass
class ReadSources(beam.PTransform):  # type: ignore[misc]
    """Path or URL of a file of sources -> Source."""

    def expand(self, paths: Any) -> Any:
        return paths | "Read" >> beam.FlatMap(read_source_file) | "Spread" >> beam.Reshuffle()


@dataclass
class ProbeVideos(beam.PTransform):  # type: ignore[misc]
    """Source -> Probe; a bad video is a Probe with a reject."""

    limits: DecodeLimits
    meeting: Meeting

    def expand(self, sources: Any) -> Any:
        return sources | beam.ParDo(_ProbeVideo(self.limits, self.meeting))


@dataclass
class WriteProbes(beam.PTransform):  # type: ignore[misc]
    """Probe -> name of a file of probes, for the owner to read."""

    meeting: Meeting

    def expand(self, probes: Any) -> Any:
        return probes | beam.ParDo(_WriteProbes(self.meeting))


@dataclass
class ReadPlan(beam.PTransform):  # type: ignore[misc]
    """Path of a cache -> ShardSpec, of those that are not committed."""

    meeting: Meeting

    def expand(self, paths: Any) -> Any:
        read = beam.FlatMap(_uncommitted, meeting=self.meeting)
        return paths | "Read" >> read | "Spread" >> beam.Reshuffle()


@dataclass
class BuildShards(beam.PTransform):  # type: ignore[misc]
    """ShardSpec -> name of the committed shard."""

    recipe: Recipe
    layout: CacheLayout
    meeting: Meeting
    stamps: dict[str, dict[str, Any]]
    """Of the encoders that the run began with."""
    options: RunOptions
    limit: RejectLimit

    def expand(self, specs: Any) -> Any:
        return specs | beam.ParDo(_BuildShard(self))


def _uncommitted(path: str, *, meeting: Meeting) -> Iterable[ShardSpec]:
    meeting.learn_urls()
    layout = CacheLayout(to_place(path))
    committed = layout.committed()
    specs = [spec for spec in read_plan(layout) if spec.name not in committed]
    return follow_moves(specs, read_probes(layout))


class _ProbeVideo(beam.DoFn):  # type: ignore[misc]
    def __init__(self, limits: DecodeLimits, meeting: Meeting) -> None:
        self._limits = limits
        self._meeting = meeting

    def setup(self) -> None:
        self._meeting.learn_urls()
        self._process = DecoderProcess(self._limits)
        self._measures = self._meeting.counter()
        self._metrics = BeamMetrics(self._measures)
        self._measures(probers=1)

    def process(self, source: Source) -> Iterator[Probe]:
        with self._meeting.reported_errors(), self._measures.timed("probe"):
            try:
                probe = probe_source(
                    source,
                    limits=self._limits,
                    process=self._process,
                    scratch=self._meeting.scratch,
                )
            except BaseException:
                self.teardown()  # engines forget to, for a bundle that failed
                raise
        yield probe
        if probe.reject is not None:
            self._measures.reject(probe.reject.reason)
        self._measures(probed=1, probed_bytes=probe.size_bytes)
        self._metrics.tell()

    def finish_bundle(self) -> None:
        self._measures.flush()

    def teardown(self) -> None:
        self._process.close()


class _WriteProbes(beam.DoFn):  # type: ignore[misc]
    # Beam's own text files are found again by a glob, which brackets in the cache's path break.
    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def start_bundle(self) -> None:
        self._probes: list[Probe] = []

    def process(self, probe: Probe) -> None:
        self._probes.append(probe)

    def finish_bundle(self) -> Iterator[Any]:
        with self._meeting.reported_errors():
            name = self._meeting.write_probes(self._probes)
        yield WindowedValue(name, 0, [GlobalWindow()])


class _BuildShard(beam.DoFn):  # type: ignore[misc]
    def __init__(self, settings: BuildShards) -> None:
        self._settings = settings

    def setup(self) -> None:
        settings = self._settings
        with settings.meeting.reported_errors():
            settings.meeting.learn_urls()
            pool = DecoderPool(
                settings.recipe.limits,
                num_processes=settings.options.decoders_per_worker,
                allow_programs=settings.recipe.decode.backend == "ffmpeg",
            )
            pool.spawn()  # they start while the encoders load
            hearer = None
            if settings.recipe.audio is not None:
                hearer = DecoderProcess(settings.recipe.limits)
                hearer.spawn()
            measures = settings.meeting.counter()
            try:
                with measures.timed("load"):
                    encoders = encoders_of(
                        settings.recipe,
                        stamps=settings.stamps,
                        runtime=settings.options.runtime(settings.meeting),
                        keep=settings.options.keep_encoders,
                    )
            except BaseException:
                pool.close()
                if hearer is not None:
                    hearer.close()
                raise
            self._tools = BuildTools(
                recipe=settings.recipe,
                layout=settings.layout,
                encoders=encoders,
                pool=pool,
                hearer=hearer,
                measures=measures,
                fetch_bytes=settings.options.fetch_bytes,
            )
            self._metrics = BeamMetrics(measures)
            measures(builders=1)
            measures.flush()

    def process(self, spec: ShardSpec) -> Iterator[str]:
        limit, meeting = self._settings.limit, self._settings.meeting
        with meeting.reported_errors():
            limit.check(meeting)
            try:
                sidecar = build_shard(spec, tools=self._tools)
            except BaseException:
                self.teardown()  # engines forget to, for a bundle that failed
                raise
            finally:
                self._metrics.tell()
            limit.count(sidecar, spec, meeting)
            yield sidecar.name

    def teardown(self) -> None:
        self._tools.pool.close()
        if self._tools.hearer is not None:
            self._tools.hearer.close()
