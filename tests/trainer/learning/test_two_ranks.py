"""Two gloo ranks learn what one does: sharded, as copies, resumed from one and by one."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cache import open_cache
from tests.trainer.small_runs import config_of, write_annotations, write_cache
from tests.trainer.two_ranks import LORA, SHORT
from trainer.learning.checkpointing import list_checkpoints, read_state
from trainer.learning.training import TrainingRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def environment(rank: int, port: int, *, world: int = 2) -> dict[str, str]:
    """As torchrun makes it."""
    own = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "PYTHONPATH": ROOT,
        "PYTHONWARNINGS": "error::UserWarning",
    }
    return os.environ | {name: str(value) for name, value in own.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `two_ranks`, after it, with the runs of one rank beside: `one`, `one-text`."""
    folder = tmp_path_factory.mktemp("ranks")
    write_cache(folder / "cache")
    said = write_annotations(folder / "said.jsonl")
    text = write_annotations(folder / "text.jsonl", text_share=0.9)
    with open_cache(folder / "cache") as cache:
        TrainingRun(config_of(folder / "one", said, *SHORT), cache=cache).train()
        TrainingRun(config_of(folder / "one-text", text, *SHORT), cache=cache).train()
        TrainingRun(config_of(folder / "one-lora", said, *SHORT, changes=LORA), cache=cache).train()
    shutil.copytree(folder / "one", folder / "half")
    shutil.rmtree(folder / "half" / "step-00000004")
    port = free_port()
    command = [sys.executable, str(ROOT / "tests/trainer/two_ranks.py"), str(folder)]
    processes = [
        subprocess.Popen(
            command,
            env=environment(rank, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said_by = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said_by)
    return folder


def losses_of(out: Path) -> list[float]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.parametrize(
    ("two", "one"), [("sharded", "one"), ("copies", "one"), ("text", "one-text"), ("half", "one")]
)
def test_two_ranks_learn_what_one_does(two, one, folder):
    assert len(losses_of(folder / two)) == 4
    assert losses_of(folder / two) == pytest.approx(losses_of(folder / one), abs=1e-6, rel=1e-6)


def test_losses_are_not_the_same_anyway(folder):
    assert losses_of(folder / "one") != pytest.approx(losses_of(folder / "one-text"), abs=1e-2)


def test_bfloat16_with_adapters_and_recomputed_layers(folder):
    assert losses_of(folder / "lora") == pytest.approx(losses_of(folder / "one-lora"), rel=2e-2)
    assert losses_of(folder / "lora")[-1] < losses_of(folder / "lora")[0]


def test_every_trained_parameter_has_a_gradient_on_every_rank(folder):
    assert [json.loads((folder / f"lacking-{rank}.json").read_text()) for rank in range(2)] == [
        [],
        [],
    ]


def test_one_rank_goes_on_from_two(folder):
    out = folder / "again"
    shutil.copytree(folder / "sharded", out)
    shutil.rmtree(out / "step-00000004")
    assert read_state(list_checkpoints(out)[-1])["num_ranks"] == 2
    with open_cache(folder / "cache") as cache:
        run = TrainingRun(config_of(out, folder / "said.jsonl", *SHORT), cache=cache)
        run.resume()
        assert run.done == 2
        run.train()
    assert losses_of(out) == pytest.approx(losses_of(folder / "one"), abs=1e-6, rel=1e-6)
