"""The keys of SigLIP's image tower: open_clip's and transformers' -> timm's."""

from __future__ import annotations

from encoders.siglip_sizes import TRANSFORMERS_MARK
from encoders.tensors import Tensors
from encoders.timm_tower import OPEN_CLIP_OTHERS, strip_open_clip

TRANSFORMERS_OTHERS = ("text_model", "logit_scale", "logit_bias", "head")
"""Families of keys beside the blocks; `head` is the pooling of the image tower."""
_PREFIX = "vision_model."
_STEM = {
    "embeddings.patch_embedding.weight": "patch_embed.proj.weight",
    "embeddings.patch_embedding.bias": "patch_embed.proj.bias",
    "embeddings.position_embedding.weight": "pos_embed",
    "post_layernorm.weight": "norm.weight",
    "post_layernorm.bias": "norm.bias",
}
_BLOCK = {
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "self_attn.out_proj": "attn.proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_BLOCKS = "encoder.layers."


def to_timm(tensors: Tensors) -> tuple[Tensors, tuple[str, ...]]:
    """Tensors of any published layout -> timm's keys, and the families that are not needed.

    Keys that belong to no layout stay as they are, for the strict loading to name.
    """
    if not any(TRANSFORMERS_MARK in key for key in tensors):
        return strip_open_clip(tensors), OPEN_CLIP_OTHERS
    tensors = {key.removeprefix(_PREFIX): value for key, value in tensors.items()}
    return _fuse({_renamed(key): value for key, value in tensors.items()}), TRANSFORMERS_OTHERS


def _renamed(key: str) -> str:
    if key in _STEM:
        return _STEM[key]
    if not key.startswith(_BLOCKS):
        return key
    number, _, name = key.removeprefix(_BLOCKS).partition(".")
    part, _, kind = name.rpartition(".")
    return f"blocks.{number}.{_BLOCK.get(part, part)}.{kind}"


def _fuse(tensors: Tensors) -> Tensors:
    import torch

    fused = dict(tensors)
    for key in tensors:
        block, mark, kind = key.partition(".self_attn.q_proj.")
        parts = [f"{block}.self_attn.{one}_proj.{kind}" for one in "qkv"]
        if mark and block.startswith("blocks.") and all(part in tensors for part in parts):
            fused[f"{block}.attn.qkv.{kind}"] = torch.cat([fused.pop(part) for part in parts])
    if "pos_embed" in fused:
        fused["pos_embed"] = fused["pos_embed"].unsqueeze(0)
    return fused
