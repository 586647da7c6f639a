"""RunReport: what a run did; the JSON of `pipeline run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from pipeline.bottleneck import Bottleneck, find_bottleneck
from pipeline.measuring import Measured
from pipeline.pool import num_cores
from schemas.account import Account
from schemas.reject import Reject
from schemas.sidecar import Sidecar
from schemas.video import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What one run did.

    Sources of the run = videos + skipped + rejected, unless it also finished what an interrupted
    run had left of other sources.
    """

    videos: int
    """Newly cached."""
    clips: int
    frames: int
    shards: int
    bytes: int
    missing: int
    """Clips of cached videos that could not be cached in this run; the sidecars say why."""
    sources: int
    """Of this run."""
    rejected: int
    """Sources of this run that are among the rejects, now or from before."""
    retryable: int
    """Those of `rejected` that may succeed later although their file is the same."""
    skipped: int
    """Sources of this run that needed no work: cached before, or copies of another."""
    seconds: float
    fingerprint: str
    cache: str
    rejects: tuple[Reject, ...]
    """Those of `rejected`."""
    measured: Measured = field(default_factory=Measured)
    """By the workers of this run."""
    bottleneck: Bottleneck | None = None
    """What the run was bound by, where one thing stands out."""

    @classmethod
    def of(
        cls,
        sources: Sequence[Source],
        *,
        new: Sequence[Sidecar],
        account: Account,
        fingerprint: str,
        cache: str,
        seconds: float,
        measured: Measured,
    ) -> RunReport:
        """Count what the `new` shards hold and what became of the run's sources."""
        samples = [entry for sidecar in new for entry in sidecar.samples]
        cached = {s.video_id for s in samples}
        outcomes = [account.outcomes[source.identity] for source in sources]
        rejects = tuple(outcome for outcome in outcomes if outcome is not None)
        return cls(
            videos=len(cached),
            clips=len(samples),
            frames=sum(entry.num_frames for entry in samples),
            shards=sum(1 for sidecar in new if sidecar.samples),
            bytes=sum(sidecar.tar_bytes for sidecar in new),
            missing=sum(
                gap.num_clips
                for sidecar in new
                for gap in sidecar.missing
                if gap.video_id in cached
            ),
            sources=len(sources),
            rejected=len(rejects),
            retryable=sum(1 for reject in rejects if reject.retryable),
            skipped=max(0, len(sources) - len(rejects) - len(cached)),
            seconds=round(seconds, 3),
            fingerprint=fingerprint,
            cache=cache,
            rejects=rejects,
            measured=measured,
            bottleneck=find_bottleneck(measured, run_seconds=seconds, num_cores=num_cores()),
        )

    def with_skipped(self, count: int) -> RunReport:
        """The same, of a run that so many more sources were left out of beforehand."""
        return replace(self, sources=self.sources + count, skipped=self.skipped + count)

    def to_json(self) -> dict[str, Any]:
        """All but the sources, the rejects and what is missing, of which the cache itself tells."""
        stages = {
            "bottleneck": self._bottleneck_json(),
            "workers": self.measured.num_workers,
            "times": self.measured.stages_json(),
        }
        return self._facts() | {"stages": stages}

    def to_metrics(self) -> dict[str, Any]:
        """For the last line of a metrics file, which has the times already."""
        return {"report": self._facts(), "bottleneck": self._bottleneck_json()}

    def _facts(self) -> dict[str, Any]:
        told = {"sources", "rejects", "missing", "measured", "bottleneck"}
        names = [field.name for field in fields(self) if field.name not in told]
        return {name: getattr(self, name) for name in names}

    def _bottleneck_json(self) -> dict[str, Any] | None:
        return None if self.bottleneck is None else asdict(self.bottleneck)
