"""Export and open: what was trained comes back, plain libraries read it, and damage is told."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.cache import FeatureCache
from schemas.errors import FingerprintMismatch, ModelDamaged, UsageError
from tests.trainer.asking.asked_runs import FROZEN, LORA, WHOLE
from trainer.asking.answering import answer
from trainer.asking.viewing import Viewer
from trainer.data.annotation import Message
from trainer.learning.checkpointing import checkpoint_folder, list_checkpoints
from trainer.learning.exporting import export_run
from trainer.model.language import load_language_model
from trainer.model.model_folder import (
    AskableModel,
    describe_files,
    digest_of,
    open_model,
    own_tensors,
)

ASKED = [Message.of("user", "What is it?")]
IDS = torch.tensor([[2, 40, 50, 60, 3]])


def said(model: AskableModel, cache: FeatureCache) -> str:
    (name, *_) = cache.videos
    watched = Viewer(model, cache).watch(name)
    return answer(model, ASKED, watched=watched, max_new_tokens=8).text


def logits(language_model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = language_model(input_ids=IDS, use_cache=False).logits
    return found


@pytest.fixture(scope="module")
def lora_run(train: Callable[..., Path]) -> Path:
    return train(FROZEN, WHOLE | {"lr": {"connector": 3e-3, "lm": 1e-1}}, model=LORA)


@pytest.fixture(scope="module")
def frozen_run(train: Callable[..., Path]) -> Path:
    return train(FROZEN)


@pytest.fixture
def damaged(model_path: Path, tmp_path: Path) -> Path:
    """A copy of the model that a test may damage."""
    return Path(shutil.copytree(model_path, tmp_path / "model"))


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_language_model_that_was_trained_is_a_folder_of_its_own(
    model_path: Path, model: AskableModel
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    plain = AutoModelForCausalLM.from_pretrained(model_path / "lm")
    assert torch.equal(logits(plain), logits(model.lm.lm))
    assert not torch.equal(logits(plain), logits(load_language_model("tiny", dtype=torch.float32)))
    told = json.loads((model_path / "config.json").read_text())
    assert told["model_type"] == "reelcache"
    assert told["format_version"] == 1
    assert told["trained"] == ["connector", "lm"]
    assert told["fingerprint"] == model.preprocessing.fingerprint()
    assert told["cache_fingerprint"] == model.preprocessing.cache_fingerprint()
    assert told["base_model_name_or_path"] == "tiny"
    assert told["training"]["step"] == 4
    assert set(told["files"]) == {"connector.safetensors", "lm/model.safetensors"}
    generation = json.loads((model_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [1]
    assert not generation["do_sample"]
    readme = (model_path / "README.md").read_text()
    for word in ("tiny", "questions", told["fingerprint"], "trainer generate", "stage0"):
        assert word in readme
    tokenizer = AutoTokenizer.from_pretrained(model_path / "lm" / "..")
    assert tokenizer("<q>ab").input_ids == model.tokenizer("<q>ab").input_ids
    names = own_tensors(model.lm)
    assert any(name.startswith("time_head.") for name in names)
    assert any(name.startswith("connector.audio.") for name in names)


def test_what_comes_back_is_the_checkpoint(whole_run: Path, model: AskableModel) -> None:
    import torch.distributed.checkpoint as dcp

    own = own_tensors(model.lm)
    stored = {f"model.{name}": torch.zeros_like(one) for name, one in own.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(stored, checkpoint_id=checkpoint_folder(whole_run, step=4) / "dcp", no_dist=True)
    for name, tensor in own.items():
        assert torch.equal(tensor, stored[f"model.{name}"]), name


def test_another_step_is_another_model(
    whole_run: Path, model: AskableModel, tmp_path: Path
) -> None:
    exported = export_run(whole_run, out=tmp_path / "early", step=2)
    assert exported.step == 2
    early = own_tensors(open_model(tmp_path / "early").lm)
    assert not torch.equal(
        early["connector.resampler.latents"], own_tensors(model.lm)["connector.resampler.latents"]
    )
    with pytest.raises(UsageError, match=r"no checkpoint of step 3; it has 2, 4"):
        export_run(whole_run, out=tmp_path / "never", step=3)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_adapters_are_a_folder_of_peft(lora_run: Path, cache: FeatureCache, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    exported = export_run(lora_run, out=tmp_path / "adapter")
    assert exported.language_model == "adapter/ of tiny"
    assert not (tmp_path / "adapter" / "lm").exists()
    model = open_model(tmp_path / "adapter")
    base = load_language_model("tiny", dtype=torch.float32)
    before = logits(base)
    plain = PeftModel.from_pretrained(base, str(tmp_path / "adapter" / "adapter"))
    assert torch.equal(logits(plain), logits(model.lm.lm))
    assert not torch.allclose(logits(plain), before, atol=1e-3)

    merged = export_run(lora_run, out=tmp_path / "merged", merge=True)
    assert merged.language_model == "lm/"
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged" / "lm")
    torch.testing.assert_close(logits(whole), logits(plain), atol=1e-4, rtol=1e-4)

    copied = export_run(lora_run, out=tmp_path / "copied", copy_lm=True)
    assert copied.language_model == "lm/ and adapter/"
    alone = AutoModelForCausalLM.from_pretrained(tmp_path / "copied" / "lm")
    assert torch.equal(logits(alone), before)
    answers = {said(open_model(tmp_path / name), cache) for name in ("adapter", "merged", "copied")}
    assert len(answers) == 1


def test_before_adapters_are_trained_there_are_none(lora_run: Path, tmp_path: Path) -> None:
    exported = export_run(lora_run, out=tmp_path / "first", step=2)
    assert (exported.stage, exported.trained) == ("stage0", ("connector",))
    assert exported.language_model == "tiny"
    assert sorted(path.name for path in (tmp_path / "first").iterdir() if path.is_dir()) == []


def test_a_frozen_language_model_is_named_or_copied(
    frozen_run: Path, cache: FeatureCache, tmp_path: Path
) -> None:
    assert export_run(frozen_run, out=tmp_path / "named").language_model == "tiny"
    assert export_run(frozen_run, out=tmp_path / "copied", copy_lm=True).language_model == "lm/"
    named, copied = open_model(tmp_path / "named"), open_model(tmp_path / "copied")
    assert torch.equal(logits(named.lm.lm), logits(copied.lm.lm))
    assert said(named, cache) == said(copied, cache)
    # It has moved.
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "copied" / "lm", moved)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "copied" / name, moved)
    assert said(open_model(tmp_path / "named", lm=str(moved)), cache) == said(named, cache)
    change(tmp_path / "named", base_model_name_or_path=str(tmp_path / "gone"))
    with pytest.raises(UsageError, match="gone' cannot be loaded") as caught:
        open_model(tmp_path / "named")
    assert "--lm" in caught.value.hint


def test_another_language_model_is_refused(
    frozen_run: Path, model_path: Path, tmp_path: Path
) -> None:
    export_run(frozen_run, out=tmp_path / "named")
    other = tmp_path / "other"
    shutil.copytree(model_path / "lm", other)
    with pytest.raises(FingerprintMismatch, match="is not the language model that"):
        open_model(tmp_path / "named", lm=str(other))


def test_a_digest_tells_one_changed_weight_of_many() -> None:
    model = load_language_model("tiny", dtype=torch.float32)
    before = digest_of(model)
    assert digest_of(load_language_model("tiny", dtype=torch.float32)) == before
    with torch.no_grad():
        model.model.norm.weight += 1e-3
    assert digest_of(model) != before


def test_damage_is_told(damaged: Path, model_path: Path) -> None:
    path = damaged / "connector.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ModelDamaged, match=r"connector\.safetensors has .* bytes, .* were written"):
        open_model(damaged)
    path.write_bytes(whole[:-4] + b"\x00\x00\x80\x3f")
    with pytest.raises(ModelDamaged, match="holds other bytes than were written"):
        open_model(damaged)
    path.unlink()
    with pytest.raises(ModelDamaged, match="is missing"):
        open_model(damaged)
    shutil.copy(model_path / path.name, path)
    (damaged / "lm" / "model.safetensors").unlink()
    with pytest.raises(ModelDamaged, match=r"lm/model\.safetensors is missing"):
        open_model(damaged)
    shutil.copy(model_path / "lm" / "model.safetensors", damaged / "lm")
    (damaged / "tokenizer.json").write_text("{")
    with pytest.raises(ModelDamaged, match="cannot be loaded"):
        open_model(damaged)


def test_other_tensors_are_told(damaged: Path) -> None:
    path = damaged / "connector.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[0]
    one = tensors.pop(name)
    for wrong, message in (
        (tensors, f"{name} is missing"),
        (tensors | {name: one, "connector.more": one.clone()}, "connector.more is not the model's"),
        (tensors | {name: one[:1].clone()}, f"{name} has shape"),
    ):
        save_file(wrong, path)
        change(damaged, files=describe_files(damaged))
        with pytest.raises(ModelDamaged, match=message.replace(".", r"\.")):
            open_model(damaged)


def test_a_config_that_is_not_what_was_written_is_told(damaged: Path, tmp_path: Path) -> None:
    told = json.loads((damaged / "config.json").read_text())
    change(damaged, format_version=2, reelcache_version="9.1")
    with pytest.raises(ModelDamaged, match="format_version 2 is not 1") as caught:
        open_model(damaged)
    assert "reelcache 9.1" in caught.value.hint
    change(damaged, **told | {"preprocessing": told["preprocessing"] | {"tokens_per_clip": 3}})
    with pytest.raises(ModelDamaged, match=r"its fingerprint is .* and that of its preprocessing"):
        open_model(damaged)
    change(damaged, **told | {"preprocessing": {"recipe": 1}})
    with pytest.raises(ModelDamaged, match="its preprocessing cannot be read"):
        open_model(damaged)
    change(damaged, model_type="qwen2")
    with pytest.raises(UsageError, match="not a model of reelcache: its model_type is 'qwen2'"):
        open_model(damaged)
    (damaged / "config.json").write_text("[")
    with pytest.raises(ModelDamaged, match="cannot be read"):
        open_model(damaged)
    with pytest.raises(UsageError, match=r"is not a model: there is no config\.json"):
        open_model(tmp_path)


def test_a_run_that_cannot_be_exported(whole_run: Path, model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is there already"):
        export_run(whole_run, out=model_path)
    with pytest.raises(UsageError, match="is no folder of a run"):
        export_run(tmp_path / "none")
    with pytest.raises(UsageError, match="has no complete checkpoint"):
        export_run(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(list_checkpoints(whole_run)[-1], run / "step-00000004")
    for path in (run / "step-00000004" / "dcp").glob("*.distcp"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelDamaged, match="is damaged"):
        export_run(run)
    assert not (run / "model").exists()
    state = run / "step-00000004" / "state.json"
    state.write_text('{"stage": "x", "config": {}}')
    (run / "step-00000004" / "COMPLETE").write_text("{}")
    with pytest.raises(ModelDamaged, match="its state cannot be read"):
        export_run(run)


def test_a_run_from_a_model_goes_on_from_it(
    train: Callable[..., Path], model_path: Path, model: AskableModel, tmp_path: Path
) -> None:
    audio = {"audio": {}, "time": {"regression_weight": 0.1}}
    run = train(FROZEN, model=audio | {"init": str(model_path)})
    export_run(run, out=tmp_path / "on")
    went_on = open_model(tmp_path / "on")
    assert went_on.config.base == str((model_path / "lm").resolve())
    assert torch.equal(logits(went_on.lm.lm), logits(model.lm.lm))
    only_lm = {"train": ["lm"], "lr": {"lm": 1e-3}, "steps": 2}
    export_run(train(only_lm, model=audio | {"init": str(model_path)}), out=tmp_path / "lm")
    kept = open_model(tmp_path / "lm")
    assert kept.config.trained == ("lm",)
    assert not torch.equal(logits(kept.lm.lm), logits(model.lm.lm))
    for name, tensor in own_tensors(model.lm).items():
        assert torch.equal(own_tensors(kept.lm)[name], tensor), name


def test_a_config_leads_nowhere_else(damaged: Path) -> None:
    told = json.loads((damaged / "config.json").read_text())
    files = told["files"]
    some = next(iter(files.values()))
    for changed in ({"../secret": some}, {"/etc/hostname": some}, {"lm": {"bytes": "x"}}):
        change(damaged, files=files | changed)
        with pytest.raises(ModelDamaged, match="not what an export writes"):
            open_model(damaged)
    change(damaged, files=files)
    for name, value in (("tokens_per_frame", 1e300), ("depth", 10**30), ("dim", 10**30)):
        connector = told["model"]["connector"] | {name: value}
        change(damaged, model=told["model"] | {"connector": connector})
        with pytest.raises(ModelDamaged, match="not what an export writes"):
            open_model(damaged)


def test_code_of_a_folder_is_never_run(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = damaged / "lm" / "config.json"
    hostile = {"model_type": "hostile", "auto_map": {"AutoConfig": "own.C"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | hostile))
    (damaged / "lm" / "own.py").write_text(f"open({str(tmp_path / 'made')!r}, 'w')\nC = 1\n")

    def ask(*_: object) -> str:
        raise AssertionError("asked whether to run it")

    monkeypatch.setattr("builtins.input", ask)
    with pytest.raises(ModelDamaged, match="cannot be loaded"):
        open_model(damaged)
    assert not (tmp_path / "made").exists()
