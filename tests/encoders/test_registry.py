"""Encoders by name, plug-ins, and the contract test for their authors."""

import re
import sys
import types
from dataclasses import dataclass, replace
from importlib import metadata

import numpy as np
import pytest

from encoders import check_encoder, encoder_spec, list_encoders, load_encoder, registry
from encoders.base import EncoderSpec, Runtime
from schemas.errors import RecipeError, UsageError, WeightsError

SPEC = EncoderSpec(
    name="mean-16",
    width=32,
    height=32,
    grid=(2, 2),
    dim=3,
    architecture="mean of each quarter",
    preprocessing="none",
)


@dataclass
class MeanEncoder:
    """Good in itself; `fault` makes it break one rule."""

    fault: str = ""
    spec: EncoderSpec = SPEC
    calls: int = 0

    def encode(self, frames_BTHWC: np.ndarray) -> np.ndarray:
        self.calls += 1
        B, T = frames_BTHWC.shape[:2]
        quarters = frames_BTHWC.astype(np.float32).reshape(B, T, 2, 16, 2, 16, 3)
        features = quarters.mean(axis=(3, 5)).astype(np.float32)
        match self.fault:
            case "shape":
                return features.reshape(B, T, 4, 3)
            case "dtype":
                return features.astype(np.float64)
            case "nan":
                features[0, 0, 0, 0, 0] = np.nan
            case "batch":
                features = features - features.mean(axis=0)
            case "constant":
                features = np.zeros_like(features)
            case "forgetful":
                features = features + self.calls
        return features


def plug_in(monkeypatch: pytest.MonkeyPatch, *entry_points: metadata.EntryPoint) -> None:
    def entry_points_of(*, group: str) -> list[metadata.EntryPoint]:
        return [entry for entry in entry_points if entry.group == group]

    monkeypatch.setattr(metadata, "entry_points", entry_points_of)
    registry._plugged_in.cache_clear()


@pytest.fixture(autouse=True)
def forget_plug_ins():
    registry._plugged_in.cache_clear()
    yield
    registry._plugged_in.cache_clear()


@pytest.fixture
def mean_plug_in(monkeypatch):
    module = types.ModuleType("mean_plug_in")
    module.spec = lambda settings, *, device: SPEC
    module.load = lambda spec, *, settings, runtime: MeanEncoder(fault=f"on {runtime.device}")
    monkeypatch.setitem(sys.modules, "mean_plug_in", module)
    return metadata.EntryPoint("mean-16", "mean_plug_in", "reelcache.encoders")


def test_the_built_in_encoders_are_listed_by_name():
    names = list_encoders()
    assert names == sorted(names)
    assert {"random-image", "random-video"} <= set(names)


@pytest.mark.parametrize("look_up", [encoder_spec, load_encoder])
def test_an_unknown_encoder_is_told_the_nearest_name(look_up):
    message = "no encoder named 'random-imag'; did you mean 'random-image'?"
    with pytest.raises(RecipeError, match=re.escape(message)) as caught:
        look_up("random-imag")
    assert caught.value.hint == "see: pipeline encoders list"


def test_an_installed_package_adds_an_encoder(monkeypatch, mean_plug_in):
    plug_in(monkeypatch, mean_plug_in)
    assert "mean-16" in list_encoders()
    assert encoder_spec("mean-16") == SPEC
    assert load_encoder("mean-16", runtime=Runtime(device="cuda")).fault == "on cuda"
    assert load_encoder("mean-16").fault == "on cpu"


def test_entry_points_of_other_groups_are_not_encoders(monkeypatch):
    plug_in(monkeypatch, metadata.EntryPoint("other", "mean_plug_in", "console_scripts"))
    assert "other" not in list_encoders()


def test_a_plug_in_is_not_imported_before_it_is_asked_for(monkeypatch):
    broken = metadata.EntryPoint("broken", "there_is_no_such_module", "reelcache.encoders")
    plug_in(monkeypatch, broken)
    assert "broken" in list_encoders()
    assert encoder_spec("random-image").name == "random-image"
    with pytest.raises(ModuleNotFoundError):
        encoder_spec("broken")


def test_a_plug_in_cannot_take_the_name_of_a_built_in_encoder(monkeypatch):
    plug_in(monkeypatch, metadata.EntryPoint("random-image", "mine", "reelcache.encoders"))
    with pytest.raises(UsageError, match="two encoders are named 'random-image'; one is mine"):
        list_encoders()


def test_two_plug_ins_cannot_share_a_name(monkeypatch, mean_plug_in):
    twin = metadata.EntryPoint("mean-16", "their.module", "reelcache.encoders")
    plug_in(monkeypatch, mean_plug_in, twin)
    with pytest.raises(UsageError, match="two encoders are named 'mean-16'"):
        load_encoder("mean-16")


def test_the_contract_test_passes_a_good_encoder():
    assert check_encoder(MeanEncoder()) == []


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("shape", "encode gave (3, 4, 4, 3) float32, expected (3, 4, 2, 2, 3) float32"),
        ("dtype", "encode gave (3, 4, 2, 2, 3) float64, expected (3, 4, 2, 2, 3) float32"),
        ("batch", "a clip's features depend on the other clips of its batch"),
        ("constant", "two different clips have the same features"),
    ],
)
def test_the_contract_test_names_the_one_rule_that_is_broken(fault, finding):
    assert check_encoder(MeanEncoder(fault)) == [finding]


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("nan", "encode gave NaN or infinity"),
        ("forgetful", "encode gave another result the second time"),
    ],
)
def test_the_contract_test_finds_the_rule_that_is_broken(fault, finding):
    assert finding in check_encoder(MeanEncoder(fault))


def test_a_wrong_name_of_an_encoder_of_sound_is_told_the_near_one():
    with pytest.raises(RecipeError, match="did you mean 'whisper-tiny'"):
        encoder_spec("whisper-tin")


def test_weights_that_change_while_they_are_loaded_are_refused(monkeypatch):
    digests = iter(["aa", "bb"])
    module = types.ModuleType("changing")
    module.spec = lambda _, **__: replace(SPEC, weights_sha256=next(digests))
    module.load = lambda spec, **_: MeanEncoder(spec=spec)
    monkeypatch.setitem(sys.modules, "changing", module)
    plug_in(monkeypatch, metadata.EntryPoint("mean-16", "changing", "reelcache.encoders"))
    with pytest.raises(WeightsError, match="weights of mean-16 changed while they were loaded"):
        load_encoder("mean-16")
