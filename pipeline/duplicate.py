"""Pair and Cluster: what two videos have in common, and of which videos one is enough."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

PairKind = Literal["exact", "copy", "part"]
"""exact: the same bytes. copy: most of both. part: most of the shorter one, or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A source that could be a duplicate, and what tells which one to keep."""

    video_id: str
    uri: str
    width: int
    height: int
    duration_seconds: float
    size_bytes: int
    start_seconds: float | None
    end_seconds: float | None
    """Of a source that is a span of a file, else None."""
    is_damaged: bool
    """Its packets end too early, or some could not be decoded."""
    user_id: str | None = None
    """The id that the user gave it."""
    black: float
    """Share of its pixels that are black at its brightest, as bars are, in [0, 1]."""

    @property
    def rank(self) -> tuple[float, ...]:
        """The best sorts first: whole, most pixels, longest, largest file.

        Bars do not count as pixels, and numbers of pixels that are within a fifth or so are as good
        as equal.
        """
        pixels = max(1.0, self.width * self.height * (1 - self.black))
        return (
            self.is_damaged,
            -round(4 * math.log2(pixels)),
            -round(self.duration_seconds, 1),
            -self.size_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two videos and the span of each that shows what the other one's does."""

    video_a: str
    video_b: str
    start_a_seconds: float
    end_a_seconds: float
    start_b_seconds: float
    end_b_seconds: float
    """On the sources' own clocks, to a step of sampling."""
    score: float
    """Mean cosine of the frames that lie over each other, at most 1."""
    kind: PairKind
    covers_a: float
    covers_b: float
    """The shares of the videos' frames that the spans have, in [0, 1]."""

    def turned(self) -> Pair:
        """The same pair, b first."""
        return Pair(
            video_a=self.video_b,
            video_b=self.video_a,
            start_a_seconds=self.start_b_seconds,
            end_a_seconds=self.end_b_seconds,
            start_b_seconds=self.start_a_seconds,
            end_b_seconds=self.end_a_seconds,
            score=self.score,
            kind=self.kind,
            covers_a=self.covers_b,
            covers_b=self.covers_a,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A source that one other makes superfluous."""

    copy: Copy
    kind: PairKind
    score: float
    pair: Pair | None
    """Its own span second; first comes the kept one, or another copy that is more like it. None: it
    has the kept one's video_id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The source to keep, and those of which it has all or nearly all."""

    number: int
    keep: Copy
    copies: tuple[Member, ...]
