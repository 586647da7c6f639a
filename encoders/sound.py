"""SoundEncoder: sound in, features out, in chunks that are cut into windows of one second.

Shapes: N chunks, W windows of a chunk, L tokens of a window, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from encoders.operations import Operations


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundSpec:
    """What is known of a sound encoder before its weights are read into memory."""

    name: str
    rate: int
    """Samples a second, mono."""
    num_windows: int
    """Windows of one second in a chunk: what is encoded together."""
    tokens_per_window: int
    """L that come out."""
    dim: int
    """D, channels a token."""
    architecture: str
    """What computes the features, with every choice that changes their bytes."""
    preprocessing: str
    """What is done to the samples inside the encoder."""
    layer: str = ""
    activation: str = ""
    precision: str = ""
    weights_sha256: str = ""
    weights_hint: str = ""
    """What to tell someone who gave none; empty: it needs none."""
    libraries: tuple[str, ...] = ()
    operations: Operations | None = None
    """Of a forward of one chunk on a GPU (`fixed`), for forecasts; None: not known."""

    def stamp(self) -> dict[str, Any]:
        """The encoder's part of a fingerprint, JSON-ready."""
        choices = {
            "layer": self.layer,
            "activation": self.activation,
            "precision": self.precision,
        }
        return {
            "name": self.name,
            "rate": self.rate,
            "num_windows": self.num_windows,
            "tokens_per_window": self.tokens_per_window,
            "dim": self.dim,
            "architecture": self.architecture,
            "preprocessing": self.preprocessing,
            "weights_sha256": self.weights_sha256,
            **{name: value for name, value in choices.items() if value},
        }


@runtime_checkable
class SoundEncoder(Protocol):
    """The interface of encoders of sound."""

    @property
    def spec(self) -> SoundSpec:
        """What this encoder is."""
        ...

    def encode(self, samples_NS: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(N, num_windows * rate) float32 in [-1, 1] -> (N, W, L, D) float32.

        A chunk's features may not depend on the other chunks of the batch.
        """
        ...
