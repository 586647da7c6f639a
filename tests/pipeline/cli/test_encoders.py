"""`pipeline encoders`: what a person and a script see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from encoders import SoundSpec, registry
from encoders.base import Runtime
from encoders.tensors import LoadReport
from pipeline.cli import call
from schemas.recipe import EncoderSettings
from tests.internvideo2_files import make_tiny, save, tiny_tensors


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    return make_tiny(monkeypatch)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert call(["encoders", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def lines(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[str]:
    assert call(["encoders", *arguments]) == code
    return capsys.readouterr().out.splitlines()


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert call(["encoders", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


class Humming:
    """An encoder of sound; `fault` is added at each call."""

    report = LoadReport(loaded=("a", "b"), ignored={}, num_parameters=12)

    def __init__(self, fault: float) -> None:
        self.spec = spec(EncoderSettings(encoder="humming"), device="cpu")
        self.fault = fault
        self.calls = 0

    def encode(self, samples_NS: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        self.calls += 1
        windows = samples_NS.reshape(len(samples_NS), 3, 2, 4)
        return (windows + np.float32(self.fault * self.calls)).astype(np.float32)


def spec(settings: EncoderSettings, *, device: str) -> SoundSpec:
    return SoundSpec(
        name=settings.encoder,
        rate=8,
        num_windows=3,
        tokens_per_window=2,
        dim=4,
        architecture="the samples",
        preprocessing="none",
    )


@pytest.fixture
def humming(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Names a sound encoder; `fault` may be set."""
    choice = {"fault": 0.0}

    class Module:
        @staticmethod
        def spec(of: EncoderSettings, *, device: str) -> SoundSpec:
            return spec(of, device=device)

        @staticmethod
        def load(of: SoundSpec, *, settings: EncoderSettings, runtime: Runtime) -> Humming:
            return Humming(choice["fault"])

    monkeypatch.setitem(registry._SOUND, "humming", "tests.humming")
    monkeypatch.setattr(registry, "_sound_module", lambda name: Module)
    return choice


def test_the_list_shows_input_grid_width_and_whether_weights_are_needed(capsys, humming):
    header, *rows = lines(capsys, "list")
    assert header.split() == ["encoder", "input", "grid", "dim", "weights"]
    texts = [" ".join(row.split()) for row in rows]
    assert "internvideo2-1b 224 x 224 16 x 16 1,408 needed" in texts
    assert "random-image 64 x 64 4 x 4 32 none" in texts
    assert "humming 3 s of sound 2 a second 4 none" in texts
    by_name = {one["name"]: one for one in ask(capsys, "list")}
    assert len(by_name) == len(rows)
    assert by_name["humming"]["kind"] == "sound"
    assert by_name["internvideo2-s14"]["kind"] == "picture"
    assert by_name["internvideo2-s14"]["needs_weights"]
    assert not by_name["random-image"]["needs_weights"]


def test_show_gives_the_stamp_and_what_weights_are_needed(capsys):
    shown = ask(capsys, "show", "internvideo2-1b")
    assert (shown["dim"], shown["weights_sha256"]) == (1408, "")
    assert shown["precision"] == "float32"
    text = lines(capsys, "show", "internvideo2-1b")
    assert "layer           block 39 of 40, no norm, without CLS" in text
    assert text[-1].startswith("weights         needed: give --weights FILE or FOLDER")
    random = lines(capsys, "show", "internvideo2-1b", "--weights", "random")
    assert "weights_sha256  random" in random
    assert not [line for line in random if "needed" in line]


def test_every_encoder_can_be_shown(capsys, humming):
    for one in ask(capsys, "list"):
        assert ask(capsys, "show", one["name"]) == one
        assert lines(capsys, "show", one["name"])[0].split() == ["name", one["name"]]


@pytest.mark.parametrize("name", ["random-image", "random-video"])
def test_check_passes_encoders_without_weights(capsys, name):
    checked = ask(capsys, "check", name, "--device", "cpu")
    assert (checked["ok"], checked["problems"], checked["report"]) == (True, [], None)
    assert lines(capsys, "check", name, "--device", "cpu")[-1] == f"ok: {name}"


def test_check_says_what_was_loaded_and_what_was_not(capsys, tiny, tmp_path):
    path = save(tiny_tensors(), tmp_path / "my weights.pt")
    arguments = ("check", tiny, "--weights", str(path), "--device", "cpu")
    checked = ask(capsys, *arguments)
    assert checked["ok"]
    assert checked["report"]["ignored"]["blocks.2"] == 13
    assert len(checked["report"]["loaded"]) == 4 + 2 * 13
    assert checked["spec"]["weights_sha256"]
    text = lines(capsys, *arguments)
    assert text[-1] == f"ok: {tiny}"
    facts = dict(line.split(maxsplit=1) for line in text[:-1])
    assert facts["loaded"] == f"30 keys, {checked['report']['num_parameters']:,} parameters"
    assert "blocks.2 13, clip_decoder 8, clip_img_pos_embed 1" in facts["ignored"]
    assert facts["note"].startswith("positions of 4 frames")
    assert facts["device"] == "cpu"
    (tmp_path / "weights.pt").symlink_to(path)
    assert ask(capsys, "check", tiny, "--weights", str(tmp_path))["ok"]


def test_check_of_random_weights_is_a_trial(capsys, tiny):
    text = lines(capsys, "check", tiny, "--weights", "random", "--device", "cpu")
    assert "note            random weights from a seed" in text
    assert text[-1] == f"ok: {tiny}"


def test_check_of_sound(capsys, humming):
    text = lines(capsys, "check", "humming", "--device", "cpu")
    assert "loaded             2 keys, 12 parameters" in text
    assert "ignored            nothing" in text
    assert text[-1] == "ok: humming"
    humming["fault"] = 1.0
    checked = ask(capsys, "check", "humming", "--device", "cpu", code=1)
    assert "encode gave another result the second time" in checked["problems"]
    text = lines(capsys, "check", "humming", "--device", "cpu", code=1)
    assert "humming: encode gave another result the second time" in text
    assert "ok: humming" not in text


def test_what_is_wrong_is_said_in_a_sentence_and_what_to_do_in_another(capsys, tmp_path):
    error, hint = failure(capsys, "check", "internvideo2-1b")
    assert error == "Error: the encoder internvideo2-1b needs its weights"
    assert "--weights FILE or FOLDER" in hint
    error, hint = failure(capsys, "check", "internvideo2-1b", "--weights", str(tmp_path / "no"))
    assert "no file or folder" in error
    error, hint = failure(capsys, "check", "random-imagee")
    assert "did you mean 'random-image'?" in error
    (error,) = failure(capsys, "check", "random-image", "--weights", "random")
    assert "random-image has no choice of it" in error
    (error,) = failure(capsys, "check", "random-image", "--device", "gpu")
    assert "device 'gpu' must be auto, cpu, cuda or cuda:N" in error


def test_convert_writes_once_and_reports(capsys, tiny, tmp_path):
    source = save({"model": tiny_tensors()}, tmp_path / "published.pt")
    out = tmp_path / "out.safetensors"
    done = ask(capsys, "convert", tiny, str(source), str(out))
    assert done["num_bytes"] == out.stat().st_size
    assert done["ignored"]["clip_decoder"] == 8
    error, hint = failure(capsys, "convert", tiny, str(source), str(out))
    assert error == f"Error: {out} is there already"
    assert hint == "Hint: give another name, or remove it first"
    text = lines(capsys, "convert", tiny, str(source), str(tmp_path / "again.safetensors"))
    facts = dict(line.split("  ", maxsplit=1) for line in text)
    assert facts["sha256"].strip() == done["target_sha256"]
    assert facts["left out"].startswith("clip_decoder 8")
    assert str(done["source_sha256"]) in facts["from"]
    assert ask(capsys, "check", tiny, "--weights", str(out), "--device", "cpu")["ok"]


def test_convert_refuses_a_pickle_of_other_things(capsys, tiny, tmp_path):
    source = save({"model": tiny_tensors(), "config": Path("x")}, tmp_path / "published.pt")
    error, hint = failure(capsys, "convert", tiny, str(source), str(tmp_path / "o.safetensors"))
    assert "beside tensors, and whoever unpickles such things may run any code" in error
    assert "take the safetensors of the same model" in hint
    assert [path.name for path in tmp_path.iterdir() if "safetensors" in path.name] == []
