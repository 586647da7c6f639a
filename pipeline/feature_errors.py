"""How features differ from others of the same clips: error a channel, and cosine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDifference:
    """How features of one stream differ from others, over all clips."""

    stream: str
    cosine_mean: float
    """Of the features of a token; mean over tokens."""
    cosine_min: float
    """Of the worst clip's tokens together."""
    channel_error_median: float
    """Root mean square of the difference over that of the features, a channel; their median."""
    channel_error_max: float


class FeatureErrors:
    """Sums over the tokens of clips, a channel; it holds no clip."""

    def __init__(self, dim: int) -> None:
        self._squares = np.zeros(dim)
        self._errors = np.zeros(dim)
        self._cosines = 0.0
        self._worst = 1.0
        self.num_clips = 0

    def add(self, stored: Features, fresh: Features) -> float:
        """Add one clip, (..., D) of each: the cosine of the whole of it; errors are of `fresh`."""
        stored_ND = stored.reshape(-1, stored.shape[-1]).astype(np.float64)
        fresh_ND = fresh.reshape(-1, fresh.shape[-1]).astype(np.float64)
        self._squares += np.square(fresh_ND).sum(axis=0)
        self._errors += np.square(stored_ND - fresh_ND).sum(axis=0)
        products = (stored_ND * fresh_ND).sum(axis=1)
        norms = np.linalg.norm(stored_ND, axis=1) * np.linalg.norm(fresh_ND, axis=1)
        alike = (norms == 0) & (np.abs(stored_ND - fresh_ND).max(axis=1) == 0)
        cosines = np.where(alike, 1.0, products / np.where(norms > 0, norms, 1.0))
        whole = float(norms @ cosines / norms.sum()) if norms.sum() > 0 else float(alike.all())
        self._cosines += float(cosines.mean())
        self._worst = whole if self.num_clips == 0 else min(self._worst, whole)
        self.num_clips += 1
        return whole

    def difference(self, stream: str) -> StreamDifference:
        """Over all clips that were added, at least one."""
        seen = self._squares > 0
        errors = np.sqrt(self._errors[seen] / self._squares[seen])
        return StreamDifference(
            stream=stream,
            cosine_mean=self._cosines / self.num_clips,
            cosine_min=self._worst,
            channel_error_median=float(np.median(errors)) if seen.any() else 0.0,
            channel_error_max=float(errors.max()) if seen.any() else 0.0,
        )
