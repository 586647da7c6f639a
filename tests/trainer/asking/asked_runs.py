"""Settings of runs of a few steps."""

from __future__ import annotations

from typing import Any

VIDEOS = ("25.mp4", "rotation_90.mp4", "variable_rate.mkv", "with_audio.mp4")
CONFIG: dict[str, Any] = {
    "batch": {"tokens_per_pack": 512, "packs": 2, "readers": 0},
    "model": {"lm": "tiny", "connector": {"tokens_per_frame": 1.0, "depth": 1, "heads": 4}},
    "run": {"save_every": 2, "keep": 5},
}
WHOLE = {"train": ["connector", "lm"], "lr": {"connector": 3e-3, "lm": 3e-3}, "steps": 4}
FROZEN = {"train": ["connector"], "lr": {"connector": 3e-3}, "steps": 2}
LORA = {"lora": {"r": 2, "alpha": 8}}


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    out = dict(one)
    for name, value in other.items():
        deep = isinstance(value, dict) and isinstance(out.get(name), dict)
        out[name] = merged(out[name], value) if deep else value
    return out
