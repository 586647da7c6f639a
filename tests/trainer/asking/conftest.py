"""Runs of a few steps from a small cache, and the models that are exported from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.trainer.asking.asked_runs import CONFIG, VIDEOS, WHOLE, merged

if TYPE_CHECKING:
    from pipeline.cache import FeatureCache
    from tests.clips import ClipShelf
    from trainer.model.model_folder import AskableModel


@pytest.fixture(scope="session")
def videos(clips: ClipShelf) -> list[Path]:
    return [clips[name].path for name in VIDEOS]


@pytest.fixture(scope="session")
def cache_path(videos: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    import beam_runner
    from pipeline.sources import read_sources
    from schemas.recipe import Recipe

    recipe = Recipe.load("tiny").to_mapping() | {
        "audio": {"encoder": "log-mel", "tokens_per_window": 2}
    }
    path = tmp_path_factory.mktemp("asked") / "cache"
    sources = read_sources([str(video) for video in videos]).sources
    beam_runner.run(sources, Recipe.from_mapping(recipe), cache_path=path)
    return path


@pytest.fixture
def cache(cache_path: Path) -> FeatureCache:
    from pipeline.cache import open_cache

    return open_cache(cache_path)


@pytest.fixture(scope="session")
def questions(videos: list[Path], cache_path: Path) -> Path:
    """Of words, of times and of choices."""
    rows: list[dict[str, Any]] = []
    for number, video in enumerate(videos):
        words = [("What is it?", f"clip {number}", "object"), ("When?", "1.0 to 2.5", "time")]
        for question, answer, kind in words:
            rows.append(
                {
                    "id": f"{kind}{number}",
                    "video": str(video),
                    "messages": [
                        {"role": "user", "content": question},
                        {"role": "assistant", "content": answer},
                    ],
                    "meta": {"type": kind},
                }
            )
    path = cache_path.parent / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


Train = Callable[..., Path]


@pytest.fixture(scope="session")
def train(cache_path: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """(stages, changes of the config) -> the folder of a run."""
    import torch

    from pipeline.cache import open_cache
    from trainer.config import TrainConfig
    from trainer.learning.training import TrainingRun

    torch.set_num_threads(1)

    def do(*stages: dict[str, Any], **changes: Any) -> Path:
        out = tmp_path_factory.mktemp("run") / "run"
        named = [{"name": f"stage{number}", **stage} for number, stage in enumerate(stages)]
        mapping = merged(CONFIG, changes) | {"stages": named, "data": [{"path": str(questions)}]}
        config = TrainConfig.from_mapping(mapping, overrides=[f"run.out={out}"])
        with open_cache(cache_path) as opened:
            TrainingRun(config, cache=opened).train()
        return out

    return do


@pytest.fixture(scope="session")
def whole_run(train: Train) -> Path:
    """Of which the language model was trained too; with sound and a head for times."""
    return train(WHOLE, model={"audio": {}, "time": {"regression_weight": 0.1}})


@pytest.fixture(scope="session")
def model_path(whole_run: Path) -> Path:
    """Its model; not to be changed."""
    from trainer.learning.exporting import export_run

    return Path(export_run(whole_run).model)


@pytest.fixture(scope="session")
def model(model_path: Path) -> AskableModel:
    from trainer.model.model_folder import open_model

    return open_model(model_path)
