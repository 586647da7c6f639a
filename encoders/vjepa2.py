"""V-JEPA 2 by adapter over transformers: one grid of patch tokens for each pair of frames.

By default of the last block after the final norm, as VJEPA2Model.get_vision_features gives them; a
layer that is named is a block's own output, without it. A clip has an even number of frames; of an
odd one the last frame is seen twice. Pictures are cut to a centred square, as the processor does.
"""

from __future__ import annotations

from encoders.base import Encoder, EncoderSpec, Runtime
from encoders.published import check_fields, config_beside
from encoders.vit import Vit, choose_block, find_files, spec_of
from encoders.weights import HubFiles, Weights
from schemas.errors import WeightsError
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec

FILES = ("model.safetensors", "pytorch_model.bin")
STRIDE = 2
"""Frames of a tubelet."""


def _size(
    repo: str,
    *,
    image: int,
    width: int,
    depth: int,
    heads: int,
    gigabytes: float,
    licence: str,
    mlp_width: int = 0,
) -> Vit:
    hub = HubFiles(
        repo=f"facebook/{repo}",
        files=FILES[:1],
        size_bytes=round(gigabytes * 1e9),
        licence=licence,
    )
    return Vit(
        image=image,
        patch=16,
        width=width,
        depth=depth,
        heads=heads,
        hub=hub,
        mlp_width=mlp_width,
    )


SIZES = {
    "vjepa2-l-16-256": _size(
        "vjepa2-vitl-fpc64-256",
        image=256,
        width=1024,
        depth=24,
        heads=16,
        gigabytes=1.30,
        licence="see the repository's page",
    ),
    "vjepa2-h-16-256": _size(
        "vjepa2-vith-fpc64-256",
        image=256,
        width=1280,
        depth=32,
        heads=16,
        gigabytes=2.61,
        licence="see the repository's page",
    ),
    "vjepa2-g-16-256": _size(
        "vjepa2-vitg-fpc64-256",
        image=256,
        width=1408,
        depth=40,
        heads=22,
        gigabytes=4.14,
        licence="Apache-2.0",
        mlp_width=6144,
    ),
    "vjepa2-g-16-384": _size(
        "vjepa2-vitg-fpc64-384",
        image=384,
        width=1408,
        depth=40,
        heads=22,
        gigabytes=4.14,
        licence="Apache-2.0",
        mlp_width=6144,
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
        architecture=f"V-JEPA 2: {size.shape}, {STRIDE} frames a tubelet",
        preprocessing="/ 255, ImageNet mean and std",
        resize=_own_resize(size),
        library="transformers",
        temporal_stride=STRIDE,
    )


def load(spec: EncoderSpec, *, settings: EncoderSettings, runtime: Runtime) -> Encoder:
    """The encoder; its `report` says what became of every key.

    WeightsError, DeviceError; UsageError: transformers is not installed.
    """
    from encoders.vjepa2_model import load_vjepa2

    size = SIZES[settings.encoder]
    return load_vjepa2(
        spec,
        size=size,
        weights=find_files(size, settings, names=FILES),
        num_blocks=choose_block(settings, depth=size.depth),
        norm=settings.layer is None,
        runtime=runtime,
    )


def _own_resize(size: Vit) -> ResizeSpec:
    # VJEPA2VideoProcessor: a margin as of 256 around 224.
    short_side = size.image * 256 // 224
    return ResizeSpec(library="pillow", filter="bilinear", fit="crop", short_side=short_side)


def _check(weights: Weights, size: Vit, encoder: str) -> None:
    beside = config_beside(weights, "config.json")
    if beside is None:
        return
    path, config = beside
    if config.get("model_type") != "vjepa2":
        raise WeightsError(f"{path}: model_type = {config.get('model_type')!r} is no V-JEPA 2")
    expected = {
        "crop_size": (size.image,),
        "patch_size": (size.patch,),
        "tubelet_size": (STRIDE,),
        "hidden_size": (size.width,),
        "num_hidden_layers": (size.depth,),
        "num_attention_heads": (size.heads,),
        "hidden_act": ("gelu",),
        "layer_norm_eps": (1e-6,),
    }
    check_fields(path, config, expected, encoder=encoder)
