"""Encoder: frames in, features out. EncoderSpec: what an encoder says of itself.

Shapes: B clips, T frames, H, W pixels or grid cells, C colours, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """What is known of an encoder before its weights are read."""

    name: str
    """Lower-case kebab-case, as in recipes."""
    width: int
    height: int
    """Pixels of the frames that it takes."""
    grid: tuple[int, int]
    """(H, W) cells of features a frame."""
    dim: int
    """D, channels a cell."""
    architecture: str
    """What computes the features, with every choice that changes their bytes."""
    preprocessing: str
    """What is done to the uint8 frames inside the encoder."""
    weights_sha256: str = ""
    """Of the weights' file; empty where there is none."""

    def stamp(self) -> dict[str, Any]:
        """The encoder's part of a fingerprint, JSON-ready."""
        return {
            "name": self.name,
            "input": [self.height, self.width],
            "grid": list(self.grid),
            "dim": self.dim,
            "architecture": self.architecture,
            "preprocessing": self.preprocessing,
            "weights_sha256": self.weights_sha256,
        }

    def feature_values(self, num_frames: int) -> int:
        """How many values one clip's features have."""
        return num_frames * self.grid[0] * self.grid[1] * self.dim


@runtime_checkable
class Encoder(Protocol):
    """The interface of every encoder, built in or plugged in."""

    @property
    def spec(self) -> EncoderSpec:
        """What this encoder is."""
        ...

    def encode(self, frames_BTHWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """(B, T, H, W, 3) uint8 RGB at the spec's size -> (B, T, h, w, D) float32.

        A clip's features may not depend on the other clips of the batch.
        """
        ...
