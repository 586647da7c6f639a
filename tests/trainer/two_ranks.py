"""What two gloo ranks do, all in one launch: `python two_ranks.py FOLDER`, started once a rank.

FOLDER holds cache/, said.jsonl, text.jsonl and half/, a run of one rank at step 2 of 4.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipeline.cache import open_cache
from tests.trainer.small_runs import config_of
from trainer.data.buffers import Buffers
from trainer.data.planning import EMPTY
from trainer.learning.distributed import join_ranks
from trainer.learning.sharding import set_last
from trainer.learning.stepping import Computing, StepClock, Totals, add_gradients
from trainer.learning.training import TrainingRun

LORA: dict[str, Any] = {
    "model": {
        "lm": "tiny",
        "dtype": "bfloat16",
        "connector": {"tokens_per_frame": 1.0, "depth": 1, "dim": 32, "heads": 2},
        "time": {"regression_weight": 0.5},
        "lora": {"r": 2},
    },
    "parallel": {"activation_checkpointing": True},
}
SHORT = ("stages.align.steps=1", "stages.tune.steps=3")
"""Checkpoints are at 1, 2 and 4."""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    said, text = folder / "said.jsonl", folder / "text.jsonl"
    with join_ranks() as ranks, open_cache(folder / "cache") as cache:
        runs = {
            "sharded": config_of(folder / "sharded", said, *SHORT, "batch.readers=2"),
            "copies": config_of(folder / "copies", said, *SHORT, "parallel.fsdp=off"),
            "text": config_of(folder / "text", text, *SHORT),
            "half": config_of(folder / "half", said, *SHORT),
            "lora": config_of(folder / "lora", said, *SHORT, changes=LORA),
        }
        for name, config in runs.items():
            run = TrainingRun(config, cache=cache, ranks=ranks)
            run.resume()
            assert run.done == (2 if name == "half" else 0)
            run.train()
        lacking = [
            (kind, name)
            for kind, config in (("text", runs["text"]), ("copies", runs["copies"]))
            for name in names_without_gradient(TrainingRun(config, cache=cache, ranks=ranks))
        ]
        (folder / f"lacking-{ranks.rank}.json").write_text(json.dumps(lacking))


def names_without_gradient(run: TrainingRun) -> list[str]:
    """After one empty pack on the first rank and one of an item on the second."""
    stage = run.stages[-1]
    run.begin(stage)
    job = next(stage.data.jobs(first=0, rank=run.ranks.rank, world=run.ranks.world))
    pack = EMPTY if run.ranks.is_first else replace(job.pack, items=job.pack.items[:1])
    batch = stage.data.batch(pack, Buffers())
    set_last(run.model, is_last=True)
    add_gradients(
        run.model,
        batch,
        totals=Totals(num_targets=10, num_spans=1, regression_weight=0.0),
        computing=Computing(ranks=run.ranks),
        clock=StepClock(torch.device("cpu")),
    )
    return [name for name, p in run.model.named_parameters() if p.requires_grad and p.grad is None]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
