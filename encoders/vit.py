"""Vit: the shape of a published vision transformer, and what a recipe's settings choose of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from encoders.base import EncoderSpec, refuse_choices
from encoders.devices import choose_precision
from encoders.operations import Operations, transformer_operations
from encoders.weights import HubFiles, Weights, find_weights, how_to_get
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
    mlp_width: int = 0
    """Channels inside of a block's MLP; 0: four times the width."""
    mlp_matrices: int = 2
    """3: it is gated."""
    extra_tokens: int = 0
    """Of class and registers."""

    @property
    def grid(self) -> tuple[int, int]:
        """Whole patches only: of 384 pixels 378 are read where a patch has 14."""
        return self.image // self.patch, self.image // self.patch

    @property
    def shape(self) -> str:
        """For a stamp."""
        return f"{self.depth} blocks of {self.width}, {self.heads} heads, patch {self.patch}"

    def operations(self, num_blocks: int, *, temporal_stride: int = 1) -> Operations:
        """Of so many blocks; with a temporal stride all frames of a clip attend to each other."""
        num_patches = self.grid[0] * self.grid[1]
        return transformer_operations(
            num_blocks=num_blocks,
            width=self.width,
            mlp_width=self.mlp_width or 4 * self.width,
            mlp_matrices=self.mlp_matrices,
            patches_per_frame=num_patches,
            patch_values=3 * self.patch**2,
            tokens_per_frame=num_patches / temporal_stride,
            extra_tokens=self.extra_tokens,
            is_joint=temporal_stride > 1,
        )


V = TypeVar("V", bound=Vit)


def spec_of(
    size: V,
    settings: EncoderSettings,
    *,
    files: Sequence[str],
    check: Callable[[Weights, V, str], None],
    device: str,
    architecture: str,
    preprocessing: str,
    resize: ResizeSpec,
    library: str,
    temporal_stride: int = 1,
) -> EncoderSpec:
    """The spec of an adapter whose features end with the final norm unless a layer is named.

    `files` are looked for in a folder; `check` raises where they are another model's, and is not
    called for a recipe that is wrong. `resize` is the encoder's own way. RecipeError, WeightsError.
    """
    refuse_choices(settings, but=("weights", "layer", "resize", "precision"))
    num_blocks = choose_block(settings, depth=size.depth)
    weights = find_files(size, settings, names=files) if settings.weights else None
    if weights is not None:
        check(weights, size, settings.encoder)
    return EncoderSpec(
        name=settings.encoder,
        width=size.image,
        height=size.image,
        grid=size.grid,
        dim=size.width,
        architecture=architecture,
        preprocessing=preprocessing,
        resize=choose_resize(settings, own=resize),
        temporal_stride=temporal_stride,
        layer=name_layer(num_blocks, depth=size.depth, norm=settings.layer is None),
        precision=choose_precision(settings.precision, device=device),
        weights_sha256="" if weights is None else weights.sha256(),
        weights_hint=how_to_get(size.hub),
        libraries=("torch", library),
        operations=size.operations(num_blocks, temporal_stride=temporal_stride),
    )


def find_files(size: Vit, settings: EncoderSettings, *, names: Sequence[str]) -> Weights:
    """Those that `settings.weights` means; the first of `names` in a folder. WeightsError."""
    return find_weights(settings.weights, encoder=settings.encoder, names=names, hub=size.hub)


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
