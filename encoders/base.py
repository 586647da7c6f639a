"""Encoder: frames in, features out. EncoderSpec: what an encoder says of itself.

Shapes: B clips, T frames, H, W pixels or grid cells, C colours, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from encoders.operations import Operations
from schemas.errors import RecipeError
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec
from schemas.settings import to_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Where and how an encoder computes; nothing here is part of a fingerprint."""

    device: str = "cpu"
    """`cpu`, `cuda`, `cuda:1`."""
    compile: bool = False
    """Let torch.compile specialise the model: minutes at the start, faster after."""
    max_batch: int | None = None
    """Clips that go through the model at once; None: a choice by device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """What is known of an encoder before its weights are read into memory."""

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
    resize: ResizeSpec = field(default_factory=ResizeSpec)
    """How frames are brought to its size."""
    frames_per_clip: int | None = None
    """How many frames it must be given together; None: any number."""
    temporal_stride: int = 1
    """Frames that share one grid of features."""
    layer: str = ""
    """Whose output the features are."""
    activation: str = ""
    """Which GELU, where there is a choice."""
    precision: str = ""
    """The dtype in which it computes, where there is a choice."""
    weights_sha256: str = ""
    """Of the weights' file; empty where there is none, `random` for seeded ones."""
    weights_hint: str = ""
    """What to tell someone who gave none; empty: it needs none."""
    libraries: tuple[str, ...] = ()
    """Distributions whose version shapes the bytes: provenance, not identity."""
    operations: Operations | None = None
    """Of a forward on a GPU, for forecasts; None: not known."""

    def stamp(self) -> dict[str, Any]:
        """The encoder's part of a fingerprint, JSON-ready; what has no choice is left out."""
        choices = {
            "resize": to_mapping(self.resize, drop_defaults=True),
            "temporal_stride": self.temporal_stride if self.temporal_stride > 1 else None,
            "layer": self.layer,
            "activation": self.activation,
            "precision": self.precision,
        }
        return {
            "name": self.name,
            "input": [self.height, self.width],
            "grid": list(self.grid),
            "dim": self.dim,
            "architecture": self.architecture,
            "preprocessing": self.preprocessing,
            "weights_sha256": self.weights_sha256,
            **{name: value for name, value in choices.items() if value},
        }

    def num_grids(self, num_frames: int) -> int:
        """Grids of features that so many frames give."""
        return -(-num_frames // self.temporal_stride)


@runtime_checkable
class Encoder(Protocol):
    """The interface of every encoder, built in or plugged in."""

    @property
    def spec(self) -> EncoderSpec:
        """What this encoder is."""
        ...

    def encode(self, frames_BTHWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """(B, T, H, W, 3) uint8 RGB at the spec's size -> (B, T / stride, h, w, D) float32.

        A clip's features may not depend on the other clips of the batch, beyond what another shape
        of the same matrix products rounds differently. DeviceError: one clip is too much for it.
        """
        ...


def refuse_choices(settings: EncoderSettings, *, but: tuple[str, ...] = ()) -> None:
    """RecipeError: a field of the settings is set that this encoder has no use for."""
    for name, value in to_mapping(settings, drop_defaults=True).items():
        if name in ("weights", "layer", "gelu", "resize", "precision") and name not in but:
            raise RecipeError(
                f"{name} = {value!r}: the encoder {settings.encoder} has no choice of it"
            )
