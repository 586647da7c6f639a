"""Where the figures of a run go: always to metrics.jsonl, and to TensorBoard and wandb if asked."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from schemas.errors import UsageError
from trainer.learning.run_folder import written_into

METRICS = "metrics.jsonl"


class _Writer(Protocol):
    def write(self, step: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class MetricsLog:
    """A context manager; `log(step, figures)`."""

    def __init__(
        self, folder: Path, *, kinds: Sequence[str], config: Mapping[str, Any], done: int = 0
    ) -> None:
        """`done`: steps that are done; lines of later ones are dropped, since they come again.

        UsageError: a package of `kinds` is missing. StorageError: it cannot be written.
        """
        makers: dict[str, Callable[[Path, Mapping[str, Any], int], _Writer]] = {
            "tensorboard": _TensorBoard,
            "wandb": _Wandb,
        }
        self._writers: list[_Writer] = [
            makers[kind](folder, config, done) for kind in dict.fromkeys(kinds) if kind in makers
        ]
        self._folder = folder
        path = folder / METRICS
        with written_into(folder):
            folder.mkdir(parents=True, exist_ok=True)
            kept = _lines_until(path, done)
            path.with_suffix(".writing").write_text("".join(kept), encoding="utf-8")
            path.with_suffix(".writing").replace(path)
            self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        with written_into(self._folder):
            self._file.close()
        for writer in self._writers:
            writer.close()

    def log(self, step: int, figures: Mapping[str, float | str | list[int]]) -> None:
        """One line; of a list each number is a figure of its own where there are only numbers."""
        with written_into(self._folder):
            self._file.write(json.dumps({"step": step, **figures}) + "\n")
            self._file.flush()
        numbers: dict[str, float] = {}
        for name, value in figures.items():
            if isinstance(value, list):
                numbers |= {f"{name}/{place}": one for place, one in enumerate(value)}
            elif not isinstance(value, str):
                numbers[name] = value
        for writer in self._writers:
            writer.write(step, numbers)


def _lines_until(path: Path, step: int) -> list[str]:
    if not path.is_file():
        return []
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        # A last line may have been cut off, and a full disk leaves pieces.
        with contextlib.suppress(ValueError, LookupError, TypeError):
            if line.endswith("}\n") and json.loads(line)["step"] <= step:
                kept.append(line)
    return kept


class _TensorBoard:
    def __init__(self, folder: Path, config: Mapping[str, Any], done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard") from error
        self._writer = SummaryWriter(str(folder), purge_step=done + 1)
        text = json.dumps(config, indent=1)
        self._writer.add_text("config", f"```\n{text}\n```")

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, folder: Path, config: Mapping[str, Any], done: int) -> None:  # noqa: ARG002
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb") from error
        # One name for all parts of a run that was interrupted.
        self._run = wandb.init(
            project="reelcache", name=folder.name, dir=str(folder), config=dict(config)
        )

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()


def _missing(name: str) -> UsageError:
    return UsageError(
        f"run.log has {name!r}, which is not installed", hint=f"run: pip install {name}"
    )
