"""Files as InternVideo2 is published: their keys and shapes, filled at random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from encoders import internvideo2
from encoders.internvideo2 import Size
from encoders.weights import HubFiles

CELLS = 256
TINY = Size(
    width=64,
    depth=3,
    num_heads=4,
    mlp_width=176,
    table_frames=4,
    hub=HubFiles(repo="nobody/nothing", files=("weights.pt",), size_bytes=1, licence="none"),
    names=("weights.pt", "model.safetensors"),
)
TEXT_FAMILIES = {
    "text_encoder.bert.embeddings.word_embeddings.weight": (9, 8),
    "text_encoder.cls.predictions.bias": (9,),
    "vision_proj.weight": (8, 8),
    "vision_proj.bias": (8,),
    "text_proj.weight": (8, 8),
    "temp": (),
    "itm_head.weight": (2, 8),
}
"""What lies beside the video encoder in the files of stage 2."""


def block_shapes(width: int, mlp_width: int) -> dict[str, tuple[int, ...]]:
    """The 13 keys of a block."""
    return {
        "norm1.weight": (width,),
        "attn.qkv.weight": (3 * width, width),
        "attn.q_norm.weight": (width,),
        "attn.k_norm.weight": (width,),
        "attn.proj.weight": (width, width),
        "attn.proj.bias": (width,),
        "ls1.gamma": (width,),
        "norm2.weight": (width,),
        "mlp.fc1.weight": (mlp_width, width),
        "mlp.fc1.bias": (mlp_width,),
        "mlp.fc2.weight": (width, mlp_width),
        "mlp.fc2.bias": (width,),
        "ls2.gamma": (width,),
    }


def feature_shapes(size: Size, *, frames: int, num_blocks: int) -> dict[str, tuple[int, ...]]:
    """What features need."""
    width = size.width
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + frames * CELLS, width),
        "patch_embed.proj.weight": (width, 3, 1, 14, 14),
        "patch_embed.proj.bias": (width,),
    }
    for index in range(num_blocks):
        block = block_shapes(width, size.mlp_width)
        shapes |= {f"blocks.{index}.{key}": shape for key, shape in block.items()}
    return shapes


def other_shapes(
    size: Size, *, frames: int, teacher: int = 3200, num_decoders: int = 6, out: int = 768
) -> dict[str, tuple[int, ...]]:
    """Positions of images, pooling and decoders, of the class of stage 2."""
    width = size.width
    shapes: dict[str, tuple[int, ...]] = {
        "clip_pos_embed": (1, 1 + frames * CELLS, width),
        "img_pos_embed": (1, 1 + CELLS, width),
        "clip_img_pos_embed": (1, 1 + CELLS, width),
    }
    for part in "qkv":
        shapes[f"clip_projector.norm1_{part}.weight"] = (width,)
        shapes[f"clip_projector.norm1_{part}.bias"] = (width,)
        shapes[f"clip_projector.cross_attn.{part}_bias"] = (width,)
        shapes[f"clip_projector.cross_attn.{part}.weight"] = (width, width)
    shapes["clip_projector.cross_attn.proj.weight"] = (out, width)
    shapes["clip_projector.cross_attn.proj.bias"] = (out,)
    decoders = [f"clip_decoder.{index}" for index in range(num_decoders)]
    for name, inside, outside in [
        *((decoder, width, teacher) for decoder in decoders),
        ("final_clip_decoder", out, out),
    ]:
        shapes[f"{name}.head.weight"] = (outside, inside)
        for key in ("head.bias", "norm.weight", "norm.bias"):
            shapes[f"{name}.{key}"] = (outside,)
    return shapes


def fill(shapes: dict[str, tuple[int, ...]], *, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights large enough for every part of the model to be seen in its features."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for key, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if key.endswith(("gamma", "norm.weight", "norm1.weight", "norm2.weight")):
            tensors[key] = 0.7 + 0.2 * noise
        elif key.endswith("weight") and len(shape) > 1:
            tensors[key] = 0.5 * noise * _fan_in(shape) ** -0.5
        else:
            tensors[key] = 0.3 * noise
    return tensors


def _fan_in(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape[1:]:
        product *= length
    return product


def tiny_tensors(*, frames: int = 4, with_others: bool = True) -> dict[str, torch.Tensor]:
    """A whole small model in the published keys."""
    shapes = feature_shapes(TINY, frames=frames, num_blocks=TINY.depth)
    if with_others:
        shapes |= other_shapes(TINY, frames=frames, teacher=24, num_decoders=2, out=16)
    return fill(shapes)


def save(value: Any, path: Path, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


def make_tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let internvideo2-s14 be a tiny model; its name."""
    monkeypatch.setitem(internvideo2.SIZES, "internvideo2-s14", TINY)
    return "internvideo2-s14"
