"""A small SigLIP with both towers, in the layouts of open_clip and of transformers, with words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer, _create_vision_transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, SiglipConfig, SiglipModel

from encoders import registry
from encoders.siglip_sizes import FILES, SIZES, Size
from encoders.weights import HubFiles

IMAGE, PATCH, WIDTH, DEPTH, HEADS, MLP = 64, 16, 64, 4, 4, 96
GRID = IMAGE // PATCH
NUM_TOKENS, TEXT_DEPTH = 8, 2
NAME = "siglip-pocket-16-64"
WORDS = ("</s>", "<unk>", "a", "dog", "runs", "red", "car", "blue")


@register_model
def vit_pocket_patch16_siglip_64(pretrained: bool = False, **kwargs) -> VisionTransformer:
    arguments = {
        "img_size": IMAGE,
        "patch_size": PATCH,
        "embed_dim": WIDTH,
        "depth": DEPTH,
        "num_heads": HEADS,
        "mlp_ratio": MLP / WIDTH,
        "class_token": False,
        "global_pool": "map",
        "act_layer": "gelu_tanh",
    }
    return _create_vision_transformer(
        "vit_pocket_patch16_siglip_64", pretrained=pretrained, **(arguments | kwargs)
    )


POCKET = Size(
    open_clip="ViT-pocket-16-64",
    timm="vit_pocket_patch16_siglip_64",
    image=IMAGE,
    patch=PATCH,
    width=WIDTH,
    depth=DEPTH,
    heads=HEADS,
    gelu="tanh",
    hub=HubFiles(repo="timm/pocket", files=FILES[:2], size_bytes=1, licence="Apache-2.0"),
)


@contextmanager
def pocket_siglip(folder: Path) -> Iterator[torch.nn.Module]:
    """The encoder NAME is known; gives open_clip's model of it, with random tensors."""
    config = {
        "embed_dim": WIDTH,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {
            "image_size": IMAGE,
            "timm_model_name": POCKET.timm,
            "timm_model_pretrained": False,
            "timm_pool": "map",
            "timm_proj": "none",
        },
        "text_cfg": {
            "context_length": NUM_TOKENS,
            "vocab_size": len(WORDS),
            "width": WIDTH,
            "heads": HEADS,
            "layers": TEXT_DEPTH,
            "mlp_ratio": MLP / WIDTH,
            "no_causal_mask": True,
            "proj_bias": True,
            "pool_type": "last",
            "norm_kwargs": {"eps": 1e-6},
            "act_kwargs": {"approximate": "tanh"},
        },
    }
    (folder / f"{POCKET.open_clip}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, NAME, POCKET)
        patch.setitem(registry._BUILT_IN, NAME, "encoders.siglip")
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = open_clip.create_model(POCKET.open_clip, pretrained=None).eval()
            randomise(model)
        yield model


def randomise(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        scale = 0.3 if parameter.ndim < 2 else 0.9 / parameter[0].numel() ** 0.5
        parameter.data.normal_().mul_(scale)


def write_open_clip(model: torch.nn.Module, folder: Path) -> Path:
    """The folder of weights as open_clip publishes it, with a tokenizer."""
    folder.mkdir()
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "open_clip_model.safetensors")
    vision = {"image_size": IMAGE, "timm_model_name": POCKET.timm}
    config = {"model_cfg": {"vision_cfg": vision}, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder


def write_transformers(folder: Path) -> SiglipModel:
    """The same shapes with other tensors, as transformers publishes them."""
    shape = {
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "num_attention_heads": HEADS,
    }
    text = shape | {
        "vocab_size": len(WORDS),
        "max_position_embeddings": NUM_TOKENS,
        "num_hidden_layers": TEXT_DEPTH,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "projection_size": WIDTH,
    }
    vision = shape | {"num_hidden_layers": DEPTH, "image_size": IMAGE, "patch_size": PATCH}
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = SiglipModel(SiglipConfig(vision_config=vision, text_config=text)).eval()
        randomise(model)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def write_tokenizer(folder: Path) -> None:
    model = WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="</s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(folder)
