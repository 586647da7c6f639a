"""Arms: the training runs that are compared, each a change of the base config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.shapes.task import Task
from schemas.settings import set_field

ARMS: dict[str, tuple[str, ...]] = {
    # name: assignments as of `trainer train --set`
    "base": (),
    "text only": ('view.input="text"',),
    "centre frame": ('view.input="center"',),
    "no sound": ("model.audio=absent",),
    "one encoder: image": ('view.streams=["image"]',),
    "no times": ('model.time.mode="none"',),
    "uniform, 8 frames": (
        'view.policy="uniform"',
        "view.num_frames=8",
        "model.connector.tokens_per_frame=6.0",  # as many tokens a video as base
    ),
    "conv + pool": ('model.connector.kind="conv_pool"',),
    "MLP + pool": ('model.connector.kind="mlp_pool"',),
    "0.5x tokens": ("model.connector.compression=0.5",),
    "2x tokens": ("model.connector.compression=2.0",),
    "direction": ("questions=direction",),
    "direction, image": ("questions=direction", 'view.streams=["image"]'),
}
DIRECTION = ("direction", "direction, image")
"""Asked for nothing else: with all questions at once it takes many more steps than the others."""
BASELINES = ("text only", "centre frame", "no sound")
"""Of the proof."""
CLAIMS = {
    "timestamps": ("base", "no times"),
    "frames a second": ("base", "uniform, 8 frames"),
    "resampler": ("base", "conv + pool", "MLP + pool"),
    "encoders": ("base", "one encoder: image"),
    "tokens": ("0.5x tokens", "base", "2x tokens"),
}


def make_config(
    task: Task, arm: str, *, out: Path, seed: int, align_steps: int, qa_steps: int
) -> dict[str, Any]:
    """The config of an arm, as of `TrainConfig.from_mapping`."""
    config: dict[str, Any] = {
        "run": {"out": str(out), "seed": seed, "save_every": 0, "keep": 1, "log_every": 10},
        "cache": {"path": str(task.cache)},
        "data": [
            {"name": "captions", "path": str(task.captions("train"))},
            {"name": "qa", "path": str(task.questions("train"))},
        ],
        "batch": {"tokens_per_pack": 512, "packs": 4, "on_long": "error"},
        "view": {},
        "model": {
            "lm": str(task.lm),
            "connector": {"tokens_per_frame": 1.5, "depth": 2, "heads": 4},
            "time": {"text": "{start:.0f}:", "joint": ""},
            "audio": {},
        },
        "stages": [
            _stage("align", align_steps, {"captions": 1.0}),
            _stage("qa", qa_steps, {"captions": 1.0, "qa": 1.0}),
        ],
        "optim": {"warmup": 30.0, "final": 0.05, "weight_decay": 0.01, "betas": [0.9, 0.98]},
    }
    config["stages"] = [stage for stage in config["stages"] if stage["steps"]]
    for assignment in ARMS[arm]:
        if assignment == "model.audio=absent":
            del config["model"]["audio"]
        elif assignment == "questions=direction":
            config["data"][1]["path"] = str(task.questions_of("train", "direction"))
        else:
            config = set_field(config, assignment)
    return config


def _stage(name: str, steps: int, data: dict[str, float]) -> dict[str, Any]:
    rates = {"connector": 3e-3, "lm": 3e-3}
    return {"name": name, "train": list(rates), "lr": rates, "steps": steps, "data": data}
