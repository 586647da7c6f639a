"""Vit: the shape of a published vision transformer, and what a recipe's settings choose of one."""

from __future__ import annotations

from dataclasses import dataclass

from encoders.weights import HubFiles
from schemas.errors import RecipeError
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Vit:
    """A published model."""

    image: int
    """Pixels a side of the picture."""
    patch: int
    """Pixels a side of a patch."""
    width: int
    """Channels."""
    depth: int
    """Blocks."""
    heads: int
    hub: HubFiles

    @property
    def grid(self) -> tuple[int, int]:
        """Whole patches only: of 384 pixels 378 are read where a patch has 14."""
        return self.image // self.patch, self.image // self.patch

    @property
    def shape(self) -> str:
        """For a stamp."""
        return f"{self.depth} blocks of {self.width}, {self.heads} heads, patch {self.patch}"


def choose_block(settings: EncoderSettings, *, depth: int, own: int = -1) -> int:
    """How many of `depth` blocks run; `own` is the encoder's choice of a layer. RecipeError."""
    layer = own if settings.layer is None else settings.layer
    if not -depth <= layer <= -1:
        raise RecipeError(
            f"layer = {layer}: {settings.encoder} has {depth} blocks, counted from the end:"
            f" -1 is the last, {-depth} the first"
        )
    return depth + layer + 1


def name_layer(num_blocks: int, *, depth: int, norm: bool) -> str:
    """Whose output the features are, for a stamp."""
    return f"block {num_blocks} of {depth}, {'final' if norm else 'no'} norm"


def choose_resize(
    settings: EncoderSettings, *, own: ResizeSpec, apollo: ResizeSpec | None = None
) -> ResizeSpec:
    """The encoder's own, one pass of libswscale, or Apollo's where it has one. RecipeError."""
    ways = {"": own, "own": own, "fast": ResizeSpec(), "apollo": apollo}
    way = ways[settings.resize]
    if way is None:
        raise RecipeError(
            f"resize = {settings.resize!r}: {settings.encoder} is none of Apollo's encoders",
            hint="use own or fast",
        )
    return way
