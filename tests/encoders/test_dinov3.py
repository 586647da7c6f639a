"""DINOv3: the table against timm, parity with timm and transformers, both layouts."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.layers import LayerNorm
from timm.models import register_model
from timm.models.eva import Eva, _create_eva
from transformers import DINOv3ViTConfig, DINOv3ViTImageProcessor, DINOv3ViTModel

from encoders import check_encoder, encoder_spec, load_encoder, registry
from encoders.dinov3 import MEAN, SIZES, STD
from schemas.errors import RecipeError, WeightsError
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec

NAME, WIDTH, DEPTH, HEADS, IMAGE = "dinov3-toy-16-64", 64, 3, 4, 64
TOLERANCE = 1e-5
FIGURES = logging.getLogger("figures")
"""pytest -rP --log-level=INFO shows them."""


@register_model
def vit_toy_patch16_dinov3(pretrained: bool = False, **kwargs) -> Eva:
    arguments = {
        "img_size": IMAGE,
        "patch_size": 16,
        "dynamic_img_size": True,
        "embed_dim": WIDTH,
        "depth": DEPTH,
        "num_heads": HEADS,
        "qkv_bias": False,
        "init_values": 1.0e-05,
        "rope_type": "dinov3",
        "rope_temperature": 100,
        "rope_rotate_half": True,
        "use_rot_pos_emb": True,
        "use_abs_pos_emb": False,
        "num_reg_tokens": 4,
        "use_fc_norm": False,
        "norm_layer": partial(LayerNorm, eps=1e-5),
    }
    return _create_eva("vit_toy_patch16_dinov3", pretrained=pretrained, **(arguments | kwargs))


@register_model
def vit_gated_toy_patch16_dinov3(pretrained: bool = False, **kwargs) -> Eva:
    return vit_toy_patch16_dinov3(swiglu_mlp=True, swiglu_align_to=8, **kwargs)


TOY = replace(
    SIZES["dinov3-s-16-256"],
    timm="vit_toy_patch16_dinov3",
    image=IMAGE,
    width=WIDTH,
    depth=DEPTH,
    heads=HEADS,
)


@pytest.fixture(autouse=True)
def toy_size(monkeypatch):
    monkeypatch.setitem(SIZES, NAME, TOY)
    monkeypatch.setitem(registry._BUILT_IN, NAME, "encoders.dinov3")


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in model.parameters():
            scale = 0.3 if parameter.ndim < 2 else 0.6 / parameter[0].numel() ** 0.5
            parameter.data.normal_().mul_(scale)
    return model.eval()


def frames() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, size=(1, 3, IMAGE, IMAGE, 3), dtype=np.uint8)


def pixels() -> torch.Tensor:
    images = torch.from_numpy(frames()[0]).permute(0, 3, 1, 2) / 255
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def settings(weights: Path | str, **choices: object) -> EncoderSettings:
    return EncoderSettings(encoder=NAME, weights=str(weights), **choices)


def features(chosen: EncoderSettings) -> np.ndarray:
    return load_encoder(chosen).encode(frames())[0].reshape(3, 16, WIDTH)


def transformers_model(*, gated: bool) -> DINOv3ViTModel:
    config = DINOv3ViTConfig(
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        num_register_tokens=4,
        use_gated_mlp=gated,
        hidden_act="silu" if gated else "gelu",
        image_size=IMAGE,
    )
    return randomised(DINOv3ViTModel(config))


@pytest.mark.parametrize("name", sorted(SIZES))
def test_a_row_of_the_table_says_what_timm_builds(name):
    size = SIZES[name]
    with torch.device("meta"):
        trunk = timm.create_model(size.timm)
    attention = trunk.blocks[0].attn
    assert trunk.pretrained_cfg["input_size"] == (3, size.image, size.image)
    assert (trunk.pretrained_cfg["mean"], trunk.pretrained_cfg["std"]) == (MEAN, STD)
    assert trunk.patch_embed.patch_size == (size.patch, size.patch)
    assert trunk.patch_embed.grid_size == size.grid
    shape = (trunk.embed_dim, len(trunk.blocks), attention.num_heads)
    assert shape == (size.width, size.depth, size.heads)
    assert trunk.num_prefix_tokens == 5
    num_bytes = 4 * sum(parameter.numel() for parameter in trunk.parameters())
    assert size.hub.size_bytes == pytest.approx(num_bytes, rel=0.05)
    assert size.hub.repo == f"timm/{size.timm}.{trunk.pretrained_cfg['tag']}"


def test_the_spec_of_dinov3_large():
    spec = encoder_spec("dinov3-l-16-256")
    assert (spec.width, spec.grid, spec.dim) == (256, (16, 16), 1024)
    assert spec.layer == "block 24 of 24, final norm"
    assert spec.resize == ResizeSpec(library="pillow", filter="bilinear")
    assert "hub" not in spec.weights_hint  # they are gated
    named = encoder_spec(EncoderSettings(encoder="dinov3-l-16-256", layer=-1, resize="fast"))
    assert named.layer == "block 24 of 24, no norm"
    assert named.resize == ResizeSpec()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("layer", [None, -1, -2])
def test_features_are_those_of_timm(tmp_path, layer, biased):
    model = randomised(timm.create_model(TOY.timm, num_classes=0, qkv_bias=biased))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    with torch.inference_mode():
        (expected,) = model.forward_intermediates(
            pixels(),
            indices=[DEPTH + (layer or -1)],
            norm=layer is None,
            output_fmt="NLC",
            intermediates_only=True,
        )
        if layer is None:
            assert torch.equal(expected, model.forward_features(pixels())[:, 5:])
    difference = np.abs(features(settings(tmp_path, layer=layer)) - expected.numpy()).max()
    FIGURES.info("difference: %s", f"{difference:.1e}")
    assert difference <= TOLERANCE


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("layer", [None, -1, -2])
def test_features_are_those_of_transformers(tmp_path, monkeypatch, layer, gated):
    model = transformers_model(gated=gated)
    model.save_pretrained(tmp_path)
    if gated:
        toy = replace(TOY, timm="vit_gated_toy_patch16_dinov3")
        monkeypatch.setitem(SIZES, NAME, toy)
    with torch.inference_mode():
        if layer is None:
            tokens = model(pixels()).last_hidden_state
        else:
            tokens = output_of_block(model, layer)
    difference = np.abs(features(settings(tmp_path, layer=layer)) - tokens[:, 5:].numpy()).max()
    FIGURES.info("difference: %s", f"{difference:.1e}")
    assert difference <= TOLERANCE


def output_of_block(model: DINOv3ViTModel, layer: int) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    block = model.model.layer[layer]
    handle = block.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    model(pixels())
    handle.remove()
    return seen[0]


def test_the_report_names_every_key(tmp_path):
    transformers_model(gated=False).save_pretrained(tmp_path)
    report = load_encoder(settings(tmp_path, layer=-2)).report
    assert report.ignored == {"blocks.2": 15, "embeddings.mask_token": 1, "norm": 2}
    assert len(report.loaded) == 4 + 2 * 15


def test_a_wrong_file_is_refused_by_key(tmp_path):
    tensors = dict(transformers_model(gated=False).state_dict())
    del tensors["model.layer.1.attention.v_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=re.escape("missing: blocks.1.attn.qkv.weight")):
        load_encoder(settings(tmp_path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("patch_size", 14),
        ("hidden_size", 384),
        ("num_hidden_layers", 12),
        ("num_attention_heads", 2),
        ("num_register_tokens", 0),
        ("rope_theta", 10000.0),
        ("model_type", "dinov2"),
    ],
)
def test_a_contradicting_config_is_refused_by_field(tmp_path, field, value):
    transformers_model(gated=False).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(WeightsError, match=re.escape(f"config.json: {field} = {value!r}")):
        encoder_spec(settings(tmp_path))


def test_a_contradicting_config_of_timm_is_refused(tmp_path):
    model = timm.create_model(TOY.timm, num_classes=0)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architecture": "vit_base_patch16_dinov3"}))
    with pytest.raises(WeightsError, match="architecture = 'vit_base_patch16_dinov3'"):
        encoder_spec(settings(tmp_path))
    path.write_text(json.dumps({"architecture": f"{TOY.timm}_qkvb"}))
    assert encoder_spec(settings(tmp_path)).weights_sha256


def test_the_processor_of_transformers_squashes_as_we_do():
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, size=(90, 200, 3), dtype=np.uint8))
    size = {"height": IMAGE, "width": IMAGE}
    theirs = DINOv3ViTImageProcessor(size=size)(image, return_tensors="pt").pixel_values[0]
    ours = np.asarray(image.resize((IMAGE, IMAGE), Image.Resampling.BILINEAR)) / 255
    difference = np.abs((ours - MEAN) / STD - theirs.permute(1, 2, 0).numpy()) * STD * 255
    assert difference.max() < 1.01  # grey levels: pillow rounds between its two passes


def test_what_it_has_no_choice_of_is_refused():
    for choice in ({"gelu": "tanh"}, {"resize": "apollo"}, {"layer": -4}):
        with pytest.raises(RecipeError, match=next(iter(choice))):
            encoder_spec(settings("random", **choice))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_encoder_keeps_the_contract(precision):
    encoder = load_encoder(settings("random", precision=precision))
    assert encoder.spec.precision == precision
    assert check_encoder(encoder) == []
