"""A run that was ended at any step and resumed is the run that was not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.cache import FeatureCache, open_cache
from schemas.errors import Diverged, FingerprintMismatch, ModelDamaged, UsageError
from tests.trainer.small_runs import config_of, lines_of, write_annotations, write_cache
from trainer.config import TrainConfig
from trainer.learning.checkpointing import list_checkpoints, read_state
from trainer.learning.interrupting import Told
from trainer.learning.reporting import StepReport
from trainer.learning.training import TrainingRun

RANDOM: dict[str, Any] = {
    "model": {
        "lm": "tiny",
        "connector": {"tokens_per_frame": 1.0, "depth": 1, "dim": 32, "heads": 2},
        "audio": {"mask_p": 0.3},
        "time": {"regression_weight": 0.5},
        "lora": {"r": 2, "dropout": 0.2},
    }
}
"""All that is random in a step."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FeatureCache]:
    with open_cache(write_cache(tmp_path_factory.mktemp("cache"), with_audio=True)) as opened:
        yield opened


@pytest.fixture(scope="module")
def annotations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_annotations(tmp_path_factory.mktemp("said") / "said.jsonl")


@pytest.fixture(scope="module")
def whole(cache: FeatureCache, annotations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing ended."""
    out = tmp_path_factory.mktemp("whole")
    TrainingRun(config_of(out, annotations, changes=RANDOM), cache=cache).train()
    return out


class Killed(BaseException):
    """Stands for the end of a process: nobody catches it."""


def train(config: TrainConfig, cache: FeatureCache, *, kill_after: int = 0) -> None:
    def show(report: StepReport) -> None:
        if report.step == kill_after:
            raise Killed

    run = TrainingRun(config, cache=cache)
    run.resume()
    run.train(show=show)


# Checkpoints are at 2, 3 (the end of stage 1), 4, 6 and 8.
@pytest.mark.parametrize(("kills", "readers"), [((1, 3), 0), ((4, 5, 7), 2)])
def test_killed_and_resumed_to_the_last_bit(kills, readers, cache, annotations, whole, tmp_path):
    config = config_of(tmp_path / "run", annotations, f"batch.readers={readers}", changes=RANDOM)
    for step in kills:
        with pytest.raises(Killed):
            train(config, cache, kill_after=step)
    train(config, cache)
    assert lines_of(tmp_path / "run") == lines_of(whole)
    assert len(lines_of(whole)) == 8


def test_the_loss_falls(cache, annotations, tmp_path):
    config = config_of(
        tmp_path, annotations, "stages.align.steps=1", "stages.tune.steps=12", "optim.warmup=0"
    )
    losses = []
    TrainingRun(config, cache=cache).train(show=lambda report: losses.append(report.loss))
    assert losses[0] > 5 and losses[-1] < 0.8 * losses[0], losses


def test_checkpoints_hold_what_was_trained(cache, whole):
    steps = [folder.name for folder in list_checkpoints(whole)]
    assert steps == ["step-00000004", "step-00000006", "step-00000008"]
    state = read_state(list_checkpoints(whole)[-1])
    assert state["step"] == 8 and state["stage"] == "tune" and state["num_ranks"] == 1
    assert state["data"]["tune"]["said"]["rows"] == 60
    assert state["data"]["tune"]["said"]["matched"] > 30
    assert state["seen"] == {
        "policy": "fps",
        "frames_per_second": 2.0,
        "num_frames": 0,
        "frames_per_clip": 4,
        "tokens_per_clip": 4,
        "compression": 1.0,
        "audio": "masked with p = 0.3",
    }
    from torch.distributed.checkpoint import FileSystemReader

    names = set(
        FileSystemReader(list_checkpoints(whole)[-1] / "dcp").read_metadata().state_dict_metadata
    )
    weights = {name.removeprefix("model.") for name in names if name.startswith("model.")}
    assert any("lora_A" in name for name in weights)
    assert all(name.startswith(("connector.", "time_head.")) or "lora_" in name for name in weights)
    moments = {name for name in names if name.startswith("optimizer.")}
    assert len(moments) == 3 * len(weights)


def test_a_signal_ends_a_run_which_goes_on(cache, annotations, whole, tmp_path):
    config = config_of(tmp_path, annotations, "run.save_every=0", changes=RANDOM)
    told = Told()

    def show(report: StepReport) -> None:
        if report.step == 4:
            told.number = 15

    result = TrainingRun(config, cache=cache).train(show=show, told=told)
    assert (result.step, result.signal) == (5, 15)
    assert [folder.name for folder in list_checkpoints(tmp_path)][-1] == "step-00000005"
    train(config, cache)
    assert lines_of(tmp_path) == lines_of(whole)


@pytest.fixture
def half(cache, annotations, whole, tmp_path) -> Path:
    """A run's folder at step 6 of 8."""
    out = tmp_path / "half"
    shutil.copytree(whole, out)
    shutil.rmtree(out / "step-00000008")
    return out


def test_half_a_checkpoint_is_none(cache, annotations, half, whole):
    newest = list_checkpoints(half)[-1]
    shutil.copytree(newest, half / "step-00000007")
    (half / "step-00000007" / "COMPLETE").unlink()
    shutil.copytree(newest, half / "step-00000009.writing")
    train(config_of(half, annotations, changes=RANDOM), cache)
    assert lines_of(half) == lines_of(whole)
    assert not (half / "step-00000009.writing").exists()


@pytest.mark.parametrize("damage", ["cut", "missing", "state"])
def test_a_damaged_checkpoint_is_said(damage, cache, annotations, half):
    newest = list_checkpoints(half)[-1]
    tensors = next((newest / "dcp").glob("*.distcp"))
    if damage == "cut":
        os.truncate(tensors, tensors.stat().st_size - 1)
    elif damage == "missing":
        tensors.unlink()
    else:
        (newest / "state.json").write_text("{" + " " * ((newest / "state.json").stat().st_size - 1))
    with pytest.raises(ModelDamaged, match="step-00000006") as caught:
        train(config_of(half, annotations, changes=RANDOM), cache)
    assert "delete" in caught.value.hint


def test_other_tensors_are_said(cache, annotations, half):
    newest = list_checkpoints(half)[-1]
    # A checkpoint of the same config, but of another model in the language model's folder.
    metadata = newest / "dcp" / ".metadata"
    assert metadata.is_file()
    run = TrainingRun(config_of(half, annotations, changes=RANDOM), cache=cache)
    run.resume()
    run.model.connector.register_parameter("stranger", torch.nn.Parameter(torch.zeros(2)))
    with pytest.raises(ModelDamaged, match="stranger"):
        run.train()


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("run.seed=1", "run.seed: 0 -> 1"),
        ("batch.packs=8", "batch.packs: 4 -> 8"),
        ("stages.align.steps=4", "stages[align].steps: 3 -> 4"),
        ("model.lora.r=4", "model.lora.r: 2 -> 4"),
    ],
)
def test_another_config_is_refused(override, field, cache, annotations, half):
    config = config_of(half, annotations, override, changes=RANDOM)
    with pytest.raises(UsageError) as caught:
        TrainingRun(config, cache=cache).resume()
    assert field in caught.value.message


def test_what_may_change_may(cache, annotations, half, tmp_path):
    moved = Path(shutil.copy(annotations, tmp_path / "said.jsonl"))
    config = config_of(
        half,
        moved,
        "batch.readers=1",
        "run.keep=1",
        "optim.clip=0.5",
        "stages.tune.lr.lm=1e-4",
        "parallel.activation_checkpointing=true",
        changes=RANDOM,
    )
    train(config, cache)
    assert [folder.name for folder in list_checkpoints(half)] == ["step-00000008"]


def test_other_data_are_refused(cache, annotations, half, tmp_path):
    rows = [json.loads(line) for line in annotations.read_text().splitlines()]
    rows[5]["messages"][1]["content"] += " indeed"
    changed = tmp_path / "said.jsonl"
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(FingerprintMismatch) as caught:
        TrainingRun(config_of(half, changed, changes=RANDOM), cache=cache).resume()
    assert "tune.lengths" in caught.value.message
    assert "num_items" not in caught.value.message


def test_another_cache_is_refused(annotations, half, tmp_path):
    plain = write_cache(tmp_path / "plain", with_audio=False)
    config = config_of(half, annotations, changes=RANDOM)
    with open_cache(plain) as cache, pytest.raises(UsageError, match="no sound"):
        TrainingRun(config, cache=cache)


def test_rates_that_are_too_high_diverge(cache, annotations, tmp_path):
    config = config_of(tmp_path, annotations, "stages.align.lr.connector=1e30", "optim.warmup=0")
    with pytest.raises(Diverged, match="loss is"):
        TrainingRun(config, cache=cache).train()
