"""ShardSpec: one planned shard. Plans only ever grow; a ShardSpec never changes."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from schemas.recipe import canonical_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of clips of one video: all of them, unless the video is longer than a shard."""

    uri: str
    video_id: str
    content_sha256: str
    size_bytes: int
    mtime_ns: int
    start_seconds: float | None
    end_seconds: float | None
    duration_seconds: float
    truncated: bool
    has_audio: bool
    first_clip: int
    num_clips: int
    """As planned from packets; decoding decides. The last piece also takes clips beyond."""
    is_last: bool
    estimated_bytes: int
    times_go_back: bool = False
    """See `Probe`."""


_PIECE_IDENTITY = (
    "video_id",
    "content_sha256",
    "start_seconds",
    "end_seconds",
    "first_clip",
    "num_clips",
    "is_last",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """One planned shard: the element of the build."""

    index: int
    split: str
    recipe_fingerprint: str
    pieces: tuple[Piece, ...]

    @property
    def fingerprint(self) -> str:
        """sha256 over the recipe's fingerprint and the content and clips of each piece.

        Where the source lies is not part of it.
        """
        identity = {
            "recipe": self.recipe_fingerprint,
            "pieces": [[getattr(piece, name) for name in _PIECE_IDENTITY] for piece in self.pieces],
        }
        return hashlib.sha256(canonical_json(identity).encode()).hexdigest()

    @property
    def name(self) -> str:
        """The shard's file name without ending: {split}-{index:06d}-{fp8}."""
        return f"{self.split}-{self.index:06d}-{self.fingerprint[:8]}"

    @property
    def num_clips(self) -> int:
        return sum(piece.num_clips for piece in self.pieces)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row a piece, of `tables.PLAN_SCHEMA`."""
        head = {
            "shard_index": self.index,
            "split": self.split,
            "recipe_fingerprint": self.recipe_fingerprint,
        }
        return [
            head | {name: getattr(piece, name) for name in Piece.__dataclass_fields__}
            for piece in self.pieces
        ]


def specs_from_rows(rows: Iterable[dict[str, Any]]) -> list[ShardSpec]:
    """The inverse of `ShardSpec.to_rows` over many shards, in the order of the rows."""
    heads: dict[int, tuple[str, str]] = {}
    pieces: dict[int, list[Piece]] = {}
    for row in rows:
        index = row["shard_index"]
        # The same words in every row are kept once.
        head = (sys.intern(row["split"]), sys.intern(row["recipe_fingerprint"]))
        heads.setdefault(index, head)
        piece = Piece(**{name: row[name] for name in Piece.__dataclass_fields__})
        pieces.setdefault(index, []).append(piece)
    return [
        ShardSpec(index=index, split=split, recipe_fingerprint=recipe, pieces=tuple(pieces[index]))
        for index, (split, recipe) in heads.items()
    ]
