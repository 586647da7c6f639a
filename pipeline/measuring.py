"""Measures: what one worker counts and how long its stages take; Measured: a sum of such.

Costs a few microseconds a clip, and no byte of a cache depends on it. docs/metrics.md
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

_LOG = logging.getLogger(__name__)
REJECTS = "rejects_"
"""Prefix of a count for each reason."""

COUNTS: dict[str, str] = {
    "probers": "workers that were ready to probe",
    "probed": "sources that were probed",
    "probed_bytes": "bytes of those sources",
    "builders": "workers that were ready to build: their encoders are loaded",
    "shards_begun": "shards that a worker has begun",
    "done": "clips that are encoded or given up; runs ahead of what is committed",
    "shards": "committed shards",
    "videos": "videos whose last clip, or what there was of it, is in a committed shard",
    "clips": "clips in committed shards",
    "frames": "frames in committed shards, without fill",
    "frames_decoded": "frames that were decoded for them",
    "bytes": "bytes of committed shards",
    "rejects": "sources, or parts of long ones, that were given up while probing or building",
}
"""Name -> what is counted. Beside these, `rejects_REASON` for each reason."""

STAGES: dict[str, str] = {
    "probe": "a source: its digest, then its packets' times",
    "load": "loading the encoders of a worker; decoder processes start meanwhile",
    "shard": "a shard from its first piece to its commit",
    "fetch": "bringing the bytes of a remote source here",
    "decode": "CPU seconds of decoder processes, with their start and the programs they run",
    "decode_sound": "CPU seconds of the decoder process that decodes sound",
    "wait_decode": "the worker waited for the frames of a clip",
    "encode": "a batch of clips in the encoders and brought into the form that is stored",
    "wait_encode": "the worker waited for a batch to be encoded: decoders may be ahead",
    "encode_sound": "a chunk of sound in its encoder",
    "wait_sound": "the worker waited for the sound of a clip",
    "pack": "a sample into the tar: previews, headers, writing",
    "hash": "sha256 of a sample's bytes, in a thread",
    "wait_hash": "the worker waited for sha256",
    "publish": "flushing a tar to disk; it and its sidecar to their final names, uploads where the"
    " cache is remote",
    "worker": "CPU seconds of the worker process itself during a shard, all threads",
}
"""Name -> what is measured. Seconds of a clock on the wall but for those named CPU seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """How often a stage ran, and for how long."""

    num: int = 0
    seconds: float = 0.0
    """All times together; two threads at once count twice."""
    active_seconds: float = 0.0
    """At least one thread of a worker was at it."""
    longest_seconds: float = 0.0

    def __add__(self, other: StageTime) -> StageTime:
        return StageTime(
            num=self.num + other.num,
            seconds=self.seconds + other.seconds,
            active_seconds=self.active_seconds + other.active_seconds,
            longest_seconds=max(self.longest_seconds, other.longest_seconds),
        )

    def to_json(self) -> dict[str, float]:
        """Rounded to the microsecond."""
        return {name: round(value, 6) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was counted and measured, of one worker or of several."""

    counts: Counter[str] = field(default_factory=Counter)
    stages: dict[str, StageTime] = field(default_factory=dict)
    busiest_seconds: dict[str, float] = field(default_factory=dict)
    """Stage -> `seconds` of the worker process that has most."""

    def __add__(self, other: Measured) -> Measured:
        names = {**self.stages, **other.stages}
        return Measured(
            counts=Counter({**self.counts}) + other.counts,
            stages={name: self.stage(name) + other.stage(name) for name in names},
        )

    def stage(self, name: str) -> StageTime:
        return self.stages.get(name, StageTime())

    def seconds(self, *names: str) -> float:
        """Of several stages together."""
        return sum(self.stage(name).seconds for name in names)

    @property
    def rejects(self) -> dict[str, int]:
        """Reason -> how many."""
        return {
            name.removeprefix(REJECTS): count
            for name, count in sorted(self.counts.items())
            if name.startswith(REJECTS)
        }

    @property
    def num_workers(self) -> int:
        """Those that build, or while none does, those that probe."""
        return self.counts["builders"] or self.counts["probers"]

    def stages_json(self) -> dict[str, dict[str, float]]:
        """Those that were measured, in the order of `STAGES`."""
        return {name: self.stages[name].to_json() for name in STAGES if name in self.stages}

    def to_row(self) -> dict[str, Any]:
        """For `from_row`; short."""
        stages = {name: astuple(stage) for name, stage in self.stages.items()}
        return {"counts": dict(self.counts), "stages": stages}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Measured:
        """The inverse of `to_row`. LookupError, TypeError, ValueError: something else."""
        stages = {}
        for name, (num, seconds, active, longest) in row["stages"].items():
            stages[name] = StageTime(
                num=num, seconds=seconds, active_seconds=active, longest_seconds=longest
            )
        return cls(counts=Counter(row["counts"]), stages=stages)


def sum_of_workers(by_process: Mapping[int, Measured]) -> Measured:
    """Process -> what it measured, summed up."""
    total = Measured()
    busiest: dict[str, float] = {}
    for measured in by_process.values():
        total += measured
        for name, stage in measured.stages.items():
            busiest[name] = max(busiest.get(name, 0.0), stage.seconds)
    return replace(total, busiest_seconds=busiest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDone:
    """A shard that was committed just now."""

    name: str
    videos: int
    clips: int
    frames: int
    bytes: int
    seconds: float
    rejects: dict[str, int]
    """Reason -> how many."""

    def line(self) -> str:
        """For a log; the same words and units for every shard."""
        text = (
            f"shard {self.name} committed: {self.videos} videos, {self.clips} clips,"
            f" {self.bytes / 1e6:.1f} MB, {self.seconds:.1f} s,"
            f" rejects {sum(self.rejects.values())}"
        )
        reasons = ", ".join(sorted(self.rejects))
        return f"{text} ({reasons})" if reasons else text


class _Running:
    """A stage of one worker; to be used under a lock."""

    __slots__ = ("active", "at_work", "longest", "num", "seconds", "since")

    def __init__(self) -> None:
        self.num = self.at_work = 0
        self.seconds = self.active = self.longest = self.since = 0.0

    def count(self, seconds: float) -> None:
        self.num += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)

    def step(self, now: float, more: int) -> None:
        if self.at_work:
            self.active += now - self.since
        self.at_work += more
        self.since = now


class Measures:
    """Counts and times of one worker, from any of its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._stages: dict[str, _Running] = {}
        self._readings: dict[str, float] = {}

    def __call__(self, **counts: int) -> None:
        """Add counts, of `COUNTS`."""
        with self._lock:
            self._counts.update(counts)

    def reject(self, reason: str) -> None:
        """Count one more."""
        self(rejects=1, **{REJECTS + reason: 1})

    def took(self, stage: str, seconds: float) -> None:
        """A stage, of `STAGES`, ran once."""
        with self._lock:
            running = self._running(stage)
            running.count(seconds)
            running.active += seconds

    def reads(self, stage: str, seconds: float) -> None:
        """A clock of its own, from 0 on, shows what a stage has taken in all; it ran once more."""
        self.took(stage, max(0.0, seconds - self._readings.get(stage, 0.0)))
        self._readings[stage] = seconds

    def timed(self, stage: str) -> AbstractContextManager[None]:
        """What runs in this context is a stage, whether it ends well or not."""
        return _Timing(self, stage)

    def shard_done(self, shard: ShardDone) -> None:
        """Count a committed shard."""
        _LOG.info(shard.line())  # engines keep what their workers log
        self(shards=1, clips=shard.clips, frames=shard.frames, bytes=shard.bytes)
        for reason, count in shard.rejects.items():
            self(rejects=count, **{REJECTS + reason: count})

    def flush(self) -> None:
        """Tell what is counted so far to whoever waits for it; here that is nobody."""

    def so_far(self) -> Measured:
        """What there is by now; what is still at work counts in `active_seconds` only."""
        now = time.perf_counter()
        with self._lock:
            stages = {}
            for name, running in self._stages.items():
                running.step(now, 0)
                stages[name] = StageTime(
                    num=running.num,
                    seconds=running.seconds,
                    active_seconds=running.active,
                    longest_seconds=running.longest,
                )
            return Measured(counts=Counter(self._counts), stages=stages)

    def _step(self, stage: str, more: int, *, began: float | None = None) -> float:
        now = time.perf_counter()
        with self._lock:
            running = self._running(stage)
            running.step(now, more)
            if began is not None:
                running.count(now - began)
        return now

    def _running(self, stage: str) -> _Running:
        running = self._stages.get(stage)
        if running is None:
            if stage not in STAGES:
                raise ValueError(f"{stage = } is not one of {sorted(STAGES)}")
            running = self._stages[stage] = _Running()
        return running


class _Timing(AbstractContextManager[None]):
    # contextlib's decorator takes three times as long.
    __slots__ = ("_began", "_measures", "_stage")

    def __init__(self, measures: Measures, stage: str) -> None:
        self._measures, self._stage = measures, stage

    def __enter__(self) -> None:
        self._began = self._measures._step(self._stage, 1)

    def __exit__(self, *_: object) -> None:
        self._measures._step(self._stage, -1, began=self._began)
