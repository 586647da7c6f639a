"""What training from a cache costs, beside its floors and peers.

    python -m benchmarks.train [--only reading] [--rounds 11] [--folder FOLDER]

Sections: `reading`, from shards to batches. Prints tables and writes bench-results/train.json.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import LoadWatch, write_report
from benchmarks.train_reading import KINDS, TINY_KINDS, measure_reading, show_reading

RESULTS = Path("bench-results") / "train.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much is measured."""

    is_tiny: bool
    rounds: int
    """The first is dropped."""
    folder: Path | None
    watch: LoadWatch


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
    sections = {name: SECTIONS[name](scope) for name in options.only or SECTIONS}
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
    if not scope.watch.look():
        print("More load than cores: no ratio of wall seconds can be relied on.")
    return report


SECTIONS: dict[str, Callable[[Scope], dict[str, Any]]] = {"reading": reading}


if __name__ == "__main__":
    main()
