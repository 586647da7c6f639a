"""Where the figures of a training run go: always to metrics.jsonl, and to what the user likes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class MetricsLog:
    """A context manager; `log(step, figures)`."""

    def __init__(self, folder: Path, *, kinds: Sequence[str], config: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "metrics.jsonl").open("a", encoding="utf-8")
        self._kinds = kinds
        self._config = config

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def log(self, step: int, figures: Mapping[str, float | str]) -> None:
        """One line a step."""
        self._file.write(json.dumps({"step": step, **figures}) + "\n")
        self._file.flush()
