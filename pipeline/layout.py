"""CacheLayout: where the files of a cache lie. The one place that knows their names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The paths of a cache; see docs/format.md."""

    root: Path

    @property
    def info(self) -> Path:
        return self.root / "cache.json"

    @property
    def shards(self) -> Path:
        return self.root / "shards"

    @property
    def plan(self) -> Path:
        return self.root / "plan"

    @property
    def probes(self) -> Path:
        return self.root / "probes"

    @property
    def rejects(self) -> Path:
        return self.root / "rejects" / "rejects.parquet"

    @property
    def index(self) -> Path:
        return self.root / "index" / "samples.parquet"

    @property
    def wids(self) -> Path:
        return self.root / "wids.json"

    @property
    def energon(self) -> Path:
        return self.root / ".nv-meta"

    @property
    def scratch(self) -> Path:
        """Temporary files; on the same file system, so that a rename publishes."""
        return self.root / ".tmp"

    def tar(self, name: str) -> Path:
        return self.shards / f"{name}.tar"

    def sidecar(self, name: str) -> Path:
        return self.shards / f"{name}.json"

    def tar_index(self, name: str) -> Path:
        return self.shards / f"{name}.tar.idx"

    def is_committed(self, name: str) -> bool:
        """Whether the shard exists for readers."""
        return self.sidecar(name).exists()

    def extensions(self, folder: Path) -> list[Path]:
        """The numbered, immutable files of plan/ or probes/, oldest first."""
        return sorted(folder.glob("[0-9]*.parquet"))

    def extension(self, folder: Path, number: int | None) -> Path:
        """The file of plan/ or probes/ with a number; None: of the next one."""
        if number is None:
            return self.next_extension(folder)
        return folder / f"{number:019d}.parquet"

    def next_extension(self, folder: Path) -> Path:
        """The name of the next file of plan/ or probes/."""
        taken = [int(path.stem) for path in self.extensions(folder)]
        return folder / f"{max(taken, default=-1) + 1:06d}.parquet"
