"""V-JEPA 2: the table, parity with transformers, frames in pairs, the processor's crop."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import VJEPA2Config, VJEPA2Model, VJEPA2VideoProcessor

from encoders import check_encoder, encoder_spec, load_encoder, registry
from encoders.vjepa2 import SIZES
from encoders.vjepa2_model import MEAN, STD
from schemas.errors import RecipeError, WeightsError
from schemas.recipe import EncoderSettings
from schemas.resize import ResizeSpec

NAME, WIDTH, DEPTH, HEADS, IMAGE = "vjepa2-toy-16-48", 96, 3, 4, 48
TOLERANCE = 1e-5
FIGURES = logging.getLogger("figures")
"""pytest -rP --log-level=INFO shows them."""
TOY = replace(SIZES["vjepa2-l-16-256"], image=IMAGE, width=WIDTH, depth=DEPTH, heads=HEADS)


@pytest.fixture(autouse=True)
def toy_size(monkeypatch):
    monkeypatch.setitem(SIZES, NAME, TOY)
    monkeypatch.setitem(registry._BUILT_IN, NAME, "encoders.vjepa2")


@pytest.fixture(scope="module")
def reference() -> VJEPA2Model:
    config = VJEPA2Config(
        crop_size=IMAGE,
        hidden_size=WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        pred_hidden_size=48,
        pred_num_hidden_layers=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = VJEPA2Model(config).eval()
        for parameter in model.parameters():
            scale = 0.3 if parameter.ndim < 2 else 0.6 / parameter[0].numel() ** 0.5
            parameter.data.normal_().mul_(scale)
    return model


@pytest.fixture
def folder(tmp_path, reference) -> Path:
    reference.save_pretrained(tmp_path)
    return tmp_path


def frames(num_frames: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, size=(2, num_frames, IMAGE, IMAGE, 3), dtype=np.uint8)


def pixels(num_frames: int) -> torch.Tensor:
    videos = torch.from_numpy(frames(num_frames)).permute(0, 1, 4, 2, 3) / 255
    return (videos - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def settings(weights: Path | str, **choices: object) -> EncoderSettings:
    return EncoderSettings(encoder=NAME, weights=str(weights), **choices)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vjepa2-l-16-256", 0.326e9),
        ("vjepa2-h-16-256", 0.654e9),
        ("vjepa2-g-16-256", 1.034e9),
        ("vjepa2-g-16-384", 1.034e9),
    ],
)
def test_a_row_of_the_table_is_a_model_of_the_published_size(name, parameters):
    size = SIZES[name]
    config = VJEPA2Config(
        crop_size=size.image,
        hidden_size=size.width,
        num_hidden_layers=size.depth,
        num_attention_heads=size.heads,
        mlp_ratio=(size.mlp_width or 4 * size.width) / size.width,
    )
    with torch.device("meta"):
        model = VJEPA2Model(config)
    assert model.encoder.embeddings.patch_embeddings.proj.kernel_size == (2, 16, 16)
    assert size.grid == (size.image // 16, size.image // 16)
    num_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert size.hub.size_bytes == pytest.approx(num_bytes, rel=0.01)
    assert num_bytes / 4 == pytest.approx(parameters, rel=0.01)
    processor = VJEPA2VideoProcessor(crop_size=size.image)
    assert encoder_spec(name).resize == ResizeSpec(
        library="pillow",
        filter="bilinear",
        fit="crop",
        short_side=processor.size.shortest_edge,
    )


def test_the_mlp_of_the_giant_is_as_wide_as_published():
    assert int(1408 * (6144 / 1408)) == 6144 == int(1408 * 4.363636363636363)


def test_the_spec_of_vjepa2_large():
    spec = encoder_spec("vjepa2-l-16-256")
    assert (spec.width, spec.grid, spec.dim) == (256, (16, 16), 1024)
    assert (spec.frames_per_clip, spec.temporal_stride) == (None, 2)
    assert spec.num_grids(4) == 2
    assert spec.layer == "block 24 of 24, final norm"
    assert spec.stamp()["resize"] == {
        "library": "pillow",
        "filter": "bilinear",
        "fit": "crop",
        "short_side": 292,
    }


@pytest.mark.parametrize("num_frames", [2, 4, 8])
def test_features_are_those_of_transformers(folder, reference, num_frames):
    with torch.inference_mode():
        expected = reference.get_vision_features(pixels(num_frames)).numpy()
    found = load_encoder(settings(folder)).encode(frames(num_frames))
    assert found.shape == (2, num_frames // 2, 3, 3, WIDTH)
    difference = np.abs(found.reshape(expected.shape) - expected).max()
    FIGURES.info("difference: %s", f"{difference:.1e}")
    assert difference <= TOLERANCE


@pytest.mark.parametrize("layer", [-1, -2])
def test_a_layer_that_is_named_is_a_blocks_own_output(folder, reference, layer):
    with torch.inference_mode():
        states = reference(pixels(4), skip_predictor=True, output_hidden_states=True).hidden_states
    assert len(states) == DEPTH + 1
    found = load_encoder(settings(folder, layer=layer)).encode(frames(4))
    assert np.abs(found.reshape(2, -1, WIDTH) - states[layer].numpy()).max() <= TOLERANCE


def test_the_last_of_an_odd_number_of_frames_is_seen_twice(folder):
    encoder = load_encoder(settings(folder))
    four = frames(4)
    four[:, 3] = four[:, 2]
    # Not to the bit: where frames lie in memory chooses the kernel of the convolution.
    difference = np.abs(encoder.encode(four[:, :3]) - encoder.encode(four)).max()
    assert difference <= TOLERANCE


def test_the_report_names_every_key(folder):
    report = load_encoder(settings(folder, layer=-2)).report
    assert len(report.loaded) == 2 + 2 * 16
    assert report.ignored == {
        "layer.2": 16,
        "layernorm": 2,
        "predictor": num_predictor_keys(folder),
    }


def num_predictor_keys(folder: Path) -> int:
    return sum(key.startswith("predictor.") for key in load_file(folder / "model.safetensors"))


def test_a_wrong_file_is_refused_by_key(tmp_path, reference):
    tensors = dict(reference.state_dict())
    del tensors["encoder.layer.0.attention.key.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=re.escape("missing: layer.0.attention.key.bias")):
        load_encoder(settings(tmp_path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("crop_size", 64),
        ("patch_size", 14),
        ("tubelet_size", 4),
        ("hidden_size", 64),
        ("num_hidden_layers", 4),
        ("num_attention_heads", 2),
        ("model_type", "vjepa"),
    ],
)
def test_a_contradicting_config_is_refused_by_field(folder, field, value):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(WeightsError, match=re.escape(f"config.json: {field} = {value!r}")):
        encoder_spec(settings(folder))


def test_the_processor_cuts_as_the_spec_says():
    rng = np.random.default_rng(0)
    video = rng.integers(0, 256, size=(2, 90, 201, 3), dtype=np.uint8)
    processor = VJEPA2VideoProcessor(crop_size=IMAGE)
    theirs = processor(torch.from_numpy(video).permute(0, 3, 1, 2), return_tensors="pt")
    short = encoder_spec(NAME).resize.short_side
    width = int(201 * short / 90)
    left, top = round((width - IMAGE) / 2), round((short - IMAGE) / 2)
    cut = [
        np.asarray(
            Image.fromarray(frame)
            .resize((width, short), Image.Resampling.BILINEAR)
            .crop((left, top, left + IMAGE, top + IMAGE))
        )
        for frame in video
    ]
    ours = (np.stack(cut) / 255 - MEAN) / STD
    found = theirs.pixel_values_videos[0].permute(0, 2, 3, 1).numpy()
    assert np.abs((ours - found) * STD * 255).max() < 1.01  # grey levels


def test_what_it_has_no_choice_of_is_refused():
    for choice in ({"gelu": "tanh"}, {"resize": "apollo"}, {"layer": -4}):
        with pytest.raises(RecipeError, match=next(iter(choice))):
            encoder_spec(settings("random", **choice))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_encoder_keeps_the_contract(precision):
    encoder = load_encoder(settings("random", precision=precision))
    assert encoder.spec.precision == precision
    assert check_encoder(encoder) == []
