"""RunFolder: where the processes of one run meet: sources in, probes, progress and errors out.

Small files under the cache's .tmp; worker processes share nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import schemas.errors
from pipeline.measuring import Measured, Measures, ShardDone, sum_of_workers
from pipeline.places import to_place
from pipeline.signing import know, seal, unseal, urls_of
from pipeline.storage import storage_errors
from schemas.errors import ReelcacheError
from schemas.tables import probe_from_row, probe_to_row
from schemas.video import Probe, Source

WRITE_SECONDS = 0.5
_ERRORS_HERE: dict[Path, ReelcacheError] = {}
"""Run folder -> the last error reported in this process."""


class RunFolder:
    """The folder of one run, picklable; `create` makes it, `remove` ends it."""

    def __init__(self, path: Path, *, place: str = "", key: bytes = b"") -> None:
        """`place` is the cache, as errors name it; `key` is what its signed URLs are sealed by."""
        self.path = path
        self._key = key
        self.place = place or str(path)

    @classmethod
    def create(cls, scratch: Path, *, place: str = "") -> RunFolder:
        """A new folder under `scratch`."""
        folder = cls(scratch / f"run-{uuid.uuid4().hex}", place=place, key=os.urandom(32))
        for name in ("probes", "progress", "shards", "errors", "claims", "rejects"):
            (folder.path / name).mkdir(parents=True)
        return folder

    @property
    def sources_file(self) -> str:
        """What `write_sources` writes."""
        return str(self.path / "sources.jsonl")

    @property
    def scratch(self) -> Path:
        """For copies of videos; it goes with the run."""
        return self.path

    @property
    def workers_log(self) -> Path:
        """What engines print in their worker processes."""
        return self.path.absolute() / "workers.log"

    def claim_number(self) -> int:
        """0, 1, 2, ...: another one for each process that asks."""
        for number in itertools.count():
            with contextlib.suppress(FileExistsError):
                (self.path / "claims" / str(number)).touch(exist_ok=False)
                return number
        raise AssertionError

    def write_sources(self, sources: Iterable[Source]) -> None:
        """One line a source, as a row of probes that has no facts yet. StorageError."""
        path = Path(self.sources_file)
        with storage_errors(self.place), path.open("w", encoding="utf-8") as file:
            for source in sources:
                file.write(encode_probe(Probe(source=source)) + "\n")

    def seal_urls(self, uris: Iterable[str]) -> None:
        """Let the other processes of the run know the signed URLs of these sources. StorageError.

        What lies in the folder nobody can read who has not this object.
        """
        urls = urls_of(uris)
        if urls:
            with storage_errors(self.place):
                (self.path / "urls").write_bytes(seal(urls, key=self._key))

    def learn_urls(self) -> None:
        """Know in this process what `seal_urls` was told."""
        with contextlib.suppress(FileNotFoundError):
            know(unseal((self.path / "urls").read_bytes(), key=self._key))

    def write_probes(self, probes: Iterable[Probe]) -> str:
        """Add a file of probes, whole: its name. StorageError."""
        name = f"{uuid.uuid4().hex}.jsonl"
        temporary = self.path / name
        with storage_errors(self.place):
            temporary.write_text("".join(encode_probe(probe) + "\n" for probe in probes))
            temporary.replace(self.path / "probes" / name)
        return name

    def read_probes(self) -> list[Probe]:
        """What the probe stage wrote: one probe a source, though an engine may repeat its work."""
        probes: dict[object, Probe] = {}
        for path in sorted((self.path / "probes").iterdir()):
            with path.open(encoding="utf-8") as file:
                for line in file:
                    probe = decode_probe(line)
                    probes[probe.source.identity] = probe
        return list(probes.values())

    def write_rejects(self, shard: str, reasons: Mapping[str, int]) -> None:
        """Tell how many videos of a shard were rejected, by reason; twice is as good as once."""
        with storage_errors(self.place):
            self._replace("rejects", reasons, name=shard)

    def rejects(self) -> Counter[str]:
        """The sum over all shards that were told of."""
        return self._sum("rejects")

    @contextlib.contextmanager
    def reported_errors(self) -> Iterator[None]:
        """Leave an error for the owner of the run: an engine hands on text only."""
        try:
            yield
        except ReelcacheError as error:
            self.report_error(error)
            raise

    def report_error(self, error: ReelcacheError) -> None:
        """Leave an error for `reported_error`."""
        fields = {"class": type(error).__name__, "message": error.message, "hint": error.hint}
        _ERRORS_HERE[self.path] = error  # the disk may be full, and the owner this process
        with contextlib.suppress(OSError):
            self._replace("errors", fields)

    def reported_error(self, _: Exception | None = None) -> ReelcacheError | None:
        """An error that a worker left, if any."""
        for path in sorted((self.path / "errors").glob("*.json")):
            fields = json.loads(path.read_text())
            cls = getattr(schemas.errors, fields["class"])
            error: ReelcacheError = cls(fields["message"], hint=fields["hint"])
            return error
        return _ERRORS_HERE.get(self.path)

    def counter(self) -> ProgressCounter:
        """For a worker to count with."""
        return ProgressCounter(self)

    def shard_log(self) -> ShardLog:
        """For the owner to hear of committed shards."""
        return ShardLog(self)

    def measured(self) -> Measured:
        """The sum of what all workers have counted and measured."""
        by_process: dict[int, Measured] = {}
        for path in (self.path / "progress").glob("*.json"):
            pid = int(path.name.partition("-")[0])
            one = Measured.from_row(json.loads(path.read_text()))
            by_process[pid] = by_process.get(pid, Measured()) + one
        return sum_of_workers(by_process)

    def _sum(self, kind: str) -> Counter[str]:
        totals: Counter[str] = Counter()
        for path in (self.path / kind).glob("*.json"):
            totals.update(json.loads(path.read_text()))
        return totals

    def _replace(self, kind: str, fields: Any, *, name: str = "") -> None:
        path = self.path / kind / f"{name or os.getpid()}.json"
        temporary = path.with_suffix(f".{uuid.uuid4().hex}")
        temporary.write_text(json.dumps(fields))
        temporary.replace(path)


class ProgressCounter(Measures):
    """Measures of one worker, written now and then for the owner of the run to sum up."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self._folder = folder
        self._name = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._written = 0.0

    def __call__(self, **counts: int) -> None:
        """Add counts."""
        super().__call__(**counts)
        if time.monotonic() - self._written > WRITE_SECONDS:
            self.flush()

    def shard_done(self, shard: ShardDone) -> None:
        """Count a committed shard, and write a line about it for the owner's `ShardLog`."""
        super().shard_done(shard)
        with contextlib.suppress(OSError):
            path = self._folder.path / "shards" / f"{self._name}.jsonl"
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(shard)) + "\n")
        self.flush()

    def flush(self) -> None:
        """Write what is counted so far."""
        self._written = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk is told by what matters
            self._folder._replace("progress", self.so_far().to_row(), name=self._name)


class ShardLog:
    """The shards that workers have committed, as they come."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._read_bytes: Counter[str] = Counter()

    def new(self) -> list[ShardDone]:
        """Those that were committed since the last call."""
        shards = []
        for path in sorted((self._folder.path / "shards").glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read_bytes[path.name])
                whole, newline, _ = file.read().rpartition(b"\n")  # the last may be half written
            self._read_bytes[path.name] += len(whole) + len(newline)
            shards += [ShardDone(**json.loads(line)) for line in whole.splitlines()]
        return shards


def read_source_file(path: str) -> Iterator[Source]:
    """The sources in a file that `write_sources` wrote, wherever it lies."""
    with to_place(path).open("r", encoding="utf-8") as file:
        for line in file:
            yield decode_probe(line).source


def encode_probe(probe: Probe) -> str:
    """One line of JSON."""
    return json.dumps(probe_to_row(probe))


def decode_probe(line: str) -> Probe:
    """The inverse of `encode_probe`."""
    return probe_from_row(json.loads(line))
