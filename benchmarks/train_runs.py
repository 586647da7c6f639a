"""Real training runs for benchmarks: a language model of a size, questions, a reader of choice."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Spent
from encoders.importing import without_torchvision
from pipeline.cache import FeatureCache
from trainer.config import TrainConfig
from trainer.data.stage_data import StageData
from trainer.learning.metrics_log import METRICS
from trainer.learning.training import StepReport, TrainingRun
from trainer.model.language import load_tokenizer

COLOURS = ("red", "green", "blue", "yellow")


@dataclass(frozen=True, slots=True, kw_only=True)
class LmSize:
    """A Qwen2 of random weights; its tokenizer is of bytes, its vocabulary as large as it says."""

    width: int
    num_layers: int
    mlp_width: int
    num_heads: int
    vocabulary: int = 32_768


def write_lm(folder: Path, size: LmSize) -> int:
    """A folder of transformers: the number of its parameters, embeddings included."""
    with without_torchvision():
        from transformers import Qwen2Config, Qwen2ForCausalLM
    tokenizer = load_tokenizer("tiny")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=size.vocabulary,
                hidden_size=size.width,
                num_hidden_layers=size.num_layers,
                num_attention_heads=size.num_heads,
                num_key_value_heads=max(1, size.num_heads // 2),
                intermediate_size=size.mlp_width,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def write_questions(path: Path, *, num_videos: int, num_rows: int) -> Path:
    """Questions about videos v0, v1, ... in turn, each with an answer of a word."""
    with path.open("w") as file:
        for number in range(num_rows):
            messages = [
                {"role": "user", "content": f"Which colour is {number}?"},
                {"role": "assistant", "content": COLOURS[number % len(COLOURS)]},
            ]
            row = {"id": f"q{number}", "video": f"v{number % num_videos}", "messages": messages}
            file.write(json.dumps(row) + "\n")
    return path


def config_of(
    out: Path,
    *,
    lm: str,
    questions: Path,
    steps: int,
    batch: dict[str, Any],
    connector: dict[str, Any],
) -> TrainConfig:
    """One stage that trains everything; a line of the log a step, no checkpoint before the last."""
    rates = {"connector": 1e-4, "lm": 1e-4}
    return TrainConfig.from_mapping(
        {
            "run": {"out": str(out), "save_every": 0, "log_every": 1},
            "data": [{"path": str(questions)}],
            "batch": batch,
            "model": {"lm": lm, "connector": connector},
            "stages": [{"name": "all", "train": list(rates), "lr": rates, "steps": steps}],
        }
    )


def run_of(config: TrainConfig, cache: FeatureCache, *, reader: Any = None) -> TrainingRun:
    """A run, whose clips come from `reader` instead of a ClipReader of the cache."""
    run = TrainingRun(config, cache=cache)
    if reader is not None:
        run.stages = [
            replace(stage, data=_stage_data(run, index, reader))
            for index, stage in enumerate(run.stages)
        ]
    return run


def _stage_data(run: TrainingRun, index: int, reader: Any) -> StageData:
    """The data of a stage, whose clips `reader` reads."""
    return StageData(
        run.config,
        run.prepared[index],
        stage_index=index,
        renderer=run.learner.renderer,
        reader=reader,
        frames_per_clip=run.learner.frames_per_clip,
    )


def train_until(
    run: TrainingRun, step: int, *, cpu_elsewhere: Callable[[], float] = lambda: 0.0
) -> tuple[Spent, list[dict[str, Any]]]:
    """Train until so many steps are done, and leave no checkpoint: what it took, and the log.

    `cpu_elsewhere`: CPU seconds of other processes that work for the run.
    """
    shutil.rmtree(run.out, ignore_errors=True)
    cpu, wall = time.process_time(), time.perf_counter()
    spent: Spent = (0.0, 0.0)

    def show(report: StepReport) -> None:
        nonlocal spent
        if report.step == step:
            used = time.process_time() - cpu + cpu_elsewhere()
            spent = (used, time.perf_counter() - wall)
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        run.train(show=show)
    lines = (run.out / METRICS).read_text().splitlines()
    return spent, [json.loads(line) for line in lines]


class _EnoughError(Exception):
    """Raised after the last step that is wanted, before its checkpoint."""
