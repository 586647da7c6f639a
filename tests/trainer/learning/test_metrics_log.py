"""Where figures go: a file that has each step once, TensorBoard, and a stand-in for wandb."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import UsageError
from trainer.learning.metrics_log import MetricsLog


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_steps_that_come_again_are_there_once(tmp_path):
    with MetricsLog(tmp_path, kinds=["jsonl"], config={}) as log:
        for step in range(1, 6):
            log.log(step, {"stage": "a", "loss": float(step)})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')  # as a killed process leaves it
    with MetricsLog(tmp_path, kinds=[], config={}, done=3) as log:
        log.log(4, {"stage": "a", "loss": 40.0})
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]
    assert lines(tmp_path)[-1] == {"step": 4, "stage": "a", "loss": 40.0}


def test_tensorboard_has_the_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsLog(tmp_path, kinds=["tensorboard"], config={"run": {"seed": 1}}) as log:
        log.log(1, {"stage": "a", "loss": 2.5})
        log.log(2, {"stage": "a", "loss": 1.5, "kept_by_time": [3, 4]})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("loss")] == [(1, 2.5), (2, 1.5)]
    assert [(one.step, one.value) for one in events.Scalars("kept_by_time/1")] == [(2, 4.0)]
    assert lines(tmp_path)[1]["kept_by_time"] == [3, 4]


def test_wandb_is_asked_for_only_when_it_is_wanted(tmp_path, monkeypatch):
    told: list[Any] = []
    stub = types.ModuleType("wandb")

    def init(**options: Any) -> Any:
        told.append(options)
        return types.SimpleNamespace(
            log=lambda figures, step: told.append((step, figures)),
            finish=lambda: told.append("finish"),
        )

    stub.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", stub)
    with MetricsLog(tmp_path / "a", kinds=["jsonl"], config={}):
        pass
    assert told == []
    with MetricsLog(tmp_path / "b", kinds=["wandb"], config={"x": 1}) as log:
        log.log(7, {"stage": "a", "loss": 2.5})
    assert told[0]["config"] == {"x": 1} and told[0]["name"] == "b"
    assert told[1:] == [(7, {"loss": 2.5}), "finish"]


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_what_is_not_installed_is_said(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError) as caught:
        MetricsLog(tmp_path, kinds=[name], config={})
    assert caught.value.hint == f"run: pip install {name}"
