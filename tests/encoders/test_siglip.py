"""SigLIP: the table against open_clip, parity with open_clip and transformers, every layout."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer, _create_vision_transformer
from transformers import (
    BaseImageProcessor,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipImageProcessorPil,
    SiglipModel,
    SiglipVisionModel,
)

from encoders import check_encoder, encoder_spec, list_encoders, load_encoder, registry
from encoders.base import Runtime
from encoders.siglip_sizes import FILES, SIZES, Size
from encoders.weights import HubFiles
from schemas.errors import RecipeError, WeightsError
from schemas.recipe import EncoderSettings, Recipe
from schemas.resize import ResizeSpec

IMAGE, PATCH, WIDTH, DEPTH, HEADS, MLP = 62, 14, 64, 3, 4, 96
"""62 is no multiple of 14: 4 x 4 patches, 56 pixels are read."""
NAME = "siglip-toy-14-62"
TOLERANCE = 1e-5
FIGURES = logging.getLogger("figures")
"""pytest -rP --log-level=INFO shows them."""
PICTURES = ((200, 90), (51, 133), (62, 62))
"""(width, height)."""


@register_model
def vit_toy_patch14_siglip_62(pretrained: bool = False, **kwargs) -> VisionTransformer:
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
        "vit_toy_patch14_siglip_62", pretrained=pretrained, **(arguments | kwargs)
    )


TOY = Size(
    open_clip="ViT-toy-14-SigLIP-62",
    timm="vit_toy_patch14_siglip_62",
    image=IMAGE,
    patch=PATCH,
    width=WIDTH,
    depth=DEPTH,
    heads=HEADS,
    gelu="tanh",
    hub=HubFiles(repo="timm/toy", files=FILES[:2], size_bytes=1, licence="Apache-2.0"),
)


@pytest.fixture(autouse=True)
def toy_size(monkeypatch):
    monkeypatch.setitem(SIZES, NAME, TOY)
    monkeypatch.setitem(registry._BUILT_IN, NAME, "encoders.siglip")


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> torch.nn.Module:
    """The toy, made by open_clip with its text tower; every tensor is random, biases too."""
    folder = tmp_path_factory.mktemp("configs")
    config = {
        "embed_dim": WIDTH,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {
            "image_size": IMAGE,
            "timm_model_name": TOY.timm,
            "timm_model_pretrained": False,
            "timm_pool": "map",
            "timm_proj": "none",
        },
        "text_cfg": {"context_length": 8, "vocab_size": 32, "width": 32, "heads": 2, "layers": 1},
    }
    (folder / f"{TOY.open_clip}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = open_clip.create_model(TOY.open_clip, pretrained=None).eval()
        randomise(model)
    return model


def randomise(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        scale = 0.3 if parameter.ndim < 2 else 0.6 / parameter[0].numel() ** 0.5
        parameter.data.normal_().mul_(scale)


@pytest.fixture
def open_clip_folder(tmp_path, reference) -> Path:
    save_file(reference.state_dict(), tmp_path / "open_clip_model.safetensors")
    vision = {"image_size": IMAGE, "timm_model_name": TOY.timm}
    config = {"model_cfg": {"vision_cfg": vision}, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    return tmp_path


VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "image_size": IMAGE,
    "patch_size": PATCH,
}
TEXT = VISION | {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2, "projection_size": WIDTH}


@pytest.fixture(scope="module")
def siglip_model() -> SiglipModel:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = SiglipModel(SiglipConfig(vision_config=VISION, text_config=TEXT)).eval()
        randomise(model)
    return model


@pytest.fixture
def transformers_folder(tmp_path, siglip_model) -> Path:
    siglip_model.save_pretrained(tmp_path)
    return tmp_path


def pictures() -> Iterator[Image.Image]:
    rng = np.random.default_rng(0)
    for width, height in PICTURES:
        coarse = rng.integers(0, 256, size=(height // 4, width // 4, 3), dtype=np.uint8)
        yield Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)


def frames_of(images: Iterator[Image.Image], resize: ResizeSpec) -> np.ndarray:
    """(1, T, H, W, 3), resized as the spec says."""
    assert (resize.library, resize.filter, resize.fit) == ("pillow", "bicubic", "squash")
    size = (IMAGE, IMAGE)
    return np.stack([np.asarray(i.resize(size, Image.Resampling.BICUBIC)) for i in images])[None]


def settings(where: Path | str, **choices: object) -> EncoderSettings:
    return EncoderSettings(encoder=NAME, weights=str(where), **choices)


def features(chosen: EncoderSettings) -> np.ndarray:
    """(T, h, w, D) of the pictures."""
    encoder = load_encoder(chosen)
    return encoder.encode(frames_of(pictures(), encoder.spec.resize))[0]


def open_clip_features(model: torch.nn.Module, layer: int) -> np.ndarray:
    """As open_clip computes them, with open_clip's own preprocessing of SigLIP."""
    cfg = open_clip.get_pretrained_cfg("ViT-SO400M-14-SigLIP-384", "webli")
    transform = open_clip.image_transform(
        IMAGE,
        is_train=False,
        mean=cfg["mean"],
        std=cfg["std"],
        interpolation=cfg["interpolation"],
        resize_mode=cfg["resize_mode"],
    )
    with torch.inference_mode():
        out = model.visual.forward_intermediates(
            torch.stack([transform(image) for image in pictures()]),
            indices=[DEPTH + layer],
            normalize_intermediates=False,
            intermediates_only=True,
            output_fmt="NLC",
        )
    return out["image_intermediates"][0].numpy().reshape(len(PICTURES), 4, 4, WIDTH)


def transformers_pixels(processor: type[BaseImageProcessor]) -> torch.Tensor:
    size = {"height": IMAGE, "width": IMAGE}
    return processor(size=size)(list(pictures()), return_tensors="pt").pixel_values


def transformers_features(
    model: SiglipVisionModel, layer: int, *, processor: type = SiglipImageProcessorPil
) -> np.ndarray:
    """As transformers computes them, with its own preprocessing."""
    with torch.inference_mode():
        states = model(transformers_pixels(processor), output_hidden_states=True).hidden_states
    return states[layer].numpy().reshape(len(PICTURES), 4, 4, WIDTH)


def set_gelu(model: torch.nn.Module, gelu: str) -> None:
    for block in model.visual.trunk.blocks:
        block.mlp.act = torch.nn.GELU(approximate="tanh" if gelu == "tanh" else "none")


@pytest.mark.parametrize("name", sorted(SIZES))
def test_a_row_of_the_table_says_what_open_clip_builds(name):
    size = SIZES[name]
    quiet = logging.getLogger()
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with torch.device("meta"):
            model = open_clip.create_model(size.open_clip, device="meta", load_weights=False)
    finally:
        quiet.setLevel(level)
    trunk = model.visual.trunk
    attention = trunk.blocks[0].attn
    act = trunk.blocks[0].mlp.act
    tanh = type(act).__name__ == "GELUTanh" or getattr(act, "approximate", "") == "tanh"
    vision = open_clip.get_model_config(size.open_clip)["vision_cfg"]
    assert (vision["timm_model_name"], vision["image_size"]) == (size.timm, size.image)
    assert trunk.patch_embed.img_size == (size.image, size.image)
    assert trunk.patch_embed.patch_size == (size.patch, size.patch)
    assert trunk.patch_embed.grid_size == size.grid
    assert (trunk.embed_dim, len(trunk.blocks), attention.num_heads) == (
        size.width,
        size.depth,
        size.heads,
    )
    assert trunk.num_prefix_tokens == 0
    assert size.gelu == ("tanh" if tanh else "exact")
    hub = open_clip.get_pretrained_cfg(size.open_clip, "webli")["hf_hub"]
    assert size.hub.repo == hub.rstrip("/")
    num_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert size.hub.size_bytes == pytest.approx(num_bytes, rel=0.01)


def test_every_fixed_size_of_open_clip_is_in_the_table():
    known = {name for name in open_clip.list_models() if "SigLIP" in name and "i18n" not in name}
    assert {size.open_clip for size in SIZES.values()} - {TOY.open_clip} == known - {TOY.open_clip}
    assert set(SIZES) - {NAME} <= set(list_encoders())


def test_the_tower_of_so400m_has_the_parameters_that_are_published():
    with torch.device("meta"):
        trunk = timm.create_model("vit_so400m_patch14_siglip_384", num_classes=0)
    assert sum(parameter.numel() for parameter in trunk.parameters()) == 428_225_600


def test_the_spec_of_apollos_tower():
    spec = encoder_spec("siglip-so400m-14-384")
    assert (spec.width, spec.height, spec.grid, spec.dim) == (384, 384, (27, 27), 1152)
    assert spec.stamp() == {
        "name": "siglip-so400m-14-384",
        "input": [384, 384],
        "grid": [27, 27],
        "dim": 1152,
        "architecture": "ViT-SO400M-14-SigLIP-384: 27 blocks of 1152, 16 heads, patch 14",
        "preprocessing": "/ 255, mean 0.5, std 0.5",
        "weights_sha256": "",
        "resize": {"library": "pillow"},
        "layer": "block 26 of 27, no norm",
        "activation": "gelu exact",
        "precision": "float32",
    }
    assert "download 3.5 GB from timm/ViT-SO400M-14-SigLIP-384" in spec.weights_hint


def test_ways_to_resize():
    def resize(way: str) -> ResizeSpec:
        return encoder_spec(EncoderSettings(encoder="siglip2-b-16-224", resize=way)).resize

    assert resize("") == resize("own") == ResizeSpec(library="pillow")
    assert resize("fast") == ResizeSpec()
    assert resize("apollo") == ResizeSpec(library="pillow", fit="pad", background=(127, 127, 127))


def test_no_spec_needs_torch():
    program = (
        "import sys, encoders\n"
        "for name in encoders.list_encoders(): encoders.encoder_spec(name)\n"
        "print(*{'torch', 'timm', 'open_clip', 'transformers'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == []


@pytest.mark.parametrize("layer", [-1, -2, -3])
@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_features_are_those_of_open_clip(open_clip_folder, reference, layer, gelu):
    set_gelu(reference, gelu)
    expected = open_clip_features(reference, layer)
    found = features(settings(open_clip_folder, layer=layer, gelu=gelu))
    difference = np.abs(found - expected).max()
    FIGURES.info("difference: %s", f"{difference:.1e}")
    assert difference <= TOLERANCE


@pytest.mark.parametrize("layer", [-1, -2])
def test_features_are_those_of_transformers(transformers_folder, siglip_model, layer):
    expected = transformers_features(siglip_model.vision_model, layer)
    found = features(settings(transformers_folder, layer=layer))
    difference = np.abs(found - expected).max()
    FIGURES.info("difference: %s", f"{difference:.1e}")
    assert difference <= TOLERANCE


def test_features_are_those_of_transformers_with_the_exact_gelu(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = SiglipConfig(vision_config=VISION | {"hidden_act": "gelu"}, text_config=TEXT)
        model = SiglipModel(config).eval()
        randomise(model)
    model.save_pretrained(tmp_path)
    assert encoder_spec(settings(tmp_path)).activation == "gelu exact"
    difference = np.abs(
        features(settings(tmp_path)) - transformers_features(model.vision_model, -2)
    ).max()
    FIGURES.info("difference: %s", f"{difference:.1e}")
    assert difference <= TOLERANCE


def test_the_torchvision_processor_of_transformers_is_a_grey_level_away(
    transformers_folder, siglip_model
):
    pil, torchvision = map(transformers_pixels, (SiglipImageProcessorPil, SiglipImageProcessor))
    levels = (pil - torchvision).abs().max() * 127.5
    expected = transformers_features(siglip_model.vision_model, -2, processor=SiglipImageProcessor)
    difference = np.abs(features(settings(transformers_folder)) - expected).max()
    FIGURES.info("difference: %s", f"{difference:.1e} from {levels:.2f} grey levels")
    assert levels == pytest.approx(1, abs=1e-3)
    assert difference < 1e-2


def test_the_two_gelus_are_not_the_same(open_clip_folder):
    tanh, exact = (features(settings(open_clip_folder, gelu=g)) for g in ("tanh", "exact"))
    assert 1e-5 < np.abs(tanh - exact).max() < 1e-2


def test_the_default_layer_is_the_one_before_the_last(open_clip_folder):
    default, last, named = (
        features(settings(open_clip_folder, layer=layer)) for layer in (None, -1, -2)
    )
    assert np.array_equal(default, named)
    assert np.abs(default - last).max() > 0.1


def test_the_last_pixels_are_not_read(open_clip_folder):
    encoder = load_encoder(settings(open_clip_folder))
    frames = np.random.default_rng(0).integers(0, 256, (1, 1, IMAGE, IMAGE, 3), dtype=np.uint8)
    before = encoder.encode(frames)
    frames[:, :, 56:] = 0
    frames[:, :, :, 56:] = 0
    assert np.array_equal(encoder.encode(frames), before)
    frames[:, :, 55] = 0
    assert not np.array_equal(encoder.encode(frames), before)


def save_layouts(reference: torch.nn.Module, folder: Path) -> dict[str, Path]:
    """The same weights as every publisher would write them."""
    whole = reference.state_dict()
    trunk = {k.removeprefix("visual.trunk."): v for k, v in whole.items() if "visual.trunk." in k}
    files = {name: folder / name for name in ("whole.safetensors", "trunk.safetensors", "old.bin")}
    save_file(whole, files["whole.safetensors"])
    save_file(trunk, files["trunk.safetensors"])
    torch.save({"state_dict": {f"module.{k}": v for k, v in whole.items()}}, files["old.bin"])
    files["older.bin"] = folder / "older.bin"
    torch.save(whole, files["older.bin"], _use_new_zipfile_serialization=False)
    return files


def test_every_layout_of_timm_and_open_clip_gives_the_same_features(tmp_path, reference):
    found = [features(settings(file)) for file in save_layouts(reference, tmp_path).values()]
    assert len(found) == 4
    assert all(np.array_equal(one, found[0]) for one in found)


def test_transformers_layouts_give_the_same_features(tmp_path, siglip_model):
    kinds = {name: tmp_path / name for name in ("both", "vision", "parts", "pickle")}
    siglip_model.save_pretrained(kinds["both"])
    siglip_model.vision_model.save_pretrained(kinds["vision"])
    siglip_model.save_pretrained(kinds["parts"], max_shard_size="200KB")
    kinds["pickle"].mkdir()
    torch.save(siglip_model.state_dict(), kinds["pickle"] / "pytorch_model.bin")
    assert len(list(kinds["parts"].glob("*.safetensors"))) > 1
    prefixes = {
        kind: {key.partition(".")[0] for key in load_file(kinds[kind] / "model.safetensors")}
        for kind in ("both", "vision")
    }
    assert prefixes["both"] == {"vision_model", "text_model", "logit_scale", "logit_bias"}
    assert prefixes["vision"] == {"embeddings", "encoder", "post_layernorm", "head"}
    assert {encoder_spec(settings(folder)).activation for folder in kinds.values()} == {"gelu tanh"}
    found = [features(settings(folder)) for folder in kinds.values()]
    assert all(np.array_equal(one, found[0]) for one in found)


def test_the_report_names_every_key(open_clip_folder, transformers_folder):
    report = load_encoder(settings(open_clip_folder / FILES[0])).report
    assert len(report.loaded) == 3 + 12 * (DEPTH - 1)
    assert report.ignored == {
        "attn_pool": 13,
        "blocks.2": 12,
        "logit_bias": 1,
        "logit_scale": 1,
        "norm": 2,
        "text": 17,
    }
    report = load_encoder(settings(transformers_folder / "model.safetensors")).report
    assert len(report.loaded) == 3 + 12 * (DEPTH - 1)
    assert report.ignored == {
        "blocks.2": 12,
        "head": 11,
        "logit_bias": 1,
        "logit_scale": 1,
        "norm": 2,
        "text_model": 54,
    }


def toy_with(monkeypatch, **changes: object) -> None:
    monkeypatch.setitem(SIZES, NAME, replace(TOY, **changes))


def test_the_gelu_is_that_of_the_librarys_layout(
    monkeypatch, tmp_path, reference, transformers_folder
):
    # timm runs these weights with another GELU than transformers does.
    toy_with(monkeypatch, gelu="exact")
    files = save_layouts(reference, tmp_path).values()
    lone = tmp_path / "lone" / "model.safetensors"
    lone.parent.mkdir()
    (transformers_folder / "model.safetensors").rename(lone)
    (tmp_path / "config.json").unlink()
    activations = [encoder_spec(settings(file)).activation for file in (*files, lone)]
    assert activations == ["gelu exact"] * 4 + ["gelu tanh"]
    assert encoder_spec(settings("")).activation == "gelu exact"
    assert encoder_spec(settings("random")).activation == "gelu exact"
    assert encoder_spec(settings(lone, gelu="exact")).activation == "gelu exact"
    assert encoder_spec(settings(lone)).stamp()["activation"] == "gelu tanh"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_size", 56),
        ("patch_size", 16),
        ("hidden_size", 128),
        ("num_hidden_layers", 4),
        ("num_attention_heads", 2),
        ("hidden_act", "relu"),
        ("layer_norm_eps", 1e-5),
    ],
)
def test_a_contradicting_config_of_transformers_is_refused_by_field(
    transformers_folder, field, value
):
    path = transformers_folder / "config.json"
    config = json.loads(path.read_text())
    config["vision_config"][field] = value
    path.write_text(json.dumps(config))
    message = f"config.json: vision_config.{field} = {value!r}, and {NAME} has "
    with pytest.raises(WeightsError, match=re.escape(message)):
        encoder_spec(settings(transformers_folder))


def test_a_config_of_transformers_that_leaves_out_the_defaults_is_read_with_them(
    transformers_folder,
):
    config = {"model_type": "siglip", "vision_config": {"model_type": "siglip_vision_model"}}
    (transformers_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=r"vision_config\.image_size = 224, and .* has 62"):
        encoder_spec(settings(transformers_folder))


@pytest.mark.parametrize(
    ("field", "value"), [("image_size", 384), ("timm_model_name", "vit_base_patch16_siglip_62")]
)
def test_a_contradicting_config_of_open_clip_is_refused_by_field(open_clip_folder, field, value):
    path = open_clip_folder / "open_clip_config.json"
    config = json.loads(path.read_text())
    config["model_cfg"]["vision_cfg"][field] = value
    path.write_text(json.dumps(config))
    message = f"open_clip_config.json: model_cfg.vision_cfg.{field} = {value!r}, and {NAME} has "
    with pytest.raises(WeightsError, match=re.escape(message)):
        encoder_spec(settings(open_clip_folder))


def test_a_contradicting_config_of_timm_is_refused(tmp_path, reference):
    file = save_layouts(reference, tmp_path)["trunk.safetensors"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architecture": "vit_base_patch16_siglip_224"}))
    with pytest.raises(WeightsError, match="architecture = 'vit_base_patch16_siglip_224', and"):
        encoder_spec(settings(file))
    path.write_text(json.dumps({"architecture": TOY.timm}))
    assert encoder_spec(settings(file)).weights_sha256


def test_a_config_of_another_kind_of_model_is_refused(transformers_folder):
    (transformers_folder / "config.json").write_text(json.dumps({"model_type": "clip"}))
    with pytest.raises(WeightsError, match="model_type = 'clip' is no SigLIP"):
        encoder_spec(settings(transformers_folder))


def test_weights_that_are_published_under_another_picture_size_are_taken(
    monkeypatch, open_clip_folder, transformers_folder
):
    toy_with(monkeypatch, image=58, timm="vit_toy_patch14_siglip_58", same_weights=(62,))
    for file in (open_clip_folder / FILES[0], transformers_folder / "model.safetensors"):
        assert encoder_spec(settings(file)).weights_sha256


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("visual.trunk.blocks.1.attn.qkv.bias"), "missing: blocks.1.attn.qkv.bias"),
        (lambda t: t.update(extra=torch.zeros(1)), "unknown: extra"),
        (
            lambda t: t.update({"visual.trunk.blocks.3.norm1.weight": torch.zeros(WIDTH)}),
            "unknown: blocks.3.norm1.weight",
        ),
        (
            lambda t: t.update({"visual.trunk.pos_embed": torch.zeros(1, 9, WIDTH)}),
            "wrong: pos_embed is (1, 9, 64), expected (1, 16, 64)",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_key(tmp_path, reference, change, message):
    tensors = dict(reference.state_dict())
    change(tensors)
    save_file(tensors, tmp_path / "open_clip_model.safetensors")
    with pytest.raises(WeightsError, match=re.escape(message)):
        load_encoder(settings(tmp_path))


def test_a_file_of_transformers_without_one_projection_is_refused_by_key(tmp_path, siglip_model):
    tensors = dict(siglip_model.state_dict())
    del tensors["vision_model.encoder.layers.0.self_attn.k_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=re.escape("missing: blocks.0.attn.qkv.weight")):
        load_encoder(settings(tmp_path))


def test_a_file_of_another_model_is_refused(tmp_path):
    save_file({"vision_encoder.cls_token": torch.zeros(1, 1, 8)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"missing: blocks\.0\.attn\.proj\.bias.* and 22 more"):
        load_encoder(settings(tmp_path))


def test_a_damaged_file_is_refused_before_torch_reads_it(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\xff" * 64)
    with pytest.raises(WeightsError, match="not a safetensors file"):
        encoder_spec(settings(tmp_path))
    file.write_bytes((8).to_bytes(8, "little") + b"not json")
    with pytest.raises(WeightsError, match="not a safetensors file"):
        encoder_spec(settings(tmp_path))


def test_a_layer_that_is_not_there_is_refused():
    for layer in (0, 1, -DEPTH - 1):
        with pytest.raises(RecipeError, match=f"layer = {layer}: {NAME} has 3 blocks"):
            encoder_spec(settings("random", layer=layer))


def test_random_weights_are_the_same_each_time_and_leave_the_generator_alone():
    torch.manual_seed(5)
    first = features(settings("random"))
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.rand(1) == after
    assert np.array_equal(features(settings("random")), first)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_encoder_keeps_the_contract(open_clip_folder, precision):
    chosen = settings(open_clip_folder, precision=precision)
    encoder = load_encoder(chosen, runtime=Runtime(max_batch=2))
    assert encoder.spec.precision == precision
    assert check_encoder(encoder) == []


def test_half_the_precision_is_close(open_clip_folder):
    whole, half = (
        features(settings(open_clip_folder, precision=precision))
        for precision in ("float32", "bfloat16")
    )
    cosines = (whole * half).sum(-1) / np.linalg.norm(whole, axis=-1)
    cosines /= np.linalg.norm(half, axis=-1)
    assert not np.array_equal(whole, half)
    assert cosines.min() > 0.999


def test_weights_from_the_hub_are_asked_for_by_repository_and_file(monkeypatch, open_clip_folder):
    asked: list[tuple[str, str]] = []

    def download(repo: str, name: str, *, local_files_only: bool = False) -> str:
        asked.append((repo, name))
        return str(open_clip_folder / name)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    found = features(settings("hub"))
    assert set(asked) == {("timm/toy", "open_clip_model.safetensors")}
    assert np.array_equal(found, features(settings(open_clip_folder)))


def test_the_recipe_siglip2():
    recipe = Recipe.load("siglip2")
    assert (recipe.sampling.fps, recipe.sampling.frames_per_clip) == (2.0, 4)
    assert list(recipe.streams) == ["siglip2"]
    spec = encoder_spec(recipe.streams["siglip2"])
    assert (spec.grid, spec.dim, spec.layer) == ((24, 24), 1152, "block 26 of 27, no norm")
