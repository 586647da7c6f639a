"""ResizeSpec: how a frame becomes a picture of an encoder's size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeSpec:
    """How an upright picture is brought to (width, height); docs/decisions/0010-resize.md."""

    library: Literal["libswscale", "pillow", "opencv"] = "libswscale"
    """Whose arithmetic. libswscale: one pass from the planes as decoded. The others: from RGB in
    full size, as reference code does; opencv's has no antialiasing."""
    filter: Literal["bicubic", "bilinear"] = "bicubic"
    fit: Literal["squash", "pad", "crop"] = "squash"
    """squash: both sides, whatever the shape. pad: first to a centred square of `background`.
    crop: the shorter side to `short_side`, then the centre."""
    background: tuple[int, ...] = ()
    """RGB of the padding."""
    short_side: int = 0
    """Pixels, of `crop`."""

    def __post_init__(self) -> None:
        if (self.fit == "pad") != (len(self.background) == 3):
            raise ValueError(f"{self.background = } must be RGB with fit 'pad', else empty")
        if (self.fit == "crop") != (self.short_side > 0):
            raise ValueError(f"{self.short_side = } must be > 0 with fit 'crop', else 0")
        if self.library == "libswscale" and (self.fit, self.filter) != ("squash", "bicubic"):
            raise ValueError("libswscale only squashes, bicubic")
