"""Beam wiring only: each PTransform hands one element to a plain function.

What crosses a step is a row of a source, a row of a plan or a name of a shard: never a pixel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.beam_metrics import BeamMetrics
from pipeline.jail import DecoderProcess
from pipeline.keeping import encoders_of
from pipeline.layout import CacheLayout
from pipeline.limiting import RejectLimit
from pipeline.options import RunOptions
from pipeline.places import to_place
from pipeline.planning import read_plan
from pipeline.pool import DecoderPool
from pipeline.probing import probe_source, read_probes
from pipeline.recovering import follow_moves
from pipeline.run_folder import ProgressCounter, RunFolder
from pipeline.sharding import BuildTools, build_shard
from schemas.plan import ShardSpec
from schemas.recipe import DecodeLimits, Recipe
from schemas.video import Probe, Source


@dataclass
class ReadSources(beam.PTransform):  # type: ignore[misc]
    """Path of a run folder -> Source."""

    def expand(self, paths: Any) -> Any:
        read = beam.FlatMap(lambda path: RunFolder(Path(path)).read_sources())
        return paths | "Read" >> read | "Spread" >> beam.Reshuffle()


@dataclass
class ProbeVideos(beam.PTransform):  # type: ignore[misc]
    """Source -> Probe; a bad video is a Probe with a reject."""

    limits: DecodeLimits
    run_folder: RunFolder

    def expand(self, sources: Any) -> Any:
        return sources | beam.ParDo(_ProbeVideo(self.limits, self.run_folder))


@dataclass
class WriteProbes(beam.PTransform):  # type: ignore[misc]
    """Probe -> name of a file of probes in the run folder."""

    run_folder: RunFolder

    def expand(self, probes: Any) -> Any:
        return probes | beam.ParDo(_WriteProbes(self.run_folder))


@dataclass
class ReadPlan(beam.PTransform):  # type: ignore[misc]
    """Path of a cache -> ShardSpec, of those that are not committed."""

    run_folder: RunFolder

    def expand(self, paths: Any) -> Any:
        read = beam.FlatMap(_uncommitted, run_folder=self.run_folder)
        return paths | "Read" >> read | "Spread" >> beam.Reshuffle()


@dataclass
class BuildShards(beam.PTransform):  # type: ignore[misc]
    """ShardSpec -> name of the committed shard."""

    recipe: Recipe
    layout: CacheLayout
    run_folder: RunFolder
    stamps: dict[str, dict[str, Any]]
    """Of the encoders that the run began with."""
    options: RunOptions
    limit: RejectLimit

    def expand(self, specs: Any) -> Any:
        return specs | beam.ParDo(_BuildShard(self))


def _uncommitted(path: str, *, run_folder: RunFolder) -> Iterable[ShardSpec]:
    run_folder.learn_urls()
    layout = CacheLayout(to_place(path))
    committed = layout.committed()
    specs = [spec for spec in read_plan(layout) if spec.name not in committed]
    return follow_moves(specs, read_probes(layout))


class _ProbeVideo(beam.DoFn):  # type: ignore[misc]
    def __init__(self, limits: DecodeLimits, run_folder: RunFolder) -> None:
        self._limits = limits
        self._run_folder = run_folder

    def setup(self) -> None:
        self._run_folder.learn_urls()
        self._process = DecoderProcess(self._limits)
        self._measures = ProgressCounter(self._run_folder)
        self._metrics = BeamMetrics(self._measures)
        self._measures(probers=1)

    def process(self, source: Source) -> Iterator[Probe]:
        with self._run_folder.reported_errors(), self._measures.timed("probe"):
            probe = probe_source(
                source,
                limits=self._limits,
                process=self._process,
                scratch=self._run_folder.path,
            )
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
    def __init__(self, run_folder: RunFolder) -> None:
        self._run_folder = run_folder

    def start_bundle(self) -> None:
        self._probes: list[Probe] = []

    def process(self, probe: Probe) -> None:
        self._probes.append(probe)

    def finish_bundle(self) -> Iterator[Any]:
        with self._run_folder.reported_errors():
            name = self._run_folder.write_probes(self._probes)
        yield WindowedValue(name, 0, [GlobalWindow()])


class _BuildShard(beam.DoFn):  # type: ignore[misc]
    def __init__(self, settings: BuildShards) -> None:
        self._settings = settings

    def setup(self) -> None:
        settings = self._settings
        settings.run_folder.learn_urls()
        with settings.run_folder.reported_errors():
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
            measures = ProgressCounter(settings.run_folder)
            try:
                with measures.timed("load"):
                    encoders = encoders_of(
                        settings.recipe,
                        stamps=settings.stamps,
                        runtime=settings.options.runtime(settings.run_folder),
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
        limit, run_folder = self._settings.limit, self._settings.run_folder
        with run_folder.reported_errors():
            limit.check(run_folder)
            try:
                sidecar = build_shard(spec, tools=self._tools)
            finally:
                self._metrics.tell()
            limit.count(sidecar, spec, run_folder)
            yield sidecar.name

    def teardown(self) -> None:
        self._tools.pool.close()
        if self._tools.hearer is not None:
            self._tools.hearer.close()
