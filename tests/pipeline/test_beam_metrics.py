"""What an engine is told of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from pipeline.beam_metrics import NAMESPACE, BeamMetrics
from pipeline.measuring import Measures
from pipeline.run_folder import RunFolder
from pipeline.transforms import ProbeVideos
from schemas.recipe import DecodeLimits
from schemas.video import Source


class _Work(beam.DoFn):  # type: ignore[misc]
    def setup(self) -> None:
        self._measures = Measures()
        self._metrics = BeamMetrics(self._measures)

    def process(self, number: int) -> Iterator[int]:
        self._measures(done=number)
        if number > 1:
            self._measures.took("shard", number)
        self._metrics.tell()
        yield number


def _run(elements: list[object], step: beam.PTransform) -> dict[str, object]:
    root = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    _ = root | beam.Create(elements) | step
    result = root.run()
    result.wait_until_finish()
    told = result.metrics().query()
    return {
        metric.key.metric.name: metric.committed
        for kind in ("counters", "distributions")
        for metric in told[kind]
        if metric.key.metric.namespace == NAMESPACE
    }


def test_counters_and_a_value_a_stage_for_each_element() -> None:
    told = _run([1, 2, 4], beam.ParDo(_Work()))
    assert told.keys() == {"done", "shard_ms"}
    assert told["done"] == 7
    shard = told["shard_ms"]
    assert (shard.count, shard.sum, shard.min, shard.max) == (2, 6000, 2000, 4000)  # type: ignore[attr-defined]


def test_probing_tells_the_engine(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "notes.mp4").write_text("no video")
    sources: list[object] = [Source(uri=str(path)) for path in sorted(tmp_path.iterdir())]
    run_folder = RunFolder.create(tmp_path)
    told = _run(sources, ProbeVideos(DecodeLimits(), run_folder))
    assert told["probed"] == 2
    assert told["rejects_empty_file"] == told["rejects_not_a_video"] == 1
    assert told["probe_ms"].count == 2  # type: ignore[attr-defined]
    assert run_folder.measured().counts["probed"] == 2
