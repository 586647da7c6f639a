"""TrainConfig: what is shipped loads, what is wrong is said by its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ConfigError
from trainer.config import TrainConfig, list_configs

SMALL: dict[str, Any] = {
    "data": [{"path": "a.jsonl"}],
    "model": {"lm": "tiny"},
    "stages": [{"name": "one", "train": ["lm"], "lr": {"lm": 1e-3}, "steps": 1}],
}


def changed(*overrides: str) -> TrainConfig:
    return TrainConfig.from_mapping(SMALL, overrides=overrides)


@pytest.mark.parametrize("name", list_configs())
def test_what_is_shipped_loads_with_data_and_comes_back(name: str) -> None:
    config = TrainConfig.load(name, data=["some/rows.jsonl"])
    assert [data.label for data in config.data] == ["rows"]
    assert config.run.out == f"runs/{name}"
    assert TrainConfig.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config
    with pytest.raises(ConfigError, match="data: at least one"):
        TrainConfig.load(name)


def test_what_is_shipped() -> None:
    assert list_configs() == ["apollo-align", "apollo-sft", "smollm2", "tiny"]
    with pytest.raises(ConfigError, match="did you mean 'smollm2'"):
        TrainConfig.load("smolm2")


def test_paths_of_data_are_relative_to_the_file_and_those_of_the_command_are_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.toml"
    path.write_text(
        'data = [{path = "a.jsonl"}, {path = "/b.jsonl"}, {path = "gs://c/c.jsonl"}]\n'
        'model = {lm = "tiny"}\n'
        'stages = [{name = "one", train = ["lm"], lr = {lm = 1e-3}, epochs = 1}]\n'
    )
    config = TrainConfig.load(str(path), data=["d.jsonl"])
    assert [data.path for data in config.data] == [
        str(tmp_path / "a.jsonl"),
        "/b.jsonl",
        "gs://c/c.jsonl",
        "d.jsonl",
    ]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.sed=1", "run.sed: unknown field; did you mean 'seed'?"),
        ("model.conector.dim=3", "model.conector: unknown field; did you mean 'connector'?"),
        ("stages.one.learning=1", "unknown field"),
        ("run.keep=0", "run.keep = 0 must be >= 1"),
        ("run.save_every=-1", "run.save_every = -1 must be >= 0"),
        ("run.log=['csv']", "run.log: 'csv' must be jsonl"),
        ("batch.packs=0", "batch.packs = 0 must be in [1, 2^31)"),
        ("batch.readers=-1", "batch.readers = -1 must be >= 0"),
        ("batch.on_long=cut", "batch.on_long"),
        ("data.0.weight=0.0", "data.weight = 0.0 must be > 0"),
        ("data.0.weight=nan", "data.weight = nan must be > 0"),
        ("data.0.max_missing=1.5", "data.max_missing = 1.5 must be in [0, 1]"),
        ("view.fps=-1.0", "view.fps = -1.0 must be >= 0"),
        ("view.policy=uniform", "view.num_frames = 0 must be > 0 with policy uniform"),
        ("view.num_frames=8", "view.num_frames = 8 must be > 0 with policy uniform, else 0"),
        ("model.time.mode=frame_text", "view.frames_per_clip = 0 must be 1"),
        ("model.time.text={begin}", "model.time.text = '{begin}' cannot be filled in"),
        ("model.time.regression_weight=-1.0", "must be >= 0"),
        ("model.connector.compression=0.0", "model.connector.compression = 0.0 must be > 0"),
        ("model.connector.tokens_per_frame=inf", "model.connector.tokens_per_frame = inf"),
        ("model.connector.depth=0", "model.connector.depth = 0 must be in [1, 100,000]"),
        ("model.connector.kv_heads=-1", "model.connector.kv_heads = -1 must be in [0, 100,000]"),
        ("model.audio.mask_p=1.0", "model.audio.mask_p = 1.0 must be in [0, 1)"),
        ("model.reduce.keep=0.0", "model.reduce.keep = 0.0 must be in (0, 1]"),
        ("model.reduce.threshold=1.5", "model.reduce.threshold = 1.5 must be in [-1, 1]"),
        ("model.reduce.window=1", "model.reduce.window = 1 must be >= 2"),
        ("model.lora.r=0", "model.lora.r = 0 must be in [1, 100,000]"),
        ("model.lora.dropout=1.0", "model.lora.dropout = 1.0 must be in [0, 1)"),
        ("optim.betas=[0.9]", "optim.betas = [0.9] must be two numbers"),
        ("optim.final=2.0", "optim.final = 2.0 must be in [0, 1]"),
        ("optim.weight_decay=-0.1", "optim.weight_decay = -0.1 must be >= 0"),
        ("stages.one.train=['encoder']", "'encoder' cannot be trained"),
        ("stages.one.train=['connector']", "must have a rate for each of train"),
        ("stages.one.lr.lm=0.0", "stages.one.lr.lm = 0.0 must be > 0"),
        ("stages.one.epochs=1", "stages.one must have either steps or epochs > 0"),
        ("stages.one.steps=0", "stages.one must have either steps or epochs > 0"),
        ("stages.one.max_clips=-1", "stages.one.max_clips = -1 must be >= 0"),
        ("stages.one.data={b=1.0}", "stages.one.data.b: no such data"),
        ("stages=[]", "stages: at least one is needed"),
        ("data=[{path='a/x.json'},{path='b/x.json'}]", "data: two are named 'x'"),
    ],
)
def test_a_wrong_field_is_named(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(override)
    assert said in caught.value.message


@pytest.mark.parametrize(
    "override",
    [
        "view.max_clips=8",
        "model.audio={}",
        "model.reduce.kind=prune",
        "stages.one.lr.lm=3e-4",
        "data.0.weight=0.5",
        "run.log=['jsonl','wandb']",
    ],
)
def test_a_right_field_is_taken(override: str) -> None:
    config = changed(override)
    assert config != changed()
    assert TrainConfig.from_mapping(config.to_mapping()) == config


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        TrainConfig.load(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        TrainConfig.load(str(tmp_path / "bad.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is not text"):
        TrainConfig.load(str(tmp_path / "bytes.toml"))
    with pytest.raises(ConfigError, match="model: missing"):
        TrainConfig.from_mapping({"data": SMALL["data"], "stages": SMALL["stages"]})
