"""InternVideo2: the published keys, an independent calculation, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from encoders import Runtime, check_encoder, encoder_spec, load_encoder
from encoders.base import EncoderSpec
from encoders.internvideo2 import IGNORED, SIZES, published_tensors
from encoders.internvideo2_model import InternVideo2, LayerScale, RMSNorm
from encoders.tensors import load_strictly
from schemas.errors import RecipeError, WeightsError
from schemas.recipe import EncoderSettings
from tests.internvideo2_files import (
    CELLS,
    TEXT_FAMILIES,
    TINY,
    block_shapes,
    feature_shapes,
    fill,
    make_tiny,
    other_shapes,
    save,
    tiny_tensors,
)

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(SIZES)
Floats = npt.NDArray[np.float64]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    return make_tiny(monkeypatch)


def load(name: str, weights: Path | str, **choices: Any) -> Any:
    precision = choices.pop("precision", "float32")
    settings = EncoderSettings(encoder=name, weights=str(weights), precision=precision, **choices)
    return load_encoder(settings, runtime=Runtime(device="cpu"))


def pictures(*, num_clips: int = 1, num_frames: int = 4) -> npt.NDArray[np.uint8]:
    shape = (num_clips, num_frames, 224, 224, 3)
    return np.random.default_rng(5).integers(0, 256, size=shape, dtype=np.uint8)


def on_meta(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    return {key: torch.empty(s, dtype=torch.bfloat16, device="meta") for key, s in shapes.items()}


def module_on_meta(name: str, *, num_blocks: int, frames: int) -> InternVideo2:
    size = SIZES[name]
    with torch.device("meta"):
        return InternVideo2(
            width=size.width,
            num_blocks=num_blocks,
            num_heads=size.num_heads,
            mlp_width=size.mlp_width,
            table_frames=frames,
        )


class TestThePublished1B:
    """All 569 keys with their shapes, without their 4 GB."""

    SIZE = SIZES["internvideo2-1b"]

    def keys(self) -> dict[str, tuple[int, ...]]:
        needed = feature_shapes(self.SIZE, frames=4, num_blocks=40)
        return needed | other_shapes(self.SIZE, frames=4)

    def test_keys_and_parameters_are_counted_as_published(self):
        tensors = on_meta(self.keys())
        assert len(tensors) == 569
        assert sum(t.numel() for t in tensors.values()) == 1_049_117_056
        per_block = on_meta(block_shapes(1408, 6144))
        assert sum(t.numel() for t in per_block.values()) == 25_248_768

    @pytest.mark.parametrize(("layer", "num_blocks"), [(-1, 40), (-2, 39), (-40, 1)])
    def test_what_features_need_is_loaded_and_the_listed_families_ignored(self, layer, num_blocks):
        module = module_on_meta("internvideo2-1b", num_blocks=num_blocks, frames=4)
        unused = [f"blocks.{index}" for index in range(num_blocks, 40)]
        report = load_strictly(
            module, on_meta(self.keys()), source="1b", ignored=(*IGNORED, *unused)
        )
        needed = feature_shapes(self.SIZE, frames=4, num_blocks=num_blocks)
        assert set(report.loaded) == set(needed)
        assert report.ignored == {
            "clip_decoder": 24,
            "clip_img_pos_embed": 1,
            "clip_pos_embed": 1,
            "clip_projector": 14,
            "final_clip_decoder": 4,
            "img_pos_embed": 1,
            **dict.fromkeys(unused, 13),
        }
        assert len(report.loaded) + sum(report.ignored.values()) == 569
        assert report.num_parameters == 1_444_608 + 829_312 + 25_248_768 * num_blocks

    def test_a_key_more_or_less_is_named(self):
        module = module_on_meta("internvideo2-1b", num_blocks=40, frames=4)
        keys = self.keys()
        for key in list(feature_shapes(self.SIZE, frames=4, num_blocks=40))[::40]:
            without = on_meta({k: s for k, s in keys.items() if k != key})
            with pytest.raises(WeightsError, match=f"missing: {key}$"):
                load_strictly(module, without, source="1b", ignored=IGNORED)
        more = on_meta(keys | {"blocks.40.norm1.weight": (1408,), "headless": (1,)})
        with pytest.raises(WeightsError, match=r"unknown: blocks\.40\.norm1\.weight, headless$"):
            load_strictly(module, more, source="1b", ignored=IGNORED)

    def test_a_conversion_keeps_what_any_layer_needs(self):
        text = dict.fromkeys(TEXT_FAMILIES, (1,))
        video = {f"vision_encoder.{key}": shape for key, shape in self.keys().items()}
        needed, ignored = published_tensors("internvideo2-1b", on_meta(video | text), source="1b")
        assert {key: tuple(t.shape) for key, t in needed.items()} == feature_shapes(
            self.SIZE, frames=4, num_blocks=40
        )
        assert sum(ignored.values()) + len(needed) == 569 + len(TEXT_FAMILIES)
        assert ignored["text_encoder"] == 2


@pytest.mark.parametrize(
    ("name", "num_parameters", "per_block"),
    [
        ("internvideo2-s14", 22_302_336, 1_774_080),
        ("internvideo2-b14", 87_072_000, 7_087_104),
        ("internvideo2-l14", 304_987_136, 12_595_200),
    ],
)
def test_the_distilled_sizes_have_their_published_counts(name, num_parameters, per_block):
    size = SIZES[name]
    module = module_on_meta(name, num_blocks=size.depth, frames=8)
    assert sum(value.numel() for value in module.parameters()) == num_parameters
    assert sum(value.numel() for value in module.blocks[0].parameters()) == per_block
    shapes = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    assert shapes == feature_shapes(size, frames=8, num_blocks=size.depth)


# An independent calculation, from the description of the model, in float64.


def expected_features(
    tensors: dict[str, torch.Tensor], images_BTCHW: Floats, *, num_blocks: int, gelu: str
) -> Floats:
    w = {key: value.to(torch.float64).numpy() for key, value in tensors.items()}
    B, T = images_BTCHW.shape[:2]
    patches = images_BTCHW.reshape(B, T, 3, 16, 14, 16, 14).transpose(0, 1, 3, 5, 2, 4, 6)
    kernel = w["patch_embed.proj.weight"].reshape(TINY.width, 3 * 14 * 14)
    x = patches.reshape(B, T * CELLS, 3 * 14 * 14) @ kernel.T + w["patch_embed.proj.bias"]
    x = np.concatenate([np.broadcast_to(w["cls_token"], (B, 1, TINY.width)), x], axis=1)
    x = x + table_of(w["pos_embed"], num_frames=T)
    for index in range(num_blocks):
        p = {
            key.removeprefix(f"blocks.{index}."): value
            for key, value in w.items()
            if key.startswith(f"blocks.{index}.")
        }
        x = x + p["ls1.gamma"] * attention(rms(x) * p["norm1.weight"], p)
        y = rms(x) * p["norm2.weight"] @ p["mlp.fc1.weight"].T + p["mlp.fc1.bias"]
        y = activation(y, gelu) @ p["mlp.fc2.weight"].T + p["mlp.fc2.bias"]
        x = x + p["ls2.gamma"] * y
    return x[:, 1:].reshape(B, T, 16, 16, TINY.width)


def rms(x: Floats) -> Floats:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)


def attention(x: Floats, p: dict[str, Floats]) -> Floats:
    width, heads = TINY.width, TINY.num_heads
    q, k, v = (x @ p["attn.qkv.weight"][i * width : (i + 1) * width].T for i in range(3))
    q, k = rms(q) * p["attn.q_norm.weight"], rms(k) * p["attn.k_norm.weight"]
    size = width // heads
    mixed = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = q[..., part] @ k[..., part].transpose(0, 2, 1) * size**-0.5
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed.append(scores / scores.sum(axis=-1, keepdims=True) @ v[..., part])
    return np.concatenate(mixed, axis=-1) @ p["attn.proj.weight"].T + p["attn.proj.bias"]


def activation(x: Floats, gelu: str) -> Floats:
    if gelu == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    erf: Floats = torch.special.erf(torch.from_numpy(x / np.sqrt(2))).numpy()
    return 0.5 * x * (1 + erf)


def table_of(table: Floats, *, num_frames: int) -> Floats:
    """A cell's position in between two frames is linear; beyond the first and last it is theirs."""
    cells = table[0, 1:].reshape(-1, CELLS, TINY.width)
    places = (np.arange(num_frames) + 0.5) * len(cells) / num_frames - 0.5
    places = places.clip(0, len(cells) - 1)
    low = np.floor(places).astype(int)
    high = np.minimum(low + 1, len(cells) - 1)
    part = (places - low)[:, None, None]
    stretched = cells[low] * (1 - part) + cells[high] * part
    return np.concatenate([table[:, :1], stretched.reshape(1, -1, TINY.width)], axis=1)


def normalised(frames_BTHWC: npt.NDArray[np.uint8]) -> Floats:
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return ((frames_BTHWC / 255 - mean) / std).transpose(0, 1, 4, 2, 3)


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
@pytest.mark.parametrize("layer", [-1, -2])
@pytest.mark.parametrize("num_frames", [1, 4, 8])
def test_features_are_those_of_an_independent_calculation(tiny, tmp_path, gelu, layer, num_frames):
    tensors = tiny_tensors(frames=4)
    encoder = load(tiny, save(tensors, tmp_path / "w.pt"), layer=layer, gelu=gelu)
    frames = pictures(num_frames=num_frames)
    expected = expected_features(
        tensors, normalised(frames), num_blocks=TINY.depth + 1 + layer, gelu=gelu
    )
    assert np.abs(encoder.encode(frames) - expected).max() <= 1e-5
    assert 1 < np.abs(expected).max() < 100


def test_the_table_of_positions_may_be_of_any_number_of_frames(tiny, tmp_path):
    tensors = tiny_tensors(frames=8)
    encoder = load(tiny, save(tensors, tmp_path / "w.pt"))
    assert encoder.report.note == "positions of 8 frames, interpolated for clips of another number"
    for num_frames in (3, 8, 4, 3):
        frames = pictures(num_frames=num_frames)
        expected = expected_features(tensors, normalised(frames), num_blocks=2, gelu="tanh")
        assert np.abs(encoder.encode(frames) - expected).max() <= 1e-5


def test_both_gelus_are_told_apart(tiny, tmp_path):
    path = save(tiny_tensors(), tmp_path / "w.pt")
    tanh, exact = (load(tiny, path, gelu=gelu) for gelu in ("tanh", "exact"))
    difference = np.abs(tanh.encode(pictures()) - exact.encode(pictures())).max()
    assert 1e-5 < difference < 1e-2
    assert tanh.spec.stamp() != exact.spec.stamp()
    assert load(tiny, path).spec.activation == tanh.spec.activation == "gelu tanh"


def test_under_autocast_norms_scales_and_sums_stay_float32(tiny, tmp_path):
    path = save(tiny_tensors(), tmp_path / "w.pt")
    frames = pictures(num_clips=2)
    full = load(tiny, path).encode(frames)
    half = load(tiny, path, precision="bfloat16")
    dtypes = []
    for block in half.module.blocks:
        block.register_forward_hook(lambda _m, _i, out: dtypes.append(out.dtype))
    features = half.encode(frames)
    assert set(dtypes) == {torch.float32}
    # bfloat16 has 8 bits: 1 part in 256 of the largest feature, and hardly a turn of the vectors.
    assert np.abs(features - full).max() <= np.abs(full).max() / 64
    cosine = (features * full).sum(-1) / np.linalg.norm(features, axis=-1)
    assert (cosine / np.linalg.norm(full, axis=-1)).min() > 0.9995


def test_a_norm_is_cast_before_its_weight_and_a_scale_after():
    generator = torch.Generator().manual_seed(1)
    x = (40 * torch.randn(7, 1408, generator=generator)).to(torch.bfloat16)
    norm, scale = RMSNorm(1408), LayerScale(1408)
    with torch.no_grad():
        norm.weight.normal_(generator=generator)
        scale.gamma.normal_(generator=generator)
        wide = x.to(torch.float64)
        normed = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        expected = normed.to(torch.bfloat16) * norm.weight.to(torch.bfloat16)
        assert norm(x).dtype == torch.bfloat16
        assert (norm(x) != expected).float().mean() < 1e-3  # float32 against float64 at a tie
        assert torch.equal(scale(x), (x.float() * scale.gamma).to(torch.bfloat16))


def under_prefix(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + key: value for key, value in tensors.items()}


WRAPPINGS = {
    "bare": lambda t: t,
    "model": lambda t: {"model": t, "epoch": 3, "optimizer": {"state": {}}},
    "module": lambda t: {"module": t},
    "state_dict": lambda t: {"state_dict": t},
    "one in another": lambda t: {"module": {"model": t}},
    "module. twice": lambda t: under_prefix(t, "module.module."),
    "with text": lambda t: under_prefix(t, "vision_encoder.") | fill(TEXT_FAMILIES),
    "all at once": lambda t: {
        "model": under_prefix(under_prefix(t, "vision_encoder.") | fill(TEXT_FAMILIES), "module.")
    },
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_every_published_wrapping_gives_the_same_features(tiny, tmp_path, wrapping):
    tensors = tiny_tensors()
    plain = load(tiny, save(tensors, tmp_path / "plain.pt"))
    wrapped = load(tiny, save(WRAPPINGS[wrapping](tensors), tmp_path / "wrapped.pt"))
    assert np.array_equal(plain.encode(pictures()), wrapped.encode(pictures()))
    assert plain.report.loaded == wrapped.report.loaded
    others = {"text_encoder": 2, "vision_proj": 2, "text_proj": 1, "temp": 1, "itm_head": 1}
    has_text = wrapping in ("with text", "all at once")
    assert wrapped.report.ignored == plain.report.ignored | (others if has_text else {})


def test_the_report_accounts_for_every_key(tiny, tmp_path):
    tensors = tiny_tensors() | fill({"fc_norm.weight": (64,), "head.weight": (9, 64)})
    tensors |= fill({"mae_decoder.0.head.weight": (9, 64), "mae_pos_embed": (1, 9, 64)})
    report = load(tiny, save(tensors, tmp_path / "w.pt")).report
    assert set(report.loaded) == set(feature_shapes(TINY, frames=4, num_blocks=2))
    assert set(report.ignored) == {*IGNORED, "blocks.2"}
    assert len(report.loaded) + sum(report.ignored.values()) == len(tensors)
    assert report.num_parameters == sum(tensors[key].numel() for key in report.loaded)


def test_what_is_not_the_model_is_refused(tiny, tmp_path):
    tensors = tiny_tensors()
    for changed, message in [
        ({k: v for k, v in tensors.items() if k != "blocks.1.ls2.gamma"}, "missing: blocks.1.ls2"),
        (tensors | {"audio_encoder.x": torch.ones(1)}, "unknown: audio_encoder.x"),
        (tensors | {"blocks.7.norm1.weight": torch.ones(64)}, "unknown: blocks.7.norm1.weight"),
        (tensors | {"cls_token": torch.ones(1, 1, 65)}, r"wrong: cls_token is \(1, 1, 65\), exp"),
        (tensors | {"pos_embed": torch.ones(1, 1000, 64)}, r"pos_embed is \(1, 1000, 64\)"),
        (tensors | {"pos_embed": torch.ones(1, 1, 64)}, r"pos_embed is \(1, 1, 64\)"),
        (tensors | {"pos_embed": torch.ones(1025)}, r"pos_embed is \(1025,\)"),
        (tensors | {"pos_embed": torch.ones(1, 1025, 32)}, r"wrong: pos_embed is \(1, 1025, 32\)"),
        ({k: v for k, v in tensors.items() if k != "pos_embed"}, "pos_embed is missing"),
    ]:
        with pytest.raises(WeightsError, match=message) as caught:
            load(tiny, save(changed, tmp_path / "w.pt"))
        assert caught.value.hint


def test_bfloat16_weights_are_computed_with_in_float32(tiny, tmp_path):
    halves = {key: value.to(torch.bfloat16) for key, value in tiny_tensors().items()}
    wide = {key: value.to(torch.float32) for key, value in halves.items()}
    encoders = [load(tiny, save(t, tmp_path / f"{i}.pt")) for i, t in enumerate((halves, wide))]
    assert np.array_equal(*(encoder.encode(pictures()) for encoder in encoders))
    assert {value.dtype for value in encoders[0].module.parameters()} == {torch.float32}


def test_the_contract_test_finds_nothing_wrong(tiny, tmp_path):
    assert check_encoder(load(tiny, save(tiny_tensors(), tmp_path / "w.pt"))) == []


def test_only_the_blocks_that_run_are_built(tiny):
    for layer, num_blocks in [(-1, 3), (-2, 2), (-3, 1), (None, 2)]:
        assert len(load(tiny, "random", layer=layer).module.blocks) == num_blocks


@pytest.mark.parametrize("layer", [0, 1, -41])
def test_a_layer_that_is_not_there_is_refused(layer):
    settings = EncoderSettings(encoder="internvideo2-1b", layer=layer)
    with pytest.raises(RecipeError, match=f"layer = {layer}: internvideo2-1b has the layers -40"):
        encoder_spec(settings)


def test_random_weights_are_the_same_each_time_and_leave_the_generator_alone(tiny):
    state = torch.random.get_rng_state()
    first, second = load(tiny, "random"), load(tiny, "random")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.array_equal(first.encode(pictures()), second.encode(pictures()))
    assert first.spec.weights_sha256 == "random"
    assert first.report.note == "random weights from a seed"


def test_the_small_distilled_model_runs_in_full_size():
    encoder = load("internvideo2-s14", "random", layer=-1)
    assert sum(value.numel() for value in encoder.module.parameters()) == 22_302_336
    features = encoder.encode(pictures(num_frames=8))
    assert features.shape == (1, 8, 16, 16, 384)
    assert np.isfinite(features).all()
    assert encoder.report.num_parameters == 22_302_336


def test_choices_that_change_features_change_the_stamp():
    def spec_of(**choices: Any) -> EncoderSpec:
        return encoder_spec(EncoderSettings(encoder="internvideo2-1b", **choices))

    stamps = [
        spec_of(**choices).stamp()
        for choices in (
            {},
            {"layer": -1},
            {"gelu": "exact"},
            {"resize": "fast"},
            {"resize": "apollo"},
            {"precision": "bfloat16"},
            {"weights": "random"},
        )
    ]
    assert len({str(stamp) for stamp in stamps}) == len(stamps)
    assert spec_of(layer=-2, gelu="tanh", resize="own").stamp() == stamps[0]
    assert spec_of(resize="apollo").resize.background == (123, 116, 103)
    assert spec_of().grid == (16, 16)
    assert spec_of().frames_per_clip is None
    assert spec_of().weights_sha256 == ""
    assert "download" not in spec_of().weights_hint  # gated


def test_every_size_is_an_encoder_that_needs_no_torch_to_be_described(tmp_path):
    program = (
        "import sys; from encoders import encoder_spec\n"
        f"print(*(encoder_spec(name).dim for name in {NAMES}))\n"
        "print({'torch', 'timm', 'transformers', 'open_clip'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == ["1408 768 1024 384", "set()"]


class Easy(dict):
    """As EasyDict in the file of 6B: a dict with a class of its own."""


class Trap:
    """Runs a command when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)


@pytest.mark.parametrize("new_format", [True, False])
def test_a_pickle_of_other_things_is_refused_and_runs_nothing(tiny, tmp_path, new_format):
    canary = tmp_path / "canary"
    easy = {"model": tiny_tensors(), "config": Easy(epochs=3)}
    for value, name in [
        (easy, "Easy"),
        ({"model": tiny_tensors(), "config": Trap(canary)}, "mkdir"),
    ]:
        path = save(value, tmp_path / "w.pt", _use_new_zipfile_serialization=new_format)
        with pytest.raises(WeightsError, match=rf"holds \S*{name} beside tensors") as caught:
            load(tiny, path)
        assert "safetensors" in caught.value.hint
        assert "\n" not in caught.value.message
    assert not canary.exists()
    torch.load(path, weights_only=False)
    assert canary.exists()
