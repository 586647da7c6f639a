"""BeamMetrics: what a worker measures, as counters and distributions of Beam, for any engine.

In the namespace `reelcache`. docs/metrics.md
"""

from __future__ import annotations

from apache_beam.metrics import Metrics

from pipeline.measuring import Measured, Measures

NAMESPACE = "reelcache"


class BeamMetrics:
    """Tells Beam what has been added to `measures`; to be used in a DoFn, between elements."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._told = Measured()

    def tell(self) -> None:
        """Counters by their names; for each stage a distribution `STAGE_ms`, a value an element."""
        now, before = self._measures.so_far(), self._told
        self._told = now
        for name, count in now.counts.items():
            if count > before.counts[name]:
                Metrics.counter(NAMESPACE, name).inc(count - before.counts[name])
        for name, stage in now.stages.items():
            if stage.num > before.stage(name).num:
                seconds = stage.seconds - before.stage(name).seconds
                Metrics.distribution(NAMESPACE, f"{name}_ms").update(round(1000 * seconds))
