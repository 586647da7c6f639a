"""RunFolder: where a run writes, and what was begun there.

RUN/run.json        the config and the cache's path, written when it begins
RUN/metrics.jsonl   figures by step
RUN/step-.../       checkpoints
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from schemas.errors import ModelDamaged, StorageError, UsageError
from trainer.config import TrainConfig

RUN = "run.json"
COMPLETE = "COMPLETE"
"""The last file of a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunRun:
    """What a run was begun with."""

    cache: str
    config: dict[str, Any]
    """As of `TrainConfig.to_mapping`."""


def has_checkpoints(folder: Path) -> bool:
    """Whether a run has got so far there."""
    return any(folder.glob(f"step-*/{COMPLETE}"))


def begin_run(config: TrainConfig, *, cache: str) -> None:
    """Make the folder of a run and write run.json. StorageError: it cannot be written."""
    folder = Path(config.run.out)
    begun = {"cache": cache, "config": config.to_mapping()}
    with written_into(folder):
        folder.mkdir(parents=True, exist_ok=True)
        writing = folder / f"{RUN}.writing"
        writing.write_text(json.dumps(begun, indent=1) + "\n", encoding="utf-8")
        writing.replace(folder / RUN)


@contextlib.contextmanager
def written_into(folder: Path, *, scratch: Path | None = None) -> Iterator[None]:
    """What the system says of a place that is read-only or full, as a StorageError.

    `scratch` is what was begun there and is of no use any more: its space is given back.
    """
    try:
        yield
    except OSError as error:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StorageError(
            f"{folder}: cannot be written: {reason}",
            hint="free some space or choose another place; checkpoints that are complete are kept",
        ) from error


def read_run(folder: Path) -> BegunRun:
    """What was begun in a folder. UsageError: nothing was. ModelDamaged: run.json is no such."""
    path = folder / RUN
    if not path.is_file():
        raise UsageError(
            f"{folder} is not the folder of a run: it has no {RUN}",
            hint="begin one with: trainer train CACHE --config T.toml --out FOLDER",
        )
    try:
        begun = BegunRun(**json.loads(path.read_text(encoding="utf-8")))
        if not isinstance(begun.cache, str) or not isinstance(begun.config, dict):
            raise ValueError("cache must be text and config an object")
        return begun
    except (OSError, ValueError, TypeError) as error:
        raise ModelDamaged(f"{path}: cannot be read: {error}") from error


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The config with its files named so that they are found from any folder."""
    lm = config.model.lm
    return replace(
        config,
        data=tuple(replace(one, path=absolute(one.path)) for one in config.data),
        model=replace(
            config.model,
            lm=absolute(lm) if Path(lm).exists() else lm,
            init=absolute(config.model.init) if config.model.init else "",
        ),
    )


def absolute(path: str) -> str:
    """A local path from the root on; an address of a store as it is."""
    return path if "://" in path else str(Path(path).absolute())
