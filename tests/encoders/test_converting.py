"""A published file becomes safetensors: the same features, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from encoders import converting, load_encoder
from encoders.converting import convert_weights
from encoders.tensors import ALIGNMENT, read_tensors
from encoders.weights import Weights
from schemas.errors import RecipeError, StorageError, UsageError, WeightsError
from schemas.recipe import EncoderSettings
from tests.internvideo2_files import (
    TEXT_FAMILIES,
    TINY,
    feature_shapes,
    fill,
    make_tiny,
    save,
    tiny_tensors,
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    return make_tiny(monkeypatch)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """As the file of stage 2: wrapped, with decoders and a text encoder, bfloat16."""
    video = {f"vision_encoder.{key}": value for key, value in tiny_tensors().items()}
    tensors = {k: v.to(torch.bfloat16) for k, v in (video | fill(TEXT_FAMILIES)).items()}
    return save({"model": tensors, "epoch": 9}, tmp_path / "published file.pt")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def features(encoder: str, weights: Path, *, layer: int) -> np.ndarray:
    settings = EncoderSettings(encoder=encoder, weights=str(weights), layer=layer)
    frames = np.random.default_rng(0).integers(0, 256, size=(1, 4, 224, 224, 3), dtype=np.uint8)
    return load_encoder(settings).encode(frames)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_converted_file_has_what_any_layer_needs_and_says_where_from(tiny, published, tmp_path):
    target = tmp_path / "out.safetensors"
    done = convert_weights(tiny, published, target)
    tensors = load_file(target)
    expected = feature_shapes(TINY, frames=4, num_blocks=TINY.depth)
    assert {key: tuple(value.shape) for key, value in tensors.items()} == expected
    assert {value.dtype for value in tensors.values()} == {torch.bfloat16}
    original = read_tensors(Weights(paths=(published,)))
    assert all(torch.equal(tensors[key], original[f"vision_encoder.{key}"]) for key in tensors)
    with safe_open(target, framework="pt") as file:
        metadata = file.metadata()
    assert metadata == {
        "encoder": tiny,
        "source_sha256": sha256(published),
        "ignored": json.dumps(done.ignored, sort_keys=True),
        "format": "pt",
    }
    assert done.ignored["text_encoder"] == 2
    assert done.num_tensors + sum(done.ignored.values()) == len(original)
    assert done.num_parameters == sum(value.numel() for value in tensors.values())
    assert (done.source_sha256, done.target_sha256) == (sha256(published), sha256(target))
    assert done.num_bytes == target.stat().st_size


@pytest.mark.parametrize("layer", [-1, -2, -3])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "legacy"])
def test_its_features_have_the_same_bits(tiny, tmp_path, layer, kind):
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    tensors = {key: value.to(dtype) for key, value in tiny_tensors().items()}
    source = save(tensors, tmp_path / "w.pt", _use_new_zipfile_serialization=kind != "legacy")
    target = tmp_path / "out.safetensors"
    convert_weights(tiny, source, target)
    before, after = (features(tiny, path, layer=layer) for path in (source, target))
    assert before.tobytes() == after.tobytes()


def test_a_conversion_gives_the_same_bytes_each_time(tiny, published, tmp_path):
    targets = [tmp_path / f"{index}.safetensors" for index in range(3)]
    digests = {convert_weights(tiny, published, target).target_sha256 for target in targets}
    assert len(digests) == 1


def test_a_converted_file_can_be_converted_again(tiny, published, tmp_path):
    first, second = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    convert_weights(tiny, published, first)
    done = convert_weights(tiny, first, second)
    assert done.ignored == {}
    assert done.source_sha256 == sha256(first)
    assert all(
        torch.equal(a, b)
        for a, b in zip(load_file(first).values(), load_file(second).values(), strict=True)
    )


def test_tensors_begin_where_they_need_no_copy(tiny, published, tmp_path):
    target = tmp_path / "out.safetensors"
    convert_weights(tiny, published, target)
    content = target.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert (8 + length) % ALIGNMENT == 0
    header = json.loads(content[8 : 8 + length])
    ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    assert 8 + length + max(ends) == len(content)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.bool])
def test_any_plain_dtype_is_written_as_it_is(tmp_path, dtype):
    tensors = {"a": torch.arange(6).reshape(2, 3).to(dtype), "scalar": torch.tensor(1).to(dtype)}
    tensors |= {"turned": tensors["a"].t(), "none": torch.zeros(0, 3, dtype=dtype)}
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        converting._write_safetensors(file, tensors, metadata={})
    found = load_file(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[key], tensors[key]) for key in tensors)
    assert {value.dtype for value in found.values()} == {dtype}


class TestRefusals:
    def test_a_file_is_never_overwritten(self, tiny, published, tmp_path):
        target = tmp_path / "out.safetensors"
        target.write_text("mine")
        with pytest.raises(UsageError, match=r"out\.safetensors is there already"):
            convert_weights(tiny, published, target)
        assert target.read_text() == "mine"
        link = tmp_path / "link.safetensors"
        link.symlink_to(tmp_path / "nowhere")
        with pytest.raises(UsageError, match="is there already"):
            convert_weights(tiny, published, link)
        assert not (tmp_path / "nowhere").exists()

    @pytest.mark.parametrize("has_links", [True, False])
    def test_nor_one_that_appears_meanwhile(
        self, tiny, published, tmp_path, monkeypatch, has_links
    ):
        target = tmp_path / "out.safetensors"
        monkeypatch.setattr(os, "fsync", lambda _: target.write_text("mine"))
        if not has_links:
            monkeypatch.setattr(os, "link", refuse)
        with pytest.raises(UsageError, match="is there already"):
            convert_weights(tiny, published, target)
        assert target.read_text() == "mine"
        assert names(tmp_path) == ["out.safetensors", published.name]

    def test_a_file_system_without_links_will_do(self, tiny, published, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "link", refuse)
        convert_weights(tiny, published, tmp_path / "out.safetensors")
        assert names(tmp_path) == ["out.safetensors", published.name]

    @pytest.mark.parametrize(
        ("failure", "seen"),
        [
            (OSError(28, "No space left on device"), StorageError),
            (KeyboardInterrupt("stop"), KeyboardInterrupt),
        ],
    )
    def test_what_fails_midway_leaves_nothing(
        self, tiny, published, tmp_path, monkeypatch, failure, seen
    ):
        def fail(_: int) -> None:
            raise failure

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(seen, match=r"No space left|stop"):
            convert_weights(tiny, published, tmp_path / "out.safetensors")
        assert names(tmp_path) == [published.name]

    def test_a_source_that_changes_meanwhile_is_noticed(
        self, tiny, published, tmp_path, monkeypatch
    ):
        write = converting._write_safetensors

        def write_and_change(*arguments: Any, **options: Any) -> None:
            write(*arguments, **options)
            with published.open("ab") as file:
                file.write(b"more")

        monkeypatch.setattr(converting, "_write_safetensors", write_and_change)
        with pytest.raises(WeightsError, match="changed while it was read"):
            convert_weights(tiny, published, tmp_path / "out.safetensors")
        assert names(tmp_path) == [published.name]

    def test_another_models_weights_are_refused(self, tiny, tmp_path):
        out = tmp_path / "out.safetensors"
        more = save(tiny_tensors() | {"surprise.x": torch.ones(1)}, tmp_path / "more.pt")
        with pytest.raises(WeightsError, match=r"unknown: surprise\.x"):
            convert_weights(tiny, more, out)
        with pytest.raises(WeightsError, match=r"missing: blocks\.10\."):
            convert_weights("internvideo2-b14", save(tiny_tensors(), tmp_path / "w.pt"), out)
        assert not out.exists()

    def test_places_that_will_not_do_are_said(self, tiny, published, tmp_path):
        out = tmp_path / "out.safetensors"
        with pytest.raises(UsageError, match=re.escape("out.pt: the name must end in .safeten")):
            convert_weights(tiny, published, tmp_path / "out.pt")
        with pytest.raises(StorageError, match="cannot be written: No such file"):
            convert_weights(tiny, published, tmp_path / "no" / "out.safetensors")
        with pytest.raises(StorageError, match="cannot be written: Not a directory"):
            convert_weights(tiny, published, published / "out.safetensors")
        with pytest.raises(WeightsError, match="cannot be read: No such file"):
            convert_weights(tiny, tmp_path / "none.pt", out)
        with pytest.raises(WeightsError, match="cannot be read: Is a directory"):
            convert_weights(tiny, tmp_path, out)

    def test_encoders_without_weights_have_nothing_to_convert(self, published, tmp_path):
        out = tmp_path / "out.safetensors"
        with pytest.raises(UsageError, match="there is no conversion for random-image"):
            convert_weights("random-image", published, out)
        with pytest.raises(RecipeError, match="did you mean 'internvideo2-s14'"):
            convert_weights("internvideo2-s15", published, out)


def refuse(*_: Any) -> None:
    raise PermissionError(1, "Operation not permitted")
