"""Task: the videos, their cache, what is said about them, and a model that can learn it.

A folder holds `videos/`, first those to train on and then those to test with; `videos.csv` with
their uri and id; the recipe `shapes.toml`; `cache/`, made by `pipeline run`; annotations,
`train-captions.jsonl`, `train-qa.jsonl` and the same for `test`; `lm/`, tokenizer and untrained
language model; and, written last, `task.json`.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shapes.clips import write_clips
from benchmarks.shapes.language import write_lm
from benchmarks.shapes.questions import (
    caption_row,
    question_rows,
    read_rows,
    texts_of,
    write_rows,
)
from benchmarks.shapes.scene import Scene, make_scene

ROOT = Path(__file__).resolve().parents[2]
VERSION = 1
"""Of everything that shapes the data; another one is made anew."""
RECIPE = """\
name = "shapes"
description = "two objects in time: seeded random pictures, motion, loudness"

[sampling]
fps = 2.0
frames_per_clip = 4

[streams.image]
encoder = "random-relu"

[streams.motion]
encoder = "motion-energy"

[audio]
encoder = "log-mel"
tokens_per_window = 2

[preview]
enabled = false

[shards]
max_seconds = 1600.0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Where everything lies."""

    folder: Path
    seed: int
    num_train: int
    num_test: int

    @property
    def videos(self) -> Path:
        return self.folder / "videos"

    @property
    def manifest(self) -> Path:
        return self.folder / "videos.csv"

    @property
    def recipe(self) -> Path:
        return self.folder / "shapes.toml"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def lm(self) -> Path:
        return self.folder / "lm"

    def captions(self, split: str) -> Path:
        """Of `train` or `test`: a row a video."""
        return self.folder / f"{split}-captions.jsonl"

    def questions(self, split: str) -> Path:
        """Of `train` or `test`: six or seven rows a video."""
        return self.folder / f"{split}-qa.jsonl"

    def questions_of(self, split: str, kind: str) -> Path:
        """Those of one of `questions.TYPES`; written when they are asked for."""
        path = self.folder / f"{split}-{kind}.jsonl"
        if not path.exists():
            rows = read_rows(self.questions(split))
            write_rows(path, [row for row in rows if row["meta"]["type"] == kind])
        return path

    def scenes(self, split: str) -> list[Scene]:
        """Of `train` or `test`."""
        train = range(self.num_train)
        test = range(self.num_train, self.num_train + self.num_test)
        return [make_scene(self.seed, index) for index in (train if split == "train" else test)]


def make_task(
    folder: Path, *, num_train: int, num_test: int, seed: int = 0, processes: int = 2
) -> Task:
    """All of it; what is there already is kept.

    RuntimeError: it is another task's folder. CalledProcessError: the pipeline failed.
    """
    task = Task(folder=folder.absolute(), seed=seed, num_train=num_train, num_test=num_test)
    about = {"version": VERSION, "seed": seed, "num_train": num_train, "num_test": num_test}
    done, begun = task.folder / "task.json", task.folder / "begun.json"
    for marker in (done, begun):
        if marker.exists() and json.loads(marker.read_text()) != about:
            raise RuntimeError(f"{folder} has another task: {marker.read_text()}; wanted {about}")
    if done.exists():
        return task
    task.folder.mkdir(parents=True, exist_ok=True)
    begun.write_text(json.dumps(about))
    scenes = {split: task.scenes(split) for split in ("train", "test")}
    everyone = scenes["train"] + scenes["test"]
    write_clips(
        task.videos,
        seed=seed,
        indices=[scene.index for scene in everyone],
        processes=processes,
    )
    with task.manifest.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["uri", "id"])
        for scene in everyone:
            table.writerow([task.videos / f"{scene.video_id}.mp4", scene.video_id])
    _write_annotations(task, scenes)
    task.recipe.write_text(RECIPE)
    _run_pipeline(task, task.recipe, task.cache, processes)
    begun.rename(done)
    return task


def _run_pipeline(task: Task, recipe: Path, cache: Path, processes: int) -> None:
    command = [sys.executable, "-m", "pipeline", "run", str(task.manifest), str(cache)]
    command += ["--recipe", str(recipe), "--workers", str(processes), "--quiet"]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


def _write_annotations(task: Task, scenes: dict[str, list[Scene]]) -> None:
    texts: list[str] = []
    for split, some in scenes.items():
        rows: dict[Path, list[dict[str, Any]]] = {
            task.captions(split): [caption_row(scene) for scene in some],
            task.questions(split): [row for scene in some for row in question_rows(scene)],
        }
        for path, those in rows.items():
            write_rows(path, those)
            if split == "train":
                texts += texts_of(those)
    write_lm(task.lm, texts, seed=task.seed)
