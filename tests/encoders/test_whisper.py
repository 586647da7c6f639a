"""Whisper's encoder at a tiny random size, through the path that real weights take."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoders import (
    Runtime,
    check_sound_encoder,
    encoder_spec,
    list_sound_encoders,
    load_sound_encoder,
    sound_spec,
    whisper,
)
from encoders.log_mel import log_mel
from encoders.registry import require_weights
from encoders.whisper import SIZES, WhisperSize
from schemas.errors import RecipeError, UsageError, WeightsError
from schemas.recipe import EncoderSettings

NAME = "whisper-tiny"
TINY = WhisperSize(dim=32, num_layers=2, num_heads=2, file_bytes=100_000)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, NAME, TINY)


@pytest.fixture(scope="module")
def model() -> Any:
    """All of Whisper, decoder included, with weights that are not those of a fresh module."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = WhisperForConditionalGeneration(
            WhisperConfig(
                d_model=TINY.dim,
                encoder_layers=TINY.num_layers,
                encoder_attention_heads=TINY.num_heads,
                encoder_ffn_dim=4 * TINY.dim,
                decoder_layers=1,
                decoder_attention_heads=2,
                decoder_ffn_dim=32,
                vocab_size=64,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=3,
            )
        )
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it comes from the hub."""
    folder = tmp_path_factory.mktemp("whisper")
    model.save_pretrained(folder)
    return folder


def settings(weights: Path | str = "", **choices: Any) -> EncoderSettings:
    return EncoderSettings(encoder=NAME, weights=str(weights), **choices)


def sounds(count: int = 2) -> np.ndarray:
    rng = np.random.default_rng(2)
    return rng.uniform(-0.5, 0.5, size=(count, 30 * 16000)).astype(np.float32)


def test_the_features_are_those_of_transformers_own_model(folder: Path, model: Any) -> None:
    encoder = load_sound_encoder(settings(folder))
    samples = sounds()
    found = encoder.encode(samples)
    assert (found.shape, found.dtype) == ((2, 30, 50, 32), np.float32)
    with torch.inference_mode():
        mels = log_mel(torch.from_numpy(samples), num_mels=80)
        expected = model.model.encoder(mels).last_hidden_state.numpy()
    np.testing.assert_allclose(found.reshape(2, 1500, 32), expected, rtol=0, atol=1e-5)


def test_from_sound_to_features_as_transformers_does_it(folder: Path) -> None:
    from transformers import WhisperFeatureExtractor, WhisperModel

    samples = sounds(1)
    mels = WhisperFeatureExtractor()(samples[0], sampling_rate=16000, return_tensors="pt")
    with torch.inference_mode():
        reference = WhisperModel.from_pretrained(folder).eval()
        expected = reference.encoder(mels.input_features).last_hidden_state.numpy()
    found = load_sound_encoder(settings(folder)).encode(samples)
    np.testing.assert_allclose(found.reshape(1, 1500, 32), expected, rtol=0, atol=1e-5)


def test_it_keeps_the_contract(folder: Path) -> None:
    assert check_sound_encoder(load_sound_encoder(settings(folder))) == []


def test_every_key_is_loaded_or_of_a_known_family(folder: Path, model: Any) -> None:
    report: Any = load_sound_encoder(settings(folder)).report  # type: ignore[attr-defined]
    own = model.model.encoder.state_dict()
    assert set(report.loaded) == set(own)
    assert report.num_parameters == sum(value.numel() for value in own.values())
    assert set(report.ignored) <= {"decoder", "proj_out"}
    assert report.ignored["decoder"] == len(model.model.decoder.state_dict())


@pytest.mark.parametrize("layout", ["model.encoder.", "encoder.", "", "pickle"])
def test_all_published_layouts_give_the_same(
    layout: str, folder: Path, model: Any, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    own = {k: v.contiguous() for k, v in model.model.encoder.state_dict().items()}
    if layout == "pickle":
        path = tmp_path / "pytorch_model.bin"
        torch.save({"model": {f"model.encoder.{k}": v for k, v in own.items()}}, path)
    else:
        path = tmp_path / "model.safetensors"
        save_file({layout + key: value for key, value in own.items()}, path)
    samples = sounds(1)
    expected = load_sound_encoder(settings(folder)).encode(samples)
    assert np.array_equal(load_sound_encoder(settings(tmp_path)).encode(samples), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda keys: keys.pop("layer_norm.weight"), "missing: layer_norm.weight"),
        (lambda keys: keys.update(surplus=torch.zeros(1)), "unknown: surplus"),
        (lambda keys: keys.update({"conv1.bias": torch.zeros(7)}), r"conv1.bias is \(7,\)"),
    ],
)
def test_other_weights_are_refused(change: Any, message: str, model: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    keys = {k: v.contiguous() for k, v in model.model.encoder.state_dict().items()}
    change(keys)
    save_file(keys, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=message):
        load_sound_encoder(settings(tmp_path))


def test_random_weights_are_the_same_each_time_and_leave_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = load_sound_encoder(settings("random")).encode(sounds(1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(first, load_sound_encoder(settings("random")).encode(sounds(1)))


def test_half_precision_is_near_and_says_so_in_the_stamp(folder: Path) -> None:
    exact, half = (
        load_sound_encoder(settings(folder, precision=precision))
        for precision in ("float32", "bfloat16")
    )
    assert (exact.spec.precision, half.spec.precision) == ("float32", "bfloat16")
    assert exact.spec.stamp() != half.spec.stamp()
    expected, found = exact.encode(sounds(1)), half.encode(sounds(1))
    cosine = (expected * found).sum(-1) / np.linalg.norm(expected, axis=-1)
    cosine /= np.linalg.norm(found, axis=-1)
    assert cosine.min() > 0.995
    assert not np.array_equal(expected, found)


def test_the_stamp_names_the_weights(folder: Path) -> None:
    with_weights = sound_spec(settings(folder))
    assert len(with_weights.weights_sha256) == 64
    assert sound_spec(settings("random")).weights_sha256 == "random"
    assert replace(with_weights, weights_sha256="") == sound_spec(NAME)
    with pytest.raises(WeightsError, match="needs its weights") as caught:
        require_weights(sound_spec(NAME))
    assert "openai/whisper-tiny" in caught.value.hint


@pytest.mark.parametrize("choice", [{"layer": -2}, {"gelu": "tanh"}, {"resize": "own"}])
def test_choices_that_sound_does_not_have_are_refused(choice: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="has no choice of it"):
        sound_spec(settings(**choice))


def test_names_of_sound_and_of_pictures_are_told_apart() -> None:
    assert list_sound_encoders() == ["log-mel", *sorted(SIZES)]
    with pytest.raises(RecipeError, match="belongs into \\[audio\\]"):
        encoder_spec(NAME)
    with pytest.raises(RecipeError, match="whisper-base"):
        sound_spec("whisper-bas")


def test_without_transformers_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers.models.whisper", None)
    with pytest.raises(UsageError, match="needs the package transformers") as caught:
        load_sound_encoder(settings("random"))
    assert caught.value.hint == "pip install 'reelcache[transformers]'"


def test_what_it_is_is_known_without_torch(tmp_path: Path) -> None:
    program = (
        "from encoders import list_sound_encoders, sound_spec\n"
        "import sys\n"
        "print([sound_spec(name).dim for name in list_sound_encoders()])\n"
        "print(*{'torch', 'transformers'} & set(sys.modules))"
    )
    root = Path(whisper.__file__).parents[1]
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split("\n")[:2] == ["[80, 512, 1280, 1024, 768, 384]", ""]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_same_features(folder: Path) -> None:
    chosen = settings(folder, precision="float32")
    expected = load_sound_encoder(chosen).encode(sounds())
    found = load_sound_encoder(chosen, runtime=Runtime(device="cuda")).encode(sounds())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
