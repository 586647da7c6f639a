"""Perception Encoder core by adapter over timm: the patch tokens, without class token.

By default of the last block after the final norm, as timm's forward_features gives them; a layer
that is named is a block's own output, without it. Pictures are squashed, bilinear, as in Meta's
code and in open_clip.
"""

from __future__ import annotations

from dataclasses import dataclass

from encoders.base import Encoder, EncoderSpec, Runtime
from encoders.published import check_fields, config_beside
from encoders.tensors import read_tensors
from encoders.vit import Vit, choose_block, find_files, spec_of
from encoders.weights import HubFiles, Weights
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec

FILES = (
    "model.safetensors",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
    "pytorch_model.bin",
)
OWN_RESIZE = ResizeSpec(library="pillow", filter="bilinear", fit="squash")
MEAN = STD = (0.5, 0.5, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(Vit):
    """A published model."""

    timm: str
    open_clip: str
    """Its name there, with the text tower."""


def _size(
    timm: str,
    open_clip: str,
    *,
    image: int,
    patch: int,
    width: int,
    depth: int,
    heads: int,
    gigabytes: float,
    mlp_width: int = 0,
    extra_tokens: int = 1,
) -> Size:
    hub = HubFiles(
        repo=f"timm/{timm}.fb",
        files=FILES[:1],
        size_bytes=round(gigabytes * 1e9),
        licence="Apache-2.0",
    )
    return Size(
        timm=timm,
        open_clip=open_clip,
        image=image,
        patch=patch,
        width=width,
        depth=depth,
        heads=heads,
        hub=hub,
        mlp_width=mlp_width,
        extra_tokens=extra_tokens,
    )


SIZES = {
    "pe-core-b-16-224": _size(
        "vit_pe_core_base_patch16_224",
        "PE-Core-B-16",
        image=224,
        patch=16,
        width=768,
        depth=12,
        heads=12,
        gigabytes=0.37,
    ),
    "pe-core-l-14-336": _size(
        "vit_pe_core_large_patch14_336",
        "PE-Core-L-14-336",
        image=336,
        patch=14,
        width=1024,
        depth=24,
        heads=16,
        gigabytes=1.27,
    ),
    "pe-core-g-14-448": _size(
        "vit_pe_core_gigantic_patch14_448",
        "PE-Core-bigG-14-448",
        image=448,
        patch=14,
        width=1536,
        depth=50,
        heads=16,
        gigabytes=7.53,
        mlp_width=8960,
        extra_tokens=0,
    ),
}
"""By the name in recipes."""


def spec(settings: EncoderSettings, *, device: str) -> EncoderSpec:
    """Whichever of `SIZES` the settings name. RecipeError, WeightsError."""
    size = SIZES[settings.encoder]
    return spec_of(
        size,
        settings,
        files=FILES,
        check=_check,
        device=device,
        architecture=f"{size.open_clip}: {size.shape}, without class token",
        preprocessing="/ 255, mean 0.5, std 0.5",
        resize=OWN_RESIZE,
        library="timm",
    )


def load(spec: EncoderSpec, *, settings: EncoderSettings, runtime: Runtime) -> Encoder:
    """The encoder; its `report` says what became of every key. WeightsError, DeviceError."""
    from encoders.running import TorchEncoder
    from encoders.timm_tower import (
        OPEN_CLIP_OTHERS,
        loaded_tower,
        random_tower,
        strip_open_clip,
    )

    size = SIZES[settings.encoder]
    weights = find_files(size, settings, names=FILES)
    choices = {
        "num_blocks": choose_block(settings, depth=size.depth),
        "norm": settings.layer is None,
        "grid": size.grid,
        "overrides": {},
    }
    report = None
    if weights.is_random:
        tower = random_tower(size.timm, **choices)
    else:
        tower, report = loaded_tower(
            size.timm,
            strip_open_clip(read_tensors(weights)),
            source=str(weights.paths[0]),
            ignored=OPEN_CLIP_OTHERS,
            **choices,
        )
    return TorchEncoder(tower, spec=spec, runtime=runtime, mean=MEAN, std=STD, report=report)


def _check(weights: Weights, size: Size, encoder: str) -> None:
    beside = config_beside(weights, "config.json")
    if beside is not None and "architecture" in beside[1]:
        check_fields(*beside, {"architecture": (size.timm,)}, encoder=encoder)
