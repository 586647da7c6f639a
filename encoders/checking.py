"""The contract test of encoders, which authors of plug-ins run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from encoders.base import Encoder
from encoders.sound import SoundEncoder

TOLERANCES = {"": 1e-3, "float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""Of a clip alone against the same clip in a batch: the largest difference, by precision, as a
part of the largest feature."""


def check_encoder(encoder: Encoder) -> list[str]:
    """What is wrong, or an empty list.

    Shape and dtype, finite values, the same result twice, no dependence on the rest of the batch,
    and a response to the pixels.
    """
    spec = encoder.spec
    num_frames = spec.frames_per_clip or 4
    rng = np.random.default_rng(0)
    shape = (3, num_frames, spec.height, spec.width, 3)
    frames = rng.integers(0, 256, size=shape, dtype=np.uint8)
    expected = (3, spec.num_grids(num_frames), *spec.grid, spec.dim)
    return _problems(encoder.encode, frames, expected, precision=spec.precision, what="clip")


def check_sound_encoder(encoder: SoundEncoder) -> list[str]:
    """As `check_encoder`, for sound."""
    spec = encoder.spec
    rng = np.random.default_rng(0)
    samples = rng.uniform(-1, 1, size=(3, spec.num_windows * spec.rate)).astype(np.float32)
    expected = (3, spec.num_windows, spec.tokens_per_window, spec.dim)
    return _problems(encoder.encode, samples, expected, precision=spec.precision, what="chunk")


def _problems(
    encode: Callable[[Any], npt.NDArray[np.float32]],
    items: npt.NDArray[Any],
    expected: tuple[int, ...],
    *,
    precision: str,
    what: str,
) -> list[str]:
    features, again, alone = encode(items), encode(items), encode(items[1:2])
    if features.shape != expected or features.dtype != np.float32:
        return [f"encode gave {features.shape} {features.dtype}, expected {expected} float32"]
    problems = []
    if not np.isfinite(features).all():
        problems.append("encode gave NaN or infinity")
    if not np.array_equal(features, again, equal_nan=True):
        problems.append("encode gave another result the second time")
    tolerance = TOLERANCES[precision] * max(1.0, float(np.nanmax(np.abs(features))))
    if not np.allclose(alone, features[1:2], rtol=0, atol=tolerance, equal_nan=True):
        problems.append(f"a {what}'s features depend on the other {what}s of its batch")
    if np.array_equal(features[0], features[1], equal_nan=True):
        problems.append(f"two different {what}s have the same features")
    return problems
