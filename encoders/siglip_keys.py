"""The keys of SigLIP's towers, of any published layout: to timm's, and to open_clip's for text."""

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
_HEAD = {
    "head.probe": "attn_pool.latent",
    "head.attention.out_proj": "attn_pool.proj",
    "head.layernorm": "attn_pool.norm",
    "head.mlp.fc1": "attn_pool.mlp.fc1",
    "head.mlp.fc2": "attn_pool.mlp.fc2",
}
_TEXT_PREFIX, _OPEN_CLIP_TEXT = "text_model.", "text."
_TEXT = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
    "head.weight": "text_projection.weight",
    "head.bias": "text_projection.bias",
}
_TEXT_BLOCK = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


def to_timm(tensors: Tensors) -> tuple[Tensors, tuple[str, ...]]:
    """Tensors of any published layout -> timm's keys, and the families that are not needed.

    Keys that belong to no layout stay as they are, for the strict loading to name.
    """
    if not any(TRANSFORMERS_MARK in key for key in tensors):
        return strip_open_clip(tensors), OPEN_CLIP_OTHERS
    tensors = {key.removeprefix(_PREFIX): value for key, value in tensors.items()}
    return _fuse({_renamed(key): value for key, value in tensors.items()}), TRANSFORMERS_OTHERS


def head_to_timm(tensors: Tensors) -> Tensors:
    """The pooling at the end of the image tower of any published layout, in timm's keys."""
    tensors = strip_open_clip(tensors)
    kept = {key: value for key, value in tensors.items() if key.startswith("attn_pool.")}
    if kept:
        return kept
    for key, value in tensors.items():
        name = key.removeprefix(_PREFIX)
        part, _, kind = name.rpartition(".")
        if name in _HEAD:
            kept[_HEAD[name]] = value
        elif part in _HEAD:
            kept[f"{_HEAD[part]}.{kind}"] = value
        elif name in ("head.attention.in_proj_weight", "head.attention.in_proj_bias"):
            ending, third = name.rpartition("_")[2], len(value) // 3
            kept[f"attn_pool.q.{ending}"] = value[:third]
            kept[f"attn_pool.kv.{ending}"] = value[third:]
    return kept


def text_to_open_clip(tensors: Tensors) -> Tensors:
    """The text tower of any published layout, in the keys of open_clip's; empty: there is none."""
    if any(key.startswith(_TEXT_PREFIX) for key in tensors):
        return _text_of_transformers(tensors)
    return {
        key.removeprefix(_OPEN_CLIP_TEXT): value
        for key, value in tensors.items()
        if key.startswith(_OPEN_CLIP_TEXT)
    }


def _text_of_transformers(tensors: Tensors) -> Tensors:
    import torch

    kept: Tensors = {}
    for key, value in tensors.items():
        name = key.removeprefix(_TEXT_PREFIX)
        if name == key:
            continue
        if name in _TEXT:
            kept[_TEXT[name]] = value
        elif name.startswith(_BLOCKS):
            number, _, rest = name.removeprefix(_BLOCKS).partition(".")
            part, _, kind = rest.rpartition(".")
            block = f"transformer.resblocks.{number}"
            if part == "self_attn.q_proj":
                names = [
                    f"{_TEXT_PREFIX}{_BLOCKS}{number}.self_attn.{c}_proj.{kind}" for c in "qkv"
                ]
                if all(one in tensors for one in names):
                    fused = torch.cat([tensors[one] for one in names])
                    kept[f"{block}.attn.in_proj_{kind}"] = fused
            elif part not in ("self_attn.k_proj", "self_attn.v_proj"):
                kept[f"{block}.{_TEXT_BLOCK.get(part, part)}.{kind}"] = value
    return kept


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
