"""DINOv3 by adapter over timm: the patch tokens, without class token and registers.

By default of the last block after the final norm, as transformers' last_hidden_state has them; a
layer that is named is a block's own output, without it. Pictures are squashed to 256 pixels,
bilinear, as in Meta's code and in the processor of transformers, which takes 224. The rotary table
is computed in float32, as timm and transformers do; Meta's own code has it in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

from encoders.base import Encoder, EncoderSpec, Runtime
from encoders.published import check_fields, config_beside, mentions
from encoders.tensors import Tensors, read_tensors
from encoders.vit import Vit, choose_block, find_files, spec_of
from encoders.weights import HubFiles, Weights
from schemas.errors import WeightsError
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec

FILES = ("model.safetensors", "pytorch_model.bin")
OWN_RESIZE = ResizeSpec(library="pillow", filter="bilinear", fit="squash")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRANSFORMERS_MARK = "embeddings.patch_embeddings."
"""In a tensor's name: the file has the layout of transformers."""
_BIASED = "_qkvb"
"""Ending of timm's names of the same models with biases of queries and values."""
_TRANSFORMERS = {
    "embeddings.cls_token": "cls_token",
    "embeddings.register_tokens": "reg_token",
    "embeddings.patch_embeddings": "patch_embed.proj",
}
_TRANSFORMERS_BLOCK = {
    "attention.q_proj.bias": "attn.q_bias",
    "attention.v_proj.bias": "attn.v_bias",
    "attention.o_proj": "attn.proj",
    "layer_scale1.lambda1": "gamma_1",
    "layer_scale2.lambda1": "gamma_2",
    "mlp.down_proj": "mlp.fc2",
}
_MLPS = {
    False: {"mlp.up_proj": "mlp.fc1"},
    True: {"mlp.gate_proj": "mlp.fc1_g", "mlp.up_proj": "mlp.fc1_x"},
}
"""Whether it is gated -> keys of transformers -> timm's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(Vit):
    """A published model."""

    timm: str


def _size(
    timm: str, *, width: int, depth: int, heads: int, gigabytes: float, mlp_matrices: int = 2
) -> Size:
    hub = HubFiles(
        repo=f"timm/{timm}.lvd1689m",
        files=FILES[:1],
        size_bytes=round(gigabytes * 1e9),
        licence="DINOv3 License",
        gated=True,
    )
    return Size(
        timm=timm,
        image=256,
        patch=16,
        width=width,
        depth=depth,
        heads=heads,
        hub=hub,
        mlp_matrices=mlp_matrices,
        extra_tokens=5,
    )


SIZES = {
    "dinov3-s-16-256": _size(
        "vit_small_patch16_dinov3", width=384, depth=12, heads=6, gigabytes=0.09
    ),
    "dinov3-b-16-256": _size(
        "vit_base_patch16_dinov3", width=768, depth=12, heads=12, gigabytes=0.34
    ),
    "dinov3-l-16-256": _size(
        "vit_large_patch16_dinov3", width=1024, depth=24, heads=16, gigabytes=1.21
    ),
    "dinov3-h-plus-16-256": _size(
        "vit_huge_plus_patch16_dinov3",
        width=1280,
        depth=32,
        heads=20,
        gigabytes=3.36,
        mlp_matrices=3,
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
        architecture=f"DINOv3: {size.shape}, without class token and registers",
        preprocessing="/ 255, ImageNet mean and std",
        resize=OWN_RESIZE,
        library="timm",
    )


def load(spec: EncoderSpec, *, settings: EncoderSettings, runtime: Runtime) -> Encoder:
    """The encoder; its `report` says what became of every key. WeightsError, DeviceError."""
    from encoders.running import TorchEncoder
    from encoders.timm_tower import loaded_tower, random_tower

    size = SIZES[settings.encoder]
    weights = find_files(size, settings, names=FILES)
    choices = {
        "num_blocks": choose_block(settings, depth=size.depth),
        "norm": settings.layer is None,
        "grid": size.grid,
    }
    report = None
    if weights.is_random:
        tower = random_tower(size.timm, overrides={}, **choices)
    else:
        tensors, ignored = to_timm(read_tensors(weights))
        overrides = {"qkv_bias": any(key.endswith(".attn.q_bias") for key in tensors)}
        tower, report = loaded_tower(
            size.timm,
            tensors,
            source=str(weights.paths[0]),
            ignored=ignored,
            overrides=overrides,
            **choices,
        )
    return TorchEncoder(tower, spec=spec, runtime=runtime, mean=MEAN, std=STD, report=report)


def to_timm(tensors: Tensors) -> tuple[Tensors, tuple[str, ...]]:
    """Tensors of timm or transformers -> timm's keys, and the families that are not needed."""
    if not any(TRANSFORMERS_MARK in key for key in tensors):
        return tensors, ()
    import torch

    gated = any(".mlp.gate_proj." in key for key in tensors)
    names = _TRANSFORMERS_BLOCK | _MLPS[gated]
    renamed = {_renamed(key, names): value for key, value in tensors.items()}
    for key in [key for key in renamed if key.endswith(".attention.q_proj.weight")]:
        parts = [key.replace("q_proj", f"{one}_proj") for one in "qkv"]
        if all(part in renamed for part in parts):
            qkv = torch.cat([renamed.pop(part) for part in parts])
            renamed[key.replace("attention.q_proj", "attn.qkv")] = qkv
    return renamed, ("embeddings.mask_token",)


def _renamed(key: str, names: dict[str, str]) -> str:
    key = key.removeprefix("model.")
    for old, new in _TRANSFORMERS.items():
        if key == old or key.startswith(f"{old}."):
            return key.replace(old, new)
    if not key.startswith("layer."):
        return key
    number, _, name = key.removeprefix("layer.").partition(".")
    part, _, kind = name.rpartition(".")
    name = names.get(name) or f"{names.get(part, part)}.{kind}"
    return f"blocks.{number}.{name}"


def _check(weights: Weights, size: Size, encoder: str) -> None:
    beside = config_beside(weights, "config.json")
    if beside is None:
        return
    path, config = beside
    if not mentions(weights, TRANSFORMERS_MARK):
        if "architecture" in config:
            names = (size.timm, size.timm + _BIASED)
            check_fields(path, config, {"architecture": names}, encoder=encoder)
        return
    if config.get("model_type") != "dinov3_vit":
        raise WeightsError(f"{path}: model_type = {config.get('model_type')!r} is no DINOv3 ViT")
    expected = {
        "patch_size": (size.patch,),
        "hidden_size": (size.width,),
        "num_hidden_layers": (size.depth,),
        "num_attention_heads": (size.heads,),
        "num_register_tokens": (4,),
        "rope_theta": (100.0,),
        "layer_norm_eps": (1e-5,),
    }
    check_fields(path, config, expected, encoder=encoder)
