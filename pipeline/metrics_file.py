"""MetricsFile: how a run is getting on, for machines: JSON lines, or Prometheus' text format.

Every name, unit and meaning is in docs/metrics.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.measuring import COUNTS, Measured, ShardDone
from schemas.errors import UsageError

PROMETHEUS_ENDING = ".prom"
WAITS = ("wait_decode", "wait_encode", "wait_sound", "wait_hash")
_PREFIX = "reelcache"
_GAUGES = ("probers", "builders")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How a run is getting on at one moment."""

    cache: str
    stage: str
    """`probe` or `build`; empty before, and at the end."""
    seconds: float
    """Since the run began."""
    total: int
    """Sources to probe or clips to build in this stage."""
    measured: Measured

    def to_json(self, before: Snapshot | None) -> dict[str, Any]:
        """The fields of a line; rates and waits are of the time since the snapshot `before`."""
        measured = self.measured
        lasted = self.seconds - before.seconds if before else self.seconds
        earlier = before.measured if before else Measured()
        counts = {name: measured.counts[name] for name in COUNTS}
        rates = {
            f"{name}_per_second": _ratio(measured.counts[name] - earlier.counts[name], lasted)
            for name in ("probed", "done", "frames", "bytes")
        }
        waits = {
            name: _ratio(
                measured.stage(name).active_seconds - earlier.stage(name).active_seconds,
                lasted * measured.num_workers,
            )
            for name in WAITS
        }
        return {
            "stage": self.stage,
            "seconds": round(self.seconds, 3),
            "total": self.total,
            "workers": measured.num_workers,
            "counts": counts,
            "rejects": measured.rejects,
            "rates": rates,
            "waits": waits,
            "stages": measured.stages_json(),
        }


class MetricsFile:
    """A file that others read while a run writes it. Errors after `check` cost no run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_prometheus = path.suffix == PROMETHEUS_ENDING
        self.complaint = ""
        """Why something could not be written; empty: all is well."""
        self._before: Snapshot | None = None

    def check(self) -> None:
        """UsageError: the file cannot be written."""
        try:
            if self.is_prometheus:
                temporary = self._temporary()
                temporary.touch()
                temporary.unlink()
                if self.path.is_dir():
                    raise IsADirectoryError(0, "it is a folder")
            else:
                self._append(b"")
        except OSError as error:
            raise UsageError(
                f"--metrics {self.path}: cannot be written: {error.strerror or error}",
                hint="name a file in a folder that exists and may be written",
            ) from error

    def tell_shard(self, shard: ShardDone) -> None:
        """A line about a committed shard; nothing in Prometheus' format."""
        if not self.is_prometheus:
            self._line({"event": "shard", **asdict(shard), "line": shard.line()})

    def tell_progress(self, snapshot: Snapshot) -> None:
        """How the run is getting on."""
        if self.is_prometheus:
            self._replace(prometheus_text(snapshot, running=True, ok=True))
        else:
            self._line({"event": "progress", **snapshot.to_json(self._before)})
        self._before = snapshot

    def tell_end(self, snapshot: Snapshot, *, ok: bool, result: Mapping[str, Any]) -> None:
        """The last word: rates and waits are of the whole run; `result` goes into a line."""
        if self.is_prometheus:
            self._replace(prometheus_text(snapshot, running=False, ok=ok))
        else:
            self._line({"event": "end", "ok": ok, **snapshot.to_json(None), **result})

    def _line(self, fields: Mapping[str, Any]) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, **fields}) + "\n"
        with self._forgiven():
            self._append(line.encode())

    def _append(self, data: bytes) -> None:
        # Without waiting: for a pipe that nobody reads this is an error.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
        fd = os.open(self.path, flags, 0o644)
        try:
            if data:
                os.write(fd, data)
        finally:
            os.close(fd)

    def _replace(self, text: str) -> None:
        temporary = self._temporary()
        with self._forgiven():
            try:
                temporary.write_text(text, encoding="utf-8")
                temporary.replace(self.path)
            finally:
                temporary.unlink(missing_ok=True)

    def _temporary(self) -> Path:
        # A collector reads every file of the ending.
        return self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")

    @contextlib.contextmanager
    def _forgiven(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.complaint = f"--metrics {self.path}: {error.strerror or error}"


def prometheus_text(snapshot: Snapshot, *, running: bool, ok: bool) -> str:
    """Text exposition format 0.0.4 of Prometheus."""
    measured = snapshot.measured
    cache = ("cache", snapshot.cache)
    of_stages = [((cache, ("stage", name)), measured.stages[name]) for name in measured.stages]
    metrics: list[tuple[str, str, str, Sequence[tuple[Sequence[tuple[str, str]], float]]]] = [
        ("run_running", "gauge", "1 while the run is at work", [((cache,), int(running))]),
        ("run_ok", "gauge", "0 after a run that failed", [((cache,), int(ok))]),
        ("run_seconds", "gauge", "seconds since the run began", [((cache,), snapshot.seconds)]),
        (
            "planned",
            "gauge",
            "sources to probe or clips to build in this stage",
            [((cache, ("stage", snapshot.stage)), snapshot.total)] if snapshot.stage else [],
        ),
        *(
            (name, "gauge", COUNTS[name], [((cache,), measured.counts[name])])
            for name in COUNTS
            if name in _GAUGES
        ),
        *(
            (f"{name}_total", "counter", COUNTS[name], [((cache,), measured.counts[name])])
            for name in COUNTS
            if name not in _GAUGES and name != "rejects"
        ),
        (
            "rejects_total",
            "counter",
            COUNTS["rejects"],
            [((cache, ("reason", name)), count) for name, count in measured.rejects.items()],
        ),
        (
            "stage_seconds",
            "summary",
            "how often a stage ran and how long, threads added up",
            [],
        ),
        (
            "stage_active_seconds_total",
            "counter",
            "seconds during which a worker was at a stage, in one thread or several",
            [(labels, stage.active_seconds) for labels, stage in of_stages],
        ),
        (
            "stage_longest_seconds",
            "gauge",
            "the longest single time of a stage",
            [(labels, stage.longest_seconds) for labels, stage in of_stages],
        ),
    ]
    lines: list[str] = []
    for name, kind, meaning, samples in metrics:
        lines += [f"# HELP {_PREFIX}_{name} {meaning}", f"# TYPE {_PREFIX}_{name} {kind}"]
        lines += [f"{_PREFIX}_{name}{_labels(labels)} {value!r}" for labels, value in samples]
        if name == "stage_seconds":
            for labels, stage in of_stages:
                lines.append(f"{_PREFIX}_{name}_sum{_labels(labels)} {stage.seconds!r}")
                lines.append(f"{_PREFIX}_{name}_count{_labels(labels)} {stage.num}")
    return "\n".join(lines) + "\n"


def _labels(pairs: Sequence[tuple[str, str]]) -> str:
    told = []
    for name, value in pairs:
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        told.append(f'{name}="{escaped}"')
    return "{" + ",".join(told) + "}"


def _ratio(amount: float, of: float) -> float:
    return round(amount / of, 6) if of > 0 else 0.0
