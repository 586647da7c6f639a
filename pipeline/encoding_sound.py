"""Encode sound with a recipe's encoder, and store what it returns as the recipe says."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt

from encoders import Runtime, SoundSpec, load_sound_encoder
from schemas.errors import VideoError
from schemas.recipe import AUDIO, AudioSpec

Tokens = npt.NDArray[np.float16]
"""(W, L, D): of the windows of a chunk, or of a sample."""


class ChunkEncoder:
    """The loaded encoder of sound of a recipe; one a process, for any thread."""

    def __init__(
        self, settings: AudioSpec, *, runtime: Runtime, turn: AbstractContextManager[object]
    ) -> None:
        """`turn` is held while it computes."""
        self._settings = settings
        self._encoder = load_sound_encoder(settings, runtime=runtime)
        self._turn = turn
        self._silence: Tokens | None = None
        self._making_silence = threading.Lock()

    @property
    def spec(self) -> SoundSpec:
        return self._encoder.spec

    def encode(self, samples_S: npt.NDArray[np.float32]) -> Tokens:
        """A chunk of samples -> (W, L, D) float16. VideoError: non_finite."""
        spec = self.spec
        with self._turn:
            features_NWLD = self._encoder.encode(samples_S[None])
        expected = (1, spec.num_windows, spec.tokens_per_window, spec.dim)
        if features_NWLD.shape != expected:
            raise TypeError(f"{AUDIO}: {features_NWLD.shape = }, expected {expected}")
        tokens = pool_tokens(features_NWLD[0], num_tokens=self._settings.tokens_per_window)
        if not np.isfinite(tokens).all():
            raise VideoError("non_finite", "its sound")
        return tokens

    def silence(self) -> Tokens:
        """(W, L, D) float16 of a silent chunk; computed once."""
        with self._making_silence:
            if self._silence is None:
                num_samples = self.spec.num_windows * self.spec.rate
                self._silence = self.encode(np.zeros(num_samples, np.float32))
            return self._silence


def pool_tokens(features_WLD: npt.NDArray[np.float32], *, num_tokens: int) -> Tokens:
    """(W, L, D) -> (W, num_tokens, D) float16: the mean of each run of L / num_tokens tokens.

    A value that does not fit becomes infinite.
    """
    W, L, D = features_WLD.shape
    runs = features_WLD.reshape(W, num_tokens, L // num_tokens, D)
    with np.errstate(over="ignore", invalid="ignore"):
        tokens: Tokens = runs.mean(axis=2, dtype=np.float32).astype(np.float16)
    return tokens
