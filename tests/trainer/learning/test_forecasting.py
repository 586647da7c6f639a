"""Forecasts, beside what a run really has and does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipeline.cache import FeatureCache, open_cache
from schemas.errors import UsageError
from tests.trainer.small_runs import config_of, write_annotations, write_cache
from trainer.cli import call
from trainer.learning.forecasting import forecast
from trainer.learning.training import TrainingRun

SHORT = ("run.save_every=0", "stages.align.steps=1", "stages.tune.steps=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forecast")
    write_cache(folder / "cache")
    write_annotations(folder / "said.jsonl")
    return folder


@pytest.fixture(scope="module")
def cache(folder: Path) -> Iterator[FeatureCache]:
    with open_cache(folder / "cache") as opened:
        yield opened


def test_a_forecast_is_what_a_run_has(folder, cache):
    config = config_of(folder / "out", folder / "said.jsonl")
    told = forecast(config, cache=cache)
    run = TrainingRun(config, cache=cache)
    parts = {name: sum(p.numel() for p in some) for name, some in run.model.parts().items()}
    assert told.parameters == {**parts, "all": sum(p.numel() for p in run.model.parameters())}
    for stage, one in zip(run.stages, told.stages, strict=True):
        packs = stage.data.packs.epoch(0)
        assert (one.steps, one.packs_per_epoch) == (stage.data.num_steps, len(packs))
        assert one.items == 60 and 0.9 < one.fill <= 1
        assert one.bytes_per_epoch == one.clips_per_epoch * run.learner.shape.bytes_per_clip
        assert one.epochs == pytest.approx(4 * one.steps / len(packs))
    optimizer = run.begin(run.stages[1])
    tensors = list(run.model.parameters())
    assert told.memory.weights == sum(p.numel() * p.element_size() for p in tensors)
    assert told.memory.gradients == told.memory.weights
    assert told.memory.moments == 2 * told.memory.weights
    assert optimizer.param_groups[0]["lr"] == 1e-3


# torch counts no attention on a CPU, and recomputes no further than it must.
@pytest.mark.parametrize("override", [(), ("parallel.activation_checkpointing=true",)])
def test_operations_are_those_of_real_steps(override, folder, cache, tmp_path):
    config = config_of(tmp_path, folder / "said.jsonl", *SHORT, *override)
    told = forecast(config, cache=cache)
    with FlopCounterMode(display=False) as counter:
        TrainingRun(config, cache=cache).train()
    expected = sum(stage.operations for stage in told.stages)
    assert 1.0 < expected / counter.get_total_flops() < 1.3


def test_no_weights_are_read(folder, tmp_path, monkeypatch):
    """Of a name of the hub neither: this one has no weights at all."""
    import transformers

    from trainer.model.language import describe_language_model, load_tokenizer

    lm = tmp_path / "lm"
    load_tokenizer("tiny").save_pretrained(lm)
    transformers.LlamaConfig(vocab_size=260, hidden_size=32).save_pretrained(lm)
    monkeypatch.chdir(tmp_path)
    for where in ("lm", "tiny"):
        model = describe_language_model(where)
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    with pytest.raises(UsageError, match="no language model could be loaded"):
        describe_language_model(str(tmp_path))


def test_a_large_model_is_forecast_by_its_config_alone(folder, tmp_path, capsys):
    from transformers import Qwen2Config

    from trainer.model.language import load_tokenizer

    lm = tmp_path / "lm"
    load_tokenizer("tiny").save_pretrained(lm)
    Qwen2Config(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        architectures=["Qwen2ForCausalLM"],
    ).save_pretrained(lm)
    config = folder / "plan.toml"
    config.write_text(
        f"""
data = [{{path = "said.jsonl"}}]
batch = {{tokens_per_pack = 4096, packs = 8}}
model = {{lm = "{lm}", dtype = "bfloat16", connector = {{tokens_per_frame = 1.0}}}}
parallel = {{activation_checkpointing = true}}
[[stages]]
name = "all"
train = ["connector", "lm"]
lr = {{connector = 1e-4, lm = 1e-5}}
steps = 1000
"""
    )
    arguments = ["plan", str(folder / "cache"), "--config", str(config), "--ranks"]
    assert call([*arguments, "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["parameters"]["lm"] == 7_615_616_512  # as Qwen2.5-7B says of itself
    assert 18e9 < told["memory"]["on_device"] < 30e9
    fits = {card["name"]: card["fits"] for card in told["cards"]}
    assert fits["A100 SXM"] and not fits["L4"]
    assert call([*arguments, "1"]) == 0
    said = capsys.readouterr().out
    assert "parameters of lm" in said and "7.62 G" in said
    assert " yes" not in said  # 16 bytes a parameter and a copy are 137 GB
    assert not torch.cuda.is_initialized()
