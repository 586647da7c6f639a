"""Align two sequences of frame vectors in time: which stretches of them show the same.

Frames that are alike vote for the shift in time that lays them over each other, at the same, at
half and at twice the speed. Of the shifts with most votes the one with the highest mean cosine is
taken.

Shapes: T frames of one video, D channels, of length 1. Times are in seconds, increasing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Times = npt.NDArray[np.float64]

RATES = (1.0, 0.5, 2.0)
RATE_COST = 0.02
"""Taken from the score of another speed: more tries find more by chance."""
LEAST_OVERLAP = 0.5
"""Of the shorter one's frames."""
LEAST_FRAMES, LEAST_FRAMES_OTHER_SPEED = 3, 5
"""That lie over each other: at another speed fewer would do so by chance."""
SAME_FRAME, ABOVE_NOISE = 0.9, 0.02
"""Score from which two frames of a video show the same for all that matters here, or, where the
videos are more alike than that, so much less than they are."""
CLOSE = 1e-3
"""Seconds, and differences of scores, that are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A video's frames in order of time."""

    vectors: Vectors
    """(T, D), of length 1."""
    times: Times
    """(T,): when each begins, on the source's own clock."""
    step_seconds: float
    """From one to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How the frames of a lie over those of b."""

    first_a: int
    last_a: int
    first_b: int
    last_b: int
    """Numbers of frames, the last ones included."""
    score: float
    """Mean cosine, less what another speed costs; in [-1, 1]."""
    rate: float
    """Seconds of b that pass in one of a."""
    num_distinct: int
    """Of the frames of the stretch, those that are unlike all before; the smaller of both."""

    @property
    def turned(self) -> Overlap:
        """As seen from b."""
        return replace(
            self,
            first_a=self.first_b,
            last_a=self.last_b,
            first_b=self.first_a,
            last_b=self.last_a,
            rate=1 / self.rate,
        )


def align(a: Sequence, b: Sequence, *, least_score: float) -> Overlap | None:
    """The best overlap that reaches `least_score`, or None; the same whichever comes first."""
    if min(len(a.times), len(b.times)) < LEAST_FRAMES:
        return None
    if _order(a) > _order(b):
        found = align(b, a, least_score=least_score)
        return None if found is None else found.turned
    scores = a.vectors @ b.vectors.T
    best: tuple[float, float, npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
    for rate, shift in _shifts(a, b, scores, least=least_score):
        over = _lay_over(a, b, scores, rate=rate, shift=shift)
        if over is None:
            continue
        score = over[0] - (0.0 if rate == 1 else RATE_COST)
        if score >= least_score and (best is None or score > best[0] + CLOSE):
            best = (score, rate, over[1], over[2])
    if best is None:
        return None
    score, rate, of_a, of_b = best
    return Overlap(
        first_a=int(of_a[0]),
        last_a=int(of_a[-1]),
        first_b=int(of_b[0]),
        last_b=int(of_b[-1]),
        score=min(1.0, score),
        rate=rate,
        num_distinct=min(
            count_distinct(one, same=max(SAME_FRAME, score - ABOVE_NOISE))
            for one in (a.vectors[of_a], b.vectors[of_b])
        ),
    )


def _order(one: Sequence) -> tuple[int, bytes, bytes]:
    steps = np.round(np.diff(one.times) / CLOSE).astype(np.int64)
    return len(one.times), one.vectors.tobytes(), steps.tobytes()


def count_distinct(
    vectors_TD: Vectors, *, same: float = SAME_FRAME, enough: int = LEAST_FRAMES
) -> int:
    """How many frames are unlike all before them, counted up to `enough`.

    `same` is the score from which two are alike.
    """
    seen: list[Vectors] = []
    for vector_D in vectors_TD:
        if all(float(vector_D @ other_D) < same for other_D in seen):
            seen.append(vector_D)
            if len(seen) == enough:
                break
    return len(seen)


def _shifts(
    a: Sequence, b: Sequence, scores: Vectors, *, least: float
) -> Iterator[tuple[float, float]]:
    # Frames that are alike vote for the shift that lays them over each other. A frame of a has one
    # vote, split among the frames of b that it is like: what stands still says little.
    alike = scores >= least
    of_a, of_b = np.nonzero(alike)
    if not len(of_a):
        return
    weights = 1.0 / alike.sum(axis=1)[of_a]
    half = min(a.step_seconds, b.step_seconds) / 2
    for rate in RATES:
        # Not from zero: where the clocks begin says nothing.
        shifts = (b.times[of_b] - b.times[0]) - rate * (a.times[of_a] - a.times[0])
        values, places = np.unique(np.round(shifts / half), return_inverse=True)
        votes = np.bincount(places, weights=weights)
        begin = float(b.times[0] - rate * a.times[0])
        for place in np.argsort(-votes, kind="stable")[:8]:
            yield rate, float(values[place] * half) + begin


def _lay_over(
    a: Sequence, b: Sequence, scores: Vectors, *, rate: float, shift: float
) -> tuple[float, npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """(mean cosine, frames of a, frames of b under them)."""
    times = rate * a.times + shift
    slack = b.step_seconds / 2
    # What begins as b ends is beside it. Sums of times are not exact.
    inside = times >= b.times[0] - slack - CLOSE
    inside &= times < b.times[-1] + b.step_seconds - CLOSE
    of_a = np.flatnonzero(inside)
    shorter = min(len(a.times), len(b.times) * b.step_seconds / (rate * a.step_seconds))
    least = LEAST_FRAMES if rate == 1 else LEAST_FRAMES_OTHER_SPEED
    if len(of_a) < max(least, LEAST_OVERLAP * shorter):
        return None
    # Between two frames of b the one that is more alike: samples of a copy fall between those of
    # the original.
    before = np.searchsorted(b.times, times[of_a] + CLOSE, side="right") - 1
    before = np.clip(before, 0, len(b.times) - 1)
    after = np.minimum(before + 1, len(b.times) - 1)
    between = times[of_a] - b.times[before] > CLOSE
    is_later = between & (scores[of_a, after] > scores[of_a, before])
    of_b = np.where(is_later, after, before)
    return float(scores[of_a, of_b].mean()), of_a, of_b
