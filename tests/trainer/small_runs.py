"""Small runs: a cache written by hand, invented annotations, the tiny language model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.layout import CacheLayout
from pipeline.storage import publish_rows
from schemas.tables import REJECT_SCHEMA
from tests.trainer.data.clip_caches import SOUND, Videos, write_clips
from trainer.config import TrainConfig

COLOURS = ("red", "green", "blue", "yellow")
TIMES = ("seconds", "wait_share", "peak_memory_bytes")


def write_cache(folder: Path, *, num_shards: int = 5, with_audio: bool = False) -> Path:
    """A cache of three videos a shard, of 1 to 4 clips each."""
    chance = np.random.default_rng(1)
    shards: list[Videos] = [
        {
            f"v{3 * shard + i}": [4] * int(chance.integers(0, 4)) + [int(chance.integers(1, 5))]
            for i in range(3)
        }
        for shard in range(num_shards)
    ]
    write_clips(folder, shards, overrides=(SOUND,) if with_audio else ())
    layout = CacheLayout(folder)
    publish_rows([], REJECT_SCHEMA, layout.rejects, scratch=layout.scratch)
    return folder


def write_annotations(
    path: Path, *, num_rows: int = 60, num_videos: int = 15, text_share: float = 0.2
) -> Path:
    """Rows about the videos of `write_cache`, and some about none."""
    chance = np.random.default_rng(2)
    rows = []
    for number in range(num_rows):
        colour = COLOURS[int(chance.integers(4))]
        row: dict[str, Any] = {"id": f"a{number}"}
        if chance.random() >= text_share:
            row["video"] = f"v{int(chance.integers(num_videos))}"
        answer = colour if number % 3 else f"{colour}, and then {'very ' * (number % 7)}still"
        row["messages"] = [
            {"role": "user", "content": f"Which colour is number {number}?"},
            {"role": "assistant", "content": answer},
        ]
        rows.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config_of(
    out: Path, annotations: Path, *overrides: str, changes: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Two stages of a few steps with the tiny language model."""
    mapping: dict[str, Any] = {
        "run": {"out": str(out), "save_every": 2, "log_every": 1},
        "data": [{"path": str(annotations)}],
        "batch": {"tokens_per_pack": 256, "packs": 4, "window_shards": 2, "readers": 0},
        "model": {
            "lm": "tiny",
            "connector": {"tokens_per_frame": 1.0, "depth": 1, "dim": 32, "heads": 2},
        },
        "stages": [
            {"name": "align", "train": ["connector"], "lr": {"connector": 3e-3}, "steps": 3},
            {
                "name": "tune",
                "train": ["connector", "lm"],
                "lr": {"connector": 1e-3, "lm": 1e-3},
                "steps": 5,
            },
        ],
    }
    return TrainConfig.from_mapping(mapping | dict(changes or {}), overrides=overrides)


def lines_of(out: Path) -> list[str]:
    """metrics.jsonl without what a clock or the machine says."""
    lines = []
    for line in (out / "metrics.jsonl").read_text().splitlines():
        figures = json.loads(line)
        kept = {k: v for k, v in figures.items() if not any(time in k for time in TIMES)}
        lines.append(json.dumps({k: v for k, v in kept.items() if k != "tokens_per_second"}))
    return lines
