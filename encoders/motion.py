"""Motion energy: which way things move in each part of a picture, with no weights.

A correlator multiplies the light at one place with the light at another place a frame later, and
takes the same product in the opposite direction away:
I(p, t) I(p + d, t + 1) - I(p + d, t) I(p, t + 1). What does not move cancels to the bit; what moves
along d gives a positive value, what moves against it a negative one, be it bright or dark.
All sums are of integers, so that the bytes are the same on every machine, in any batch.

Source: Hassenstein and Reichardt 1956; van Santen and Sperling 1985, "Elaborated Reichardt
detectors"; of equal outcome, Adelson and Bergen 1985, "Spatiotemporal energy models for the
perception of motion".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from encoders.base import EncoderSpec, Runtime, refuse_choices
from encoders.operations import Operations
from schemas.recipe import EncoderSettings

SIZE, CELL = 32, 8
"""Pixels a side, of a picture and of a cell."""
AXES = ((1, 0), (0, 1), (1, 1), (1, -1))
"""(x, y) of one pixel along each axis; y grows downwards."""
DISTANCES = (1, 2, 4, 8)
"""Pixels between the two places."""
SCALE = 2.0**-8


@dataclass(frozen=True, slots=True)
class MotionEnergy:
    """Channel a * len(DISTANCES) + k is of AXES[a] and DISTANCES[k]."""

    spec: EncoderSpec

    def encode(self, frames_BTHWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """(B, T, 32, 32, 3) uint8 -> (B, T, 4, 4, 16) float32, about unit scale.

        Frame t is compared with frame t - 1; the first of a clip has none, and is zero.
        """
        B, T, H, W, _ = frames_BTHWC.shape
        pixels = frames_BTHWC.astype(np.int32)
        # Half the difference to the picture's mean: a cell's sum stays below 2**23.
        means_BTC = pixels.sum(axis=(2, 3), dtype=np.int32) // (H * W)
        light_BTHWC = (pixels - means_BTC[:, :, None, None]) >> 1
        h, w = self.spec.grid
        features_BThwD = np.zeros((B, T, h, w, self.spec.dim), np.float32)
        for channel, (dx, dy) in enumerate((k * x, k * y) for x, y in AXES for k in DISTANCES):
            near_BTHWC = light_BTHWC[:, :, max(0, -dy) : H - max(0, dy), : W - dx]
            far_BTHWC = light_BTHWC[:, :, max(0, dy) : H - max(0, -dy), dx:]
            products = near_BTHWC[:, :-1] * far_BTHWC[:, 1:]
            products -= far_BTHWC[:, :-1] * near_BTHWC[:, 1:]
            sums_BTHW = np.zeros((B, T - 1, H, W), np.int32)
            # A pair belongs to the place in its middle.
            row, column = abs(dy) // 2, dx // 2
            height, width = products.shape[2:4]
            products.sum(
                axis=-1,
                out=sums_BTHW[:, :, row : row + height, column : column + width],
            )
            cells = sums_BTHW.reshape(B, T - 1, h, CELL, w, CELL).sum(axis=(3, 5))
            # The root brings products of two brightnesses back to the scale of one.
            roots = np.sqrt(np.abs(cells).astype(np.float32)) * np.float32(SCALE)
            features_BThwD[:, 1:, ..., channel] = np.copysign(roots, cells)
        return features_BThwD


def spec(settings: EncoderSettings, *, device: str) -> EncoderSpec:  # noqa: ARG001 - numpy only
    """32 x 32 pixels to 4 x 4 cells of 16: four axes, four distances. RecipeError: of a choice."""
    refuse_choices(settings)
    axes = " ".join(f"{x},{y}" for x, y in AXES)
    return EncoderSpec(
        name="motion-energy",
        width=SIZE,
        height=SIZE,
        grid=(SIZE // CELL, SIZE // CELL),
        dim=len(AXES) * len(DISTANCES),
        architecture=(
            f"opponent correlators of RGB with the frame before, axes {axes}, distances"
            f" {' '.join(map(str, DISTANCES))}, {CELL} x {CELL}, signed root, times 2**-8"
        ),
        preprocessing="half of the difference to the frame's mean",
        operations=Operations(),
    )


def load(
    spec: EncoderSpec,
    *,
    settings: EncoderSettings,  # noqa: ARG001 - it has no choices
    runtime: Runtime,  # noqa: ARG001 - numpy only
) -> MotionEnergy:
    """The encoder; the device makes no difference."""
    return MotionEnergy(spec)
