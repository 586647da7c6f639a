"""Beam wiring only: each PTransform hands one element to a plain function.

What crosses a step is a row of a source, a row of a plan or a name of a shard: never a pixel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io import WriteToText

from pipeline.encoding import StreamEncoders
from pipeline.jail import DecoderProcess
from pipeline.layout import CacheLayout
from pipeline.planning import read_plan
from pipeline.probing import probe_source
from pipeline.run_folder import ProgressCounter, RunFolder, encode_probe
from pipeline.sharding import BuildTools, build_shard
from schemas.errors import ReelcacheError
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
    """Probe -> lines of JSON in the run folder."""

    run_folder: RunFolder

    def expand(self, probes: Any) -> Any:
        lines = probes | "Encode" >> beam.Map(encode_probe)
        return lines | "Write" >> WriteToText(str(self.run_folder.probes_prefix))


@dataclass
class ReadPlan(beam.PTransform):  # type: ignore[misc]
    """Path of a cache -> ShardSpec, of those that are not committed."""

    def expand(self, paths: Any) -> Any:
        return paths | "Read" >> beam.FlatMap(_uncommitted) | "Spread" >> beam.Reshuffle()


@dataclass
class BuildShards(beam.PTransform):  # type: ignore[misc]
    """ShardSpec -> name of the committed shard."""

    recipe: Recipe
    layout: CacheLayout
    run_folder: RunFolder

    def expand(self, specs: Any) -> Any:
        return specs | beam.ParDo(_BuildShard(self.recipe, self.layout, self.run_folder))


def _uncommitted(path: str) -> Iterable[ShardSpec]:
    layout = CacheLayout(Path(path))
    return [spec for spec in read_plan(layout) if not layout.is_committed(spec.name)]


class _ProbeVideo(beam.DoFn):  # type: ignore[misc]
    def __init__(self, limits: DecodeLimits, run_folder: RunFolder) -> None:
        self._limits = limits
        self._run_folder = run_folder

    def setup(self) -> None:
        self._process = DecoderProcess(self._limits)
        self._progress = ProgressCounter(self._run_folder)

    def process(self, source: Source) -> Iterator[Probe]:
        yield probe_source(source, limits=self._limits, process=self._process)
        self._progress(probed=1)

    def teardown(self) -> None:
        self._process.close()


class _BuildShard(beam.DoFn):  # type: ignore[misc]
    def __init__(self, recipe: Recipe, layout: CacheLayout, run_folder: RunFolder) -> None:
        self._recipe = recipe
        self._layout = layout
        self._run_folder = run_folder

    def setup(self) -> None:
        self._tools = BuildTools(
            recipe=self._recipe,
            layout=self._layout,
            encoders=StreamEncoders(self._recipe),
            process=DecoderProcess(self._recipe.limits),
            progress=ProgressCounter(self._run_folder),
        )

    def process(self, spec: ShardSpec) -> Iterator[str]:
        try:
            yield build_shard(spec, tools=self._tools).name
        except ReelcacheError as error:
            self._run_folder.report_error(error)
            raise

    def teardown(self) -> None:
        self._tools.process.close()
