"""PictureSpec: the picture that an encoder takes. ResizeSpec: how a frame becomes one."""

from __future__ import annotations

from dataclasses import dataclass, field
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
        if not all(0 <= level <= 255 for level in self.background):
            raise ValueError(f"{self.background = } must be of 0 to 255")
        if (self.fit == "crop") != (self.short_side > 0):
            raise ValueError(f"{self.short_side = } must be > 0 with fit 'crop', else 0")
        if self.library == "libswscale" and (self.fit, self.filter) != ("squash", "bicubic"):
            raise ValueError("libswscale only squashes, bicubic")
        if self.library == "opencv" and self.filter != "bilinear":
            raise ValueError("opencv is bilinear only")


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSpec:
    """One of the pictures that are made of a frame: (height, width, 3) uint8."""

    width: int
    height: int
    resize: ResizeSpec = field(default_factory=ResizeSpec)

    def __post_init__(self) -> None:
        if min(self.width, self.height) < 1:
            raise ValueError(f"{self.width} x {self.height} pixels must be at least one")
        if self.resize.fit == "crop" and self.resize.short_side < max(self.width, self.height):
            raise ValueError(f"{self.resize.short_side = } must be >= {self.width, self.height}")

    @property
    def num_bytes(self) -> int:
        """Of the picture."""
        return 3 * self.width * self.height
