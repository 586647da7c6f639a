"""Seeded random projections of patches: the real interface with no weights.

random-image sees each frame alone, random-video also the change since the frame before. All sums
are of integers below 2**24, so float32 gives the same bytes on every machine, in any batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from encoders.base import EncoderSpec, Runtime, refuse_choices
from schemas.recipe import EncoderSettings

PATCH = 16
"""Pixels a side of a patch."""


@dataclass(frozen=True, slots=True)
class RandomProjection:
    """A matrix of -1 and +1 from a seed, applied to every patch."""

    spec: EncoderSpec
    matrix: npt.NDArray[np.float32]
    """(PATCH * PATCH * 3, D)."""
    uses_motion: bool

    def encode(self, frames_BTHWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """(B, T, H, W, 3) uint8 -> (B, T, h, w, D) float32, about unit scale."""
        pixels_BTHWC = frames_BTHWC.astype(np.float32) - 128.0
        if self.uses_motion:
            change_BTHWC = np.diff(pixels_BTHWC, axis=1, prepend=pixels_BTHWC[:, :1])
            pixels_BTHWC = pixels_BTHWC + change_BTHWC
        B, T = pixels_BTHWC.shape[:2]
        h, w = self.spec.grid
        patches = pixels_BTHWC.reshape(B, T, h, PATCH, w, PATCH, 3).transpose(0, 1, 2, 4, 3, 5, 6)
        sums = patches.reshape(B * T * h * w, PATCH * PATCH * 3) @ self.matrix
        # A power of two near the sums' spread keeps the scaling exact.
        features_BTHWD = (sums * np.float32(2.0**-11)).reshape(B, T, h, w, self.spec.dim)
        return features_BTHWD.astype(np.float32, copy=False)


def spec(settings: EncoderSettings, *, device: str) -> EncoderSpec:  # noqa: ARG001 - numpy only
    """random-image: 64 x 64 pixels to 4 x 4 cells of 32; random-video: 48 x 48 to 3 x 3 of 48."""
    refuse_choices(settings)
    if settings.encoder == "random-image":
        return _spec("random-image", size=64, dim=32, sees="patch")
    sees = "patch + change since the frame before"
    return _spec("random-video", size=48, dim=48, sees=sees)


def load(
    spec: EncoderSpec,
    *,
    settings: EncoderSettings,
    runtime: Runtime,  # noqa: ARG001 - numpy only
) -> RandomProjection:
    """The encoder; the device makes no difference."""
    return RandomProjection(spec, _signs(spec), uses_motion=settings.encoder == "random-video")


def _spec(name: str, *, size: int, dim: int, sees: str) -> EncoderSpec:
    return EncoderSpec(
        name=name,
        width=size,
        height=size,
        grid=(size // PATCH, size // PATCH),
        dim=dim,
        architecture=f"signs from shake_256({name!r}) x {sees}, {PATCH} x {PATCH}, times 2**-11",
        preprocessing="minus 128",
    )


def _signs(spec: EncoderSpec) -> npt.NDArray[np.float32]:
    # A hash and not a random generator: generators may change their stream between versions.
    count = PATCH * PATCH * 3 * spec.dim
    digest = hashlib.shake_256(spec.name.encode()).digest(-(-count // 8))
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8), count=count)
    return (bits.astype(np.float32) * 2.0 - 1.0).reshape(PATCH * PATCH * 3, spec.dim)
