"""CacheInfo: cache.json, the last file that a run writes. A folder without it is not a cache."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from schemas.errors import CacheDamaged, CacheError
from schemas.json_text import parse_json
from schemas.recipe import FORMAT_VERSION

_HINT = "it was damaged after it was written: delete it and run again to write it anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One shard of the list in cache.json."""

    name: str
    sha256: str
    """Of the tar; empty where the shard has no sample and so no tar."""
    tar_bytes: int
    num_samples: int
    sidecar_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInfo:
    """What a cache is: recipe, fingerprint, encoder stamps, counts, shards."""

    fingerprint: str
    recipe: dict[str, Any]
    """As of `Recipe.to_mapping`."""
    stamps: dict[str, dict[str, Any]]
    """Stream -> what its encoder says of itself."""
    counts: dict[str, int]
    """sources = cached + rejected; retryable, of those rejected; videos, samples, frames, missing
    (clips that were planned and are not there), shards, bytes."""
    shards: tuple[ShardEntry, ...]
    index_sha256: str
    tables: dict[str, str] = field(default_factory=dict)
    """sha256 of the files of plan/ and probes/, by their paths in the cache."""
    format_version: int = FORMAT_VERSION

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the features of every sample, in the recipe's order."""
        return tuple(self.recipe["streams"])

    def to_json(self) -> str:
        # Keys are not sorted: the order of the streams is part of the recipe.
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str) -> CacheInfo:
        """The inverse of `to_json`. CacheDamaged, or CacheError for another format version."""
        try:
            fields = parse_json(text)
            version = fields["format_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise CacheDamaged(f"{where}: not a cache.json: {error}", hint=_HINT) from error
        if version != FORMAT_VERSION:
            newer = isinstance(version, int) and version > FORMAT_VERSION
            raise CacheError(
                f"{where}: format version {version}, this reelcache reads {FORMAT_VERSION}",
                hint="upgrade reelcache" if newer else "read it with the reelcache that wrote it",
            )
        try:
            shards = tuple(ShardEntry(**entry) for entry in fields["shards"])
            return cls(**{**fields, "shards": shards})
        except (LookupError, TypeError, AttributeError) as error:
            raise CacheDamaged(f"{where}: not a cache.json: {error}", hint=_HINT) from error
