"""CacheLayout: where the files of a cache lie. The one place that knows their names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipeline.places import Place, list_sizes, scratch_for

_EXTENSION = re.compile(r"[0-9]+\.parquet")


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The paths of a cache; see docs/format.md."""

    root: Place

    @property
    def info(self) -> Place:
        return self.root / "cache.json"

    @property
    def shards(self) -> Place:
        return self.root / "shards"

    @property
    def plan(self) -> Place:
        return self.root / "plan"

    @property
    def probes(self) -> Place:
        return self.root / "probes"

    @property
    def rejects(self) -> Place:
        return self.root / "rejects" / "rejects.parquet"

    @property
    def index(self) -> Place:
        return self.root / "index" / "samples.parquet"

    @property
    def events(self) -> Place:
        return self.root / "events"

    @property
    def clusters(self) -> Place:
        """Which sources are duplicates of which."""
        return self.root / "duplicates" / "clusters.parquet"

    @property
    def pairs(self) -> Place:
        """Which videos are alike, and when."""
        return self.root / "duplicates" / "pairs.parquet"

    @property
    def look(self) -> Place:
        """A small cache of all sources of a run, of those too that are left out as duplicates."""
        return self.root / "duplicates" / "cache"

    @property
    def vectors(self) -> Place:
        return self.root / "vectors"

    @property
    def search(self) -> Place:
        return self.root / "search"

    @property
    def wids(self) -> Place:
        return self.root / "wids.json"

    @property
    def energon(self) -> Place:
        return self.root / ".nv-meta"

    @property
    def scratch(self) -> Path:
        """Temporary files, on this machine."""
        return scratch_for(self.root)

    def tar(self, name: str) -> Place:
        return self.shards / f"{name}.tar"

    def sidecar(self, name: str) -> Place:
        return self.shards / f"{name}.json"

    def tar_index(self, name: str) -> Place:
        return self.shards / f"{name}.tar.idx"

    def events_of(self, kind: str) -> Place:
        return self.events / f"{kind}.parquet"

    def vectors_of(self, stream: str, name: str) -> Place:
        """Of a stream, and a shard by name."""
        return self.vectors / stream / f"{name}.npy"

    def committed(self) -> set[str]:
        """Names of the shards that exist for readers, by one listing."""
        return {name[: -len(".json")] for name in list_sizes(self.shards) if name.endswith(".json")}

    def extensions(self, folder: Place) -> list[Place]:
        """The numbered, immutable files of plan/ or probes/, oldest first."""
        names = [name for name in list_sizes(folder) if _EXTENSION.fullmatch(name)]
        # By number: those of a stream have 19 digits, and the next one after them may have fewer.
        return [folder / name for name in sorted(names, key=lambda name: int(name.split(".")[0]))]

    def extension(self, folder: Place, number: int | None) -> Place:
        """The file of plan/ or probes/ with a number; None: of the next one."""
        if number is None:
            return self.next_extension(folder)
        return folder / f"{number:019d}.parquet"

    def next_extension(self, folder: Place) -> Place:
        """The name of the next file of plan/ or probes/."""
        taken = [int(path.stem) for path in self.extensions(folder)]
        return folder / f"{max(taken, default=-1) + 1:06d}.parquet"
