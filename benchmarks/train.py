"""What training from a cache costs, beside its floors and peers.

    python -m benchmarks.train [--only SECTION] [--rounds 11] [--folder FOLDER]

Sections: `reading`, from shards to batches; `wait`, what share of a step a run waits for data;
`fill`, how full packs are; `in_loop`, a step from cached features beside the same step with the
encoder in it; `resume`, how soon a run goes on. Prints tables and writes bench-results/train.json.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import train_fill, train_in_loop, train_resume, train_wait
from benchmarks.timing import LoadWatch, write_report
from benchmarks.train_reading import KINDS, TINY_KINDS, measure_reading, show_reading
from encoders.importing import without_torchvision

MOST_ROUNDS = 4
"""Of sections that train: a round of them takes a minute."""
RESULTS = Path("bench-results") / "train.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much is measured."""

    is_tiny: bool
    rounds: int
    """The first is dropped."""
    folder: Path | None
    watch: LoadWatch

    @property
    def training_rounds(self) -> int:
        """Rounds of sections that train."""
        return min(self.rounds, MOST_ROUNDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a section, or several")
    parser.add_argument("--tiny", action="store_true", help="a test")
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=11, help="the first is dropped")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2")
    torch.set_num_threads(1)
    scope = Scope(
        is_tiny=options.tiny,
        rounds=options.rounds,
        folder=options.folder,
        watch=LoadWatch(),
    )
    with without_torchvision():
        from transformers.utils import logging
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    sections = {}
    for name in options.only or SECTIONS:
        sections[name] = SECTIONS[name](scope)
        print(flush=True)
    if not scope.watch.look():
        print("More load than cores: no ratio of wall seconds can be relied on.")
    report = {
        "name": "train",
        "num_cores": scope.watch.num_cores,
        "wall_ratios_reliable": scope.watch.look(),
        "load_average": scope.watch.load,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **sections,
    }
    write_report(report, options.json)


def reading(scope: Scope) -> dict[str, Any]:
    """From shards to batches."""
    kinds = TINY_KINDS if scope.is_tiny else KINDS
    report = measure_reading(
        kinds, rounds=scope.rounds, folder=scope.folder, is_reliable=scope.watch.look
    )
    show_reading(report, is_reliable=scope.watch.look())
    return report


def wait(scope: Scope) -> dict[str, Any]:
    """The share of a step that a run waits for data."""
    report = train_wait.measure_wait(
        train_wait.TINY if scope.is_tiny else train_wait.FULL,
        rounds=scope.training_rounds,
        folder=scope.folder,
        is_reliable=scope.watch.look,
    )
    train_wait.show_wait(report)
    return report


def fill(scope: Scope) -> dict[str, Any]:
    """How full packs are, and what planning costs."""
    report = train_fill.measure_fill(
        train_fill.TINY if scope.is_tiny else train_fill.FULL, rounds=scope.training_rounds
    )
    train_fill.show_fill(report, is_reliable=scope.watch.look())
    return report


def in_loop(scope: Scope) -> dict[str, Any]:
    """A step from cached features, beside one with the encoder in it."""
    report = train_in_loop.measure_in_loop(
        train_in_loop.TINY if scope.is_tiny else train_in_loop.FULL,
        rounds=scope.training_rounds,
        folder=scope.folder,
        is_reliable=scope.watch.look,
    )
    train_in_loop.show_in_loop(report)
    return report


def resume(scope: Scope) -> dict[str, Any]:
    """How soon a run goes on."""
    report = train_resume.measure_resume(
        train_resume.TINY if scope.is_tiny else train_resume.FULL,
        rounds=scope.training_rounds,
        folder=scope.folder,
    )
    train_resume.show_resume(report, is_reliable=scope.watch.look())
    return report


SECTIONS: dict[str, Callable[[Scope], dict[str, Any]]] = {
    "reading": reading,
    "wait": wait,
    "fill": fill,
    "in_loop": in_loop,
    "resume": resume,
}


if __name__ == "__main__":
    main()
