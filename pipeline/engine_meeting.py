"""EngineMeeting: what owner and workers of a run on an engine tell each other.

Counts travel as Beam metrics, errors in the text of exceptions, since that is all that an engine
hands on; sources and probes as files beside the cache.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import re
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from apache_beam.metrics.metric import MetricsFilter

import schemas.errors
from pipeline.beam_metrics import NAMESPACE
from pipeline.measuring import STAGES, Measured, Measures, ShardDone, StageTime
from pipeline.places import Place, list_sizes, read_bytes, read_many
from pipeline.run_folder import decode_probe, encode_probe
from pipeline.signing import know, seal, unseal, urls_of
from pipeline.storage import publish_bytes, storage_errors
from schemas.errors import ReelcacheError
from schemas.video import Probe, Source

ASK_SECONDS = 10.0
"""Between two questions to an engine for its metrics, which cost a request each."""
_TOKEN = re.compile(r"reelcache-error:([A-Za-z0-9_=-]+):")
_HELD: list[int] = []
"""Files whose locks this process holds until it ends."""


class ReportedError(RuntimeError):
    """An error of a worker, whose text says what it was in a form that survives any engine."""

    @classmethod
    def of(cls, error: Exception) -> ReportedError:
        """The text begins with the token: engines cut off ends."""
        if isinstance(error, ReelcacheError):
            kind, message, hint = type(error).__name__, error.message, error.hint
        else:
            message = "".join(traceback.format_exception(error))[-2000:].strip()
            kind, hint = "", ""
        fields = json.dumps([kind, message, hint]).encode()
        token = base64.urlsafe_b64encode(fields).decode()
        return cls(f"reelcache-error:{token}: {message.splitlines()[-1]}")


class NoShards:
    """Of shards as they come engines tell nothing but their number."""

    def new(self) -> list[ShardDone]:
        """None."""
        return []


class EngineMeeting:
    """The meeting of one run on an engine; a `pipeline.meeting.Meeting`."""

    def __init__(self, place: Place, *, cache: str) -> None:
        """`place` is a folder that all workers can reach; `cache` as errors name it."""
        self.place = place
        self.cache = cache
        self.job = ""
        """What the engine calls the job at work, if it has a name for it."""
        self._key = os.urandom(32)
        self._result: Any = None
        self._measured = self._ended = Measured()
        self._asked = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "cache": self.cache, "_key": self._key}

    @property
    def run_id(self) -> str:
        return self.place.name

    @property
    def sources_file(self) -> str:
        return str(self.place / "sources.jsonl")

    @property
    def scratch(self) -> Path:
        """As of `Meeting`."""
        return Path(tempfile.gettempdir())

    def seal_urls(self, uris: Iterable[str]) -> None:
        """As of `Meeting`; the engine keeps this object with the job."""
        urls = urls_of(uris)
        if urls:
            self._publish(seal(urls, key=self._key), self.place / "urls")

    def learn_urls(self) -> None:
        """As of `Meeting`."""
        with contextlib.suppress(FileNotFoundError):
            know(unseal(read_bytes(self.place / "urls"), key=self._key))

    def write_sources(self, sources: Iterable[Source]) -> None:
        """As of `Meeting`."""
        lines = (encode_probe(Probe(source=source)) + "\n" for source in sources)
        self._publish("".join(lines).encode(), self.place / "sources.jsonl")

    def write_probes(self, probes: Iterable[Probe]) -> str:
        """As of `Meeting`."""
        name = f"{uuid.uuid4().hex}.jsonl"
        text = "".join(encode_probe(probe) + "\n" for probe in probes)
        self._publish(text.encode(), self.place / "probes" / name)
        return name

    def read_probes(self) -> list[Probe]:
        """As of `Meeting`."""
        folder = self.place / "probes"
        probes: dict[object, Probe] = {}
        with storage_errors(self.place):
            places = [folder / name for name in sorted(list_sizes(folder))]
            for _, data in read_many(places):
                for line in data.decode().splitlines():
                    probe = decode_probe(line)
                    probes[probe.source.identity] = probe
        return list(probes.values())

    def counter(self) -> Measures:
        """As of `Meeting`; `BeamMetrics` tells the engine."""
        return Measures()

    def follow(self, result: Any) -> None:
        """Ask this PipelineResult from now on; what was told of those before stays."""
        self._result, self._asked = result, 0.0
        self._ended = self._measured
        with contextlib.suppress(Exception):  # engines without names for their jobs differ
            self.job = str(result.job_id())

    def measured(self) -> Measured:
        """As of `Meeting`; asks the engine now and then only.

        Of a stage it knows how long it took for each element together.
        """
        if self._result is not None and time.monotonic() - self._asked > ASK_SECONDS:
            self._asked = time.monotonic()
            wanted = MetricsFilter().with_namespace(NAMESPACE)
            with contextlib.suppress(Exception):  # progress is not worth a run
                self._measured = self._ended + _to_measured(self._result.metrics().query(wanted))
        return self._measured

    def shard_log(self) -> NoShards:
        """As of `Meeting`."""
        return NoShards()

    def write_rejects(self, shard: str, reasons: Mapping[str, int]) -> None:
        """As of `Meeting`; workers of an engine do not hear of each other, so nobody reads it."""

    def rejects(self) -> Counter[str]:
        """As of `Meeting`: none are known, and a run is judged when it has ended."""
        return Counter()

    def claim_number(self) -> int:
        """As of `Meeting`; the number is free again when the process ends."""
        for number in itertools.count():
            name = f"reelcache-gpu-{os.getuid()}-{number}"
            file = os.open(Path(tempfile.gettempdir()) / name, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
            else:
                _HELD.append(file)
                return number
        raise AssertionError

    @contextlib.contextmanager
    def reported_errors(self) -> Iterator[None]:
        """As of `Meeting`."""
        try:
            yield
        except ReportedError:
            raise
        except Exception as error:
            raise ReportedError.of(error) from error

    def reported_error(self, error: Exception) -> ReelcacheError | None:
        """As of `Meeting`. RuntimeError: a worker ended by what is a bug."""
        found = _TOKEN.search("".join(traceback.format_exception(error)))
        if found is None:
            return None
        try:
            kind, message, hint = json.loads(base64.urlsafe_b64decode(found[1]))
        except ValueError:  # cut off
            return None
        if not kind:
            raise RuntimeError(f"in a worker:\n{message}") from error
        cls = getattr(schemas.errors, kind)
        reported: ReelcacheError = cls(message, hint=hint)
        return reported

    def ended(self) -> None:
        """The job is over: ask it for the last time."""
        self._asked = 0.0
        self.measured()

    def _publish(self, data: bytes, final: Place) -> None:
        scratch = self.place if isinstance(self.place, Path) else Path(tempfile.gettempdir())
        publish_bytes(data, final, scratch=scratch)


def _to_measured(found: Mapping[str, Any]) -> Measured:
    counts: Counter[str] = Counter()
    for counter in found["counters"]:
        counts[counter.key.metric.name] += counter.result or 0
    stages: dict[str, StageTime] = {}
    for one in found.get("distributions", ()):
        name = one.key.metric.name.removesuffix("_ms")
        if name in STAGES and one.result is not None and one.result.count:
            seconds, longest = one.result.sum / 1000, one.result.max / 1000
            stages[name] = stages.get(name, StageTime()) + StageTime(
                num=one.result.count,
                seconds=seconds,
                active_seconds=seconds,
                longest_seconds=longest,
            )
    return Measured(counts=counts, stages=stages)
