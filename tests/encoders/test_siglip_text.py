"""SigLIP's text space: the end of the image tower and the text tower, beside open_clip's whole."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from open_clip.tokenizer import canonicalize_text
from safetensors.torch import load_file, save_file

from encoders import load_encoder
from encoders.siglip_sizes import SIZES
from encoders.siglip_text import canonical
from encoders.text_space import knows_text, list_text_encoders, load_ending, load_text
from schemas.compact import store_features
from schemas.errors import UsageError, WeightsError
from schemas.recipe import EncoderSettings
from tests.siglip_files import (
    DEPTH,
    GRID,
    IMAGE,
    NAME,
    NUM_TOKENS,
    WORDS,
    pocket_siglip,
    write_open_clip,
    write_transformers,
)

FIGURES = logging.getLogger("figures")
"""pytest -rP --log-level=INFO shows them."""
TEXTS = ["a dog runs", "A red, RED car!", "blue"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with pocket_siglip(tmp_path_factory.mktemp("configs")) as made:
        yield made


@pytest.fixture(scope="module")
def open_clip_folder(model, tmp_path_factory) -> Path:
    return write_open_clip(model, tmp_path_factory.mktemp("open_clip") / "model")


@pytest.fixture(scope="module")
def transformers_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("transformers")
    return folder, write_transformers(folder)


def settings(where: object, **choices: object) -> EncoderSettings:
    return EncoderSettings(encoder=NAME, weights=str(where), **choices)


def pictures() -> np.ndarray:
    """(1, T, H, W, 3) smooth and bright, so that they differ."""
    rng = np.random.default_rng(5)
    coarse = rng.integers(0, 256, size=(1, 3, 8, 8, 3), dtype=np.uint8)
    return coarse.repeat(IMAGE // 8, axis=2).repeat(IMAGE // 8, axis=3)


def normalised(frames_BTHWC: np.ndarray) -> torch.Tensor:
    pixels = torch.from_numpy(frames_BTHWC[0]).permute(0, 3, 1, 2).to(torch.float32)
    return (pixels / 255 - 0.5) / 0.5


def cosines(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(a_ND, axis=1) * np.linalg.norm(b_ND, axis=1)
    return (a_ND * b_ND).sum(axis=1) / norms


def ids_of(texts: list[str]) -> torch.Tensor:
    """As a tokenizer that pads at the end; unknown words are 1."""
    rows = []
    for text in texts:
        words = canonicalize_text(text).split()
        row = [WORDS.index(word) if word in WORDS else 1 for word in words]
        rows.append(row + [0] * (NUM_TOKENS - len(row)))
    return torch.tensor(rows)


@pytest.mark.parametrize("layer", [-1, -2, -DEPTH])
def test_what_is_stored_and_finished_is_what_the_whole_tower_gives(model, open_clip_folder, layer):
    chosen = settings(open_clip_folder, layer=layer)
    features_THWD = load_encoder(chosen).encode(pictures())[0]
    with torch.inference_mode():
        whole = model.encode_image(normalised(pictures()), normalize=True).numpy()
    exact = load_ending(chosen).finish(features_THWD)
    assert np.allclose(exact, whole, atol=1e-5)
    stored = store_features(features_THWD, grid=(), dtype="float16").decode()
    as_float16 = load_ending(chosen).finish(stored)
    assert cosines(as_float16, whole).min() > 1 - 1e-5
    int8 = store_features(features_THWD, grid=(), dtype="int8").decode()
    assert cosines(load_ending(chosen).finish(int8), whole).min() > 1 - 1e-3


def test_a_pooled_grid_stands_for_its_cells_repeated(model, open_clip_folder):
    chosen = settings(open_clip_folder)
    ending = load_ending(chosen)
    rng = np.random.default_rng(6)
    pooled = rng.standard_normal((3, GRID // 2, GRID // 2, 64)).astype(np.float32)
    repeated = pooled.repeat(2, axis=1).repeat(2, axis=2)
    assert np.allclose(ending.finish(pooled), ending.finish(repeated), atol=1e-5)
    features_THWD = load_encoder(chosen).encode(pictures())[0]
    stored = store_features(features_THWD, grid=(2, 2), dtype="int8").decode()
    near = cosines(ending.finish(stored), ending.finish(features_THWD))
    FIGURES.info("pooled 4 x 4 -> 2 x 2, random weights: cosine %s", near)
    assert near.min() > 0.5


def test_the_end_of_transformers_file_is_what_transformers_gives(model, transformers_folder):
    folder, reference = transformers_folder
    chosen = settings(folder)
    with torch.inference_mode():
        outputs = reference.vision_model(pixel_values=normalised(pictures()))
    finished = load_ending(chosen).finish(load_encoder(chosen).encode(pictures())[0])
    assert cosines(finished, outputs.pooler_output.numpy()).min() > 1 - 1e-5


def test_the_text_tower_is_open_clips(model, open_clip_folder):
    vectors = load_text(settings(open_clip_folder)).encode(TEXTS)
    with torch.inference_mode():
        expected = model.encode_text(ids_of(TEXTS), normalize=True).numpy()
    assert np.allclose(vectors, expected, atol=1e-5)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)


def test_the_text_tower_of_transformers_file_is_transformers(model, transformers_folder):
    folder, reference = transformers_folder
    vectors = load_text(settings(folder)).encode(TEXTS)
    with torch.inference_mode():
        expected = reference.text_model(input_ids=ids_of(TEXTS)).pooler_output.numpy()
    assert cosines(vectors, expected).min() > 1 - 1e-5


@given(st.text())
def test_words_are_cleaned_as_open_clip_does(text):
    assert canonical(text) == canonicalize_text(text)


def test_only_siglip_knows_text():
    assert list_text_encoders() == sorted(SIZES)
    assert not knows_text("random-image")
    with pytest.raises(UsageError, match="knows no text"):
        load_ending(EncoderSettings(encoder="random-image"))


def test_no_weights_are_asked_for(model):
    for load in (load_ending, load_text):
        with pytest.raises(WeightsError, match="needs its weights") as caught:
            load(EncoderSettings(encoder=NAME))
        assert "--weights" in caught.value.hint


def test_a_file_of_the_image_tower_alone_is_named(model, open_clip_folder, tmp_path):
    tensors = load_file(open_clip_folder / "open_clip_model.safetensors")
    trunk = {k: v for k, v in tensors.items() if k.startswith("visual.") and "attn_pool" not in k}
    save_file(trunk, tmp_path / "trunk.safetensors")
    chosen = settings(tmp_path / "trunk.safetensors")
    load_encoder(chosen)  # features it can make
    with pytest.raises(WeightsError, match=r"trunk.safetensors.*without the pooling"):
        load_ending(chosen)
    with pytest.raises(WeightsError, match="without the text tower"):
        load_text(chosen, tokenizer=open_clip_folder)


def test_a_text_tower_of_another_shape_is_named(model, open_clip_folder, tmp_path):
    tensors = load_file(open_clip_folder / "open_clip_model.safetensors")
    tensors["text.ln_final.weight"] = tensors["text.ln_final.weight"][:-1].contiguous()
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match=r"ln_final\.weight"):
        load_text(settings(tmp_path / "other.safetensors"), tokenizer=open_clip_folder)


def test_a_tokenizer_that_is_not_there_is_asked_for(model, open_clip_folder, tmp_path):
    chosen = settings(open_clip_folder / "open_clip_model.safetensors")
    with pytest.raises(UsageError, match="no tokenizer") as caught:
        load_text(chosen, tokenizer=tmp_path)
    assert "--tokenizer" in caught.value.hint
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        load_text(chosen, tokenizer=tmp_path)
    with pytest.raises(UsageError, match="no folder with a tokenizer"):
        load_text(settings("random"))


def test_every_published_size_has_a_text_tower_in_open_clip():
    for size in (size for name, size in SIZES.items() if name != NAME):
        config = open_clip.get_model_config(size.open_clip)
        assert config["embed_dim"] == size.width
        assert config["text_cfg"]["tokenizer_kwargs"] == {"clean": "canonicalize"}
