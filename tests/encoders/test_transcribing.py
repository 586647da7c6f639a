"""A Whisper model of transformers, from its folder to text with times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from encoders.transcribing import RATE, Transcriber
from schemas.errors import UsageError, WeightsError
from tests.whisper_folder import whisper_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whisper_folder(tmp_path_factory.mktemp("whisper"))


def noise(seconds: float) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, int(seconds * RATE)).astype(np.float32)


def test_what_is_said_lies_in_the_sound_and_in_order(folder: Path) -> None:
    said = Transcriber(str(folder)).transcribe(noise(30))
    assert said
    times = [time for start, end, _ in said for time in (start, end)]
    assert times == sorted(times)
    assert times[-1] <= 30
    assert all(text == text.strip() != "" for _, _, text in said)
    short = Transcriber(str(folder)).transcribe(noise(5))
    assert all(0 <= start < end <= 5 for start, end, _ in short)


def test_times_and_text_are_read_from_tokens(folder: Path) -> None:
    transcriber = Transcriber(str(folder))
    words = transcriber._loaded.tokenizer.get_vocab()

    def token(seconds: float) -> int:
        return words[f"<|{seconds:.2f}|>"]

    start = [words[one] for one in ("<|startoftranscript|>", "<|en|>", "<|transcribe|>")]
    ids = [*start, token(0.5), words["a"], words["b"], token(2), token(3), words["c"], token(4)]
    assert transcriber._read(ids, end_seconds=30) == [(0.5, 2.0, "ab"), (3.0, 4.0, "c")]
    cut_off = [*ids[:-1], words["d"], words["<|endoftext|>"]]
    assert transcriber._read(cut_off, end_seconds=10) == [(0.5, 2.0, "ab"), (3.0, 10.0, "cd")]
    assert transcriber._read(ids, end_seconds=2.5) == [(0.5, 2.0, "ab")]  # no time beyond the sound
    assert transcriber._read([*start, token(1), words["Ġ"], token(2)], end_seconds=30) == []


def test_the_maker_follows_from_the_files(folder: Path, tmp_path: Path) -> None:
    made_by = Transcriber(str(folder)).made_by
    assert made_by == Transcriber(str(folder)).made_by
    assert json.loads(json.dumps(made_by)) == made_by
    other = Transcriber(str(whisper_folder(tmp_path, seed=1))).made_by
    assert other["model_sha256"] != made_by["model_sha256"]
    assert Transcriber(str(folder), language="de").made_by["language"] == "de"


def test_what_is_no_whisper_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such folder"):
        Transcriber(str(tmp_path / "nowhere"))
    with pytest.raises(WeightsError, match=r"without config\.json"):
        Transcriber(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(WeightsError, match=r"none of model\.safetensors"):
        Transcriber(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match="not a Whisper model"):
        Transcriber(str(tmp_path)).transcribe(noise(1))
    with pytest.raises(UsageError, match="no language 'xx'"):
        Transcriber(str(folder), language="xx").transcribe(noise(1))
