"""Learn: train one arm from the cache, and ask the exported model about videos it never saw."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.shapes.arms import make_config
from benchmarks.shapes.task import Task

MAX_NEW_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What an arm has learned with one seed."""

    arm: str
    seed: int
    num_steps: int
    caption_loss: float
    """Mean of the second half of the align stage."""
    scores: dict[str, float]
    """order, color, direction, beep: share of right answers; miou, r@0.3, r@0.5 of times."""
    num_asked: dict[str, int]
    cpu_seconds: float
    """Of training."""


def learn(
    task: Task,
    arm: str,
    *,
    seed: int,
    folder: Path,
    align_steps: int,
    qa_steps: int,
    kind: str = "",
) -> Learnt:
    """Train, and ask all questions or those of one kind; `folder` keeps what was learned before."""
    import torch

    torch.set_num_threads(1)
    out = folder / f"{arm.replace(' ', '-').replace(':', '').replace(',', '')}-{seed}"
    done = out / "learnt.json"
    steps = align_steps + qa_steps
    if done.exists():
        learnt = Learnt(**json.loads(done.read_text()))
        if learnt.num_steps == steps:
            return learnt
    from pipeline.cache import open_cache
    from trainer.config import TrainConfig
    from trainer.learning.exporting import export_run
    from trainer.learning.training import TrainingRun

    mapping = make_config(task, arm, out=out, seed=seed, align_steps=align_steps, qa_steps=qa_steps)
    config = TrainConfig.from_mapping(mapping)
    began = time.process_time()
    with open_cache(config.cache.path) as cache:
        run = TrainingRun(config, cache=cache)
        run.train()
        cpu_seconds = time.process_time() - began
        export_run(out, out=out / "model")
        tried = task.questions_of("test", kind) if kind else task.questions("test")
        scores, num_asked = ask(out / "model", cache, tried)
    learnt = Learnt(
        arm=arm,
        seed=seed,
        num_steps=steps,
        caption_loss=_caption_loss(out, align_steps),
        scores=scores,
        num_asked=num_asked,
        cpu_seconds=cpu_seconds,
    )
    done.write_text(json.dumps(asdict(learnt), indent=1))
    return learnt


def ask(model: Path, cache: Any, questions: Path) -> tuple[dict[str, float], dict[str, int]]:
    """Scores, and how many questions each is of."""
    from trainer.asking.evaluating import evaluate
    from trainer.data.formats import read_annotations
    from trainer.model.model_folder import open_model

    askable = open_model(model, device="cpu")
    told = evaluate(
        askable,
        cache,
        read_annotations(questions),
        kind=askable.preprocessing.view.input,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    right: defaultdict[str, list[float]] = defaultdict(list)
    for row in told.rows:
        if row["type"] != "time":
            right[row["type"]].append(float(row["answer"] == row["truth"]))
            continue
        share = row["iou"] or 0.0
        right["miou"].append(share)
        right["r@0.3"].append(float(share >= 0.3))
        right["r@0.5"].append(float(share >= 0.5))
    scores = {name: sum(values) / len(values) for name, values in right.items()}
    return scores, {name: len(values) for name, values in right.items()}


def _caption_loss(out: Path, align_steps: int) -> float:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if align_steps / 2 < line["step"] <= align_steps]
    return sum(losses) / len(losses) if losses else float("nan")
