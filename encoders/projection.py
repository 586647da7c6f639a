"""Seeded random projections of patches: the real interface with no weights.

random-image sees each frame alone, random-video also the change since the frame before. Both are
linear, so that a mean over cells tells no more than the mean picture; random-relu is not, and its
mean still tells what colours there are. All sums are of integers below 2**24, so float32 gives the
same bytes on every machine, in any batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from encoders.base import EncoderSpec, Runtime, refuse_choices
from encoders.operations import Operations
from schemas.recipe import EncoderSettings


@dataclass(frozen=True, slots=True)
class RandomProjection:
    """A matrix of -1 and +1 from a seed, applied to every patch."""

    spec: EncoderSpec
    matrix: npt.NDArray[np.float32]
    """(patch * patch * 3, D)."""
    scale: float
    """A power of two near the inverse of the sums' spread, which keeps the scaling exact."""
    uses_motion: bool
    is_rectified: bool

    def encode(self, frames_BTHWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """(B, T, H, W, 3) uint8 -> (B, T, h, w, D) float32, about unit scale."""
        pixels_BTHWC = frames_BTHWC.astype(np.float32) - 128.0
        if self.uses_motion:
            change_BTHWC = np.diff(pixels_BTHWC, axis=1, prepend=pixels_BTHWC[:, :1])
            pixels_BTHWC = pixels_BTHWC + change_BTHWC
        B, T = pixels_BTHWC.shape[:2]
        h, w = self.spec.grid
        patch = _patch(self.spec)
        patches = pixels_BTHWC.reshape(B, T, h, patch, w, patch, 3).transpose(0, 1, 2, 4, 3, 5, 6)
        sums = patches.reshape(B * T * h * w, patch * patch * 3) @ self.matrix
        if self.is_rectified:
            sums = np.maximum(sums, np.float32(0))
        features_BTHWD = (sums * np.float32(self.scale)).reshape(B, T, h, w, self.spec.dim)
        return features_BTHWD.astype(np.float32, copy=False)


def spec(settings: EncoderSettings, *, device: str) -> EncoderSpec:  # noqa: ARG001 - numpy only
    """Pixels to cells: random-image 64 x 64 to 4 x 4 of 32; random-video 48 x 48 to 3 x 3 of 48.

    random-relu 32 x 32 to 4 x 4 of 64.
    """
    refuse_choices(settings)
    if settings.encoder == "random-image":
        return _spec("random-image", size=64, patch=16, dim=32, sees="patch, {}, times 2**-11")
    if settings.encoder == "random-relu":
        return _spec("random-relu", size=32, patch=8, dim=64, sees="patch, {}, relu, times 2**-10")
    sees = "patch + change since the frame before, {}, times 2**-11"
    return _spec("random-video", size=48, patch=16, dim=48, sees=sees)


def load(
    spec: EncoderSpec,
    *,
    settings: EncoderSettings,
    runtime: Runtime,  # noqa: ARG001 - numpy only
) -> RandomProjection:
    """The encoder; the device makes no difference."""
    is_rectified = settings.encoder == "random-relu"
    return RandomProjection(
        spec,
        _signs(spec),
        scale=2.0**-10 if is_rectified else 2.0**-11,
        uses_motion=settings.encoder == "random-video",
        is_rectified=is_rectified,
    )


def _spec(name: str, *, size: int, patch: int, dim: int, sees: str) -> EncoderSpec:
    return EncoderSpec(
        name=name,
        width=size,
        height=size,
        grid=(size // patch, size // patch),
        dim=dim,
        architecture=f"signs from shake_256({name!r}) x {sees.format(f'{patch} x {patch}')}",
        preprocessing="minus 128",
        operations=Operations(),
    )


def _patch(spec: EncoderSpec) -> int:
    """Pixels a side of a patch."""
    return spec.width // spec.grid[1]


def _signs(spec: EncoderSpec) -> npt.NDArray[np.float32]:
    # A hash and not a random generator: generators may change their stream between versions.
    num_pixels = _patch(spec) ** 2 * 3
    count = num_pixels * spec.dim
    digest = hashlib.shake_256(spec.name.encode()).digest(-(-count // 8))
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8), count=count)
    return (bits.astype(np.float32) * 2.0 - 1.0).reshape(num_pixels, spec.dim)
