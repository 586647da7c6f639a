"""Perception Encoder: the table against timm, parity with timm and open_clip, both layouts."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import open_clip
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.layers import LayerNorm
from timm.models import register_model
from timm.models.eva import Eva, _create_eva

from encoders import check_encoder, encoder_spec, load_encoder, registry
from encoders.perception import MEAN, SIZES, STD
from schemas.errors import RecipeError, WeightsError
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec

NAME, WIDTH, DEPTH, HEADS, IMAGE = "pe-core-toy-14-56", 64, 3, 4, 56
TOLERANCE = 1e-5
FIGURES = logging.getLogger("figures")
"""pytest -rP --log-level=INFO shows them."""
PICTURES = ((200, 90), (51, 133), (56, 56))
"""(width, height)."""


@register_model
def vit_pe_core_toy_patch14_56(pretrained: bool = False, **kwargs) -> Eva:
    arguments = {
        "img_size": IMAGE,
        "patch_size": 14,
        "embed_dim": WIDTH,
        "depth": DEPTH,
        "num_heads": HEADS,
        "mlp_ratio": 4.0,
        "global_pool": "map",
        "attn_type": "rope",
        "use_pre_transformer_norm": True,
        "use_rot_pos_emb": True,
        "ref_feat_shape": (4, 4),
        "rope_grid_offset": 1.0,
        "rope_grid_indexing": "xy",
        "attn_pool_num_heads": 8,
        "attn_pool_mlp_ratio": 4.0,
        "norm_layer": partial(LayerNorm, eps=1e-5),
    }
    return _create_eva("vit_pe_core_toy_patch14_56", pretrained=pretrained, **(arguments | kwargs))


TOY = replace(
    SIZES["pe-core-l-14-336"],
    timm="vit_pe_core_toy_patch14_56",
    image=IMAGE,
    width=WIDTH,
    depth=DEPTH,
    heads=HEADS,
)


@pytest.fixture(autouse=True)
def toy_size(monkeypatch):
    monkeypatch.setitem(SIZES, NAME, TOY)
    monkeypatch.setitem(registry._BUILT_IN, NAME, "encoders.perception")


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = timm.create_model(TOY.timm, num_classes=32).eval()
        for parameter in model.parameters():
            scale = 0.3 if parameter.ndim < 2 else 0.6 / parameter[0].numel() ** 0.5
            parameter.data.normal_().mul_(scale)
    return model


@pytest.fixture
def timm_folder(tmp_path, reference) -> Path:
    save_file(reference.state_dict(), tmp_path / "model.safetensors")
    return tmp_path


def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    shapes = [(height, width, 3) for width, height in PICTURES]
    return [Image.fromarray(rng.integers(0, 256, size=s, dtype=np.uint8)) for s in shapes]


def open_clip_pixels() -> torch.Tensor:
    cfg = open_clip.get_pretrained_cfg(TOY.open_clip, "meta")
    transform = open_clip.image_transform(
        IMAGE,
        is_train=False,
        mean=cfg["mean"],
        std=cfg["std"],
        interpolation=cfg["interpolation"],
        resize_mode=cfg["resize_mode"],
    )
    return torch.stack([transform(image) for image in pictures()])


def settings(weights: Path | str, **choices: object) -> EncoderSettings:
    return EncoderSettings(encoder=NAME, weights=str(weights), **choices)


def features(chosen: EncoderSettings) -> np.ndarray:
    encoder = load_encoder(chosen)
    assert encoder.spec.resize == ResizeSpec(library="pillow", filter="bilinear", fit="squash")
    size = (IMAGE, IMAGE)
    frames = [np.asarray(p.resize(size, Image.Resampling.BILINEAR)) for p in pictures()]
    return encoder.encode(np.stack(frames)[None])[0].reshape(3, 16, WIDTH)


@pytest.mark.parametrize("name", sorted(SIZES))
def test_a_row_of_the_table_says_what_timm_builds(name):
    size = SIZES[name]
    with torch.device("meta"):
        trunk = timm.create_model(size.timm)
    attention = trunk.blocks[0].attn
    assert trunk.patch_embed.img_size == (size.image, size.image)
    assert trunk.patch_embed.patch_size == (size.patch, size.patch)
    assert trunk.patch_embed.grid_size == size.grid
    shape = (trunk.embed_dim, len(trunk.blocks), attention.num_heads)
    assert shape == (size.width, size.depth, size.heads)
    assert trunk.num_prefix_tokens == (0 if name == "pe-core-g-14-448" else 1)
    assert (trunk.pretrained_cfg["mean"], trunk.pretrained_cfg["std"]) == (MEAN, STD)
    vision = open_clip.get_model_config(size.open_clip)["vision_cfg"]
    assert (vision["timm_model_name"], vision["image_size"]) == (size.timm, size.image)
    num_bytes = 4 * sum(parameter.numel() for parameter in trunk.parameters())
    assert size.hub.size_bytes == pytest.approx(num_bytes, rel=0.02)
    assert size.hub.repo == f"timm/{size.timm}.{trunk.pretrained_cfg['tag']}"


def test_the_spec_of_the_large_one():
    spec = encoder_spec("pe-core-l-14-336")
    assert (spec.width, spec.grid, spec.dim) == (336, (24, 24), 1024)
    assert spec.layer == "block 24 of 24, final norm"


@pytest.mark.parametrize("layer", [None, -1, -2])
def test_features_are_those_of_timm(timm_folder, reference, layer):
    with torch.inference_mode():
        (expected,) = reference.forward_intermediates(
            open_clip_pixels(),
            indices=[DEPTH + (layer or -1)],
            norm=layer is None,
            output_fmt="NLC",
            intermediates_only=True,
        )
        if layer is None:
            whole = reference.forward_features(open_clip_pixels())
            assert torch.equal(expected, whole[:, 1:])
    difference = np.abs(features(settings(timm_folder, layer=layer)) - expected.numpy()).max()
    FIGURES.info("difference: %s", f"{difference:.1e}")
    assert difference <= TOLERANCE


def test_a_file_of_open_clip_gives_the_same_features(tmp_path, timm_folder, reference):
    tensors = {f"visual.trunk.{key}": value for key, value in reference.state_dict().items()}
    tensors |= {"text.positional_embedding": torch.zeros(2, 3), "logit_scale": torch.zeros(1)}
    file = tmp_path / "open_clip_model.safetensors"
    save_file(tensors, file)
    assert np.array_equal(features(settings(file)), features(settings(timm_folder)))
    report = load_encoder(settings(file, layer=-2)).report
    assert report.ignored == {
        "attn_pool": 13,
        "blocks.2": 12,
        "head": 2,
        "logit_scale": 1,
        "norm": 2,
        "text": 1,
    }
    assert len(report.loaded) == 5 + 2 * 12


def test_a_file_with_another_key_is_refused(tmp_path, reference):
    tensors = reference.state_dict() | {"conv1.weight": torch.zeros(1)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=re.escape("unknown: conv1.weight")):
        load_encoder(settings(tmp_path))


def test_a_contradicting_config_is_refused(timm_folder):
    path = timm_folder / "config.json"
    path.write_text(json.dumps({"architecture": "vit_pe_core_base_patch16_224"}))
    with pytest.raises(WeightsError, match="architecture = 'vit_pe_core_base_patch16_224'"):
        encoder_spec(settings(timm_folder))


def test_what_it_has_no_choice_of_is_refused():
    for choice in ({"gelu": "tanh"}, {"resize": "apollo"}, {"layer": -4}):
        with pytest.raises(RecipeError, match=next(iter(choice))):
            encoder_spec(settings("random", **choice))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_encoder_keeps_the_contract(timm_folder, precision):
    encoder = load_encoder(settings(timm_folder, precision=precision))
    assert encoder.spec.precision == precision
    assert check_encoder(encoder) == []
