"""What encoding costs beside the bare encoder, and a whole run beside its floors.

    python -m benchmarks.encode [--quick] [--part steps|run] [--folder FOLDER]

CPU seconds decide. A step is measured in this process with one thread, each way once a round in
shuffled order, the first round dropped; features are compared before anything is timed. Prints
tables and writes bench-results/encode.json. See encode_run for what is taken off as start-up.
"""

from __future__ import annotations

import argparse
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.clips import TINY, Recording
from benchmarks.encode_run import RunCase, measure_case
from benchmarks.encode_steps import BARE, StepScope, measure_steps
from benchmarks.timing import LoadWatch, clip_folder, write_report

RESULTS = Path("bench-results") / "encode.json"
MOST_STEP, MOST_RUN = 1.05, 1.10
"""Times the floor, by CPU seconds."""
_PLAIN = Recording(codec="h264", height=360, seconds=12, gop=250, num_b=3)
_INTERNVIDEO2 = {"video": {"encoder": "internvideo2-s14", "weights": "random"}}
_PROJECTIONS = {"image": {"encoder": "random-image"}, "video": {"encoder": "random-video"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much is measured."""

    steps: StepScope
    cases: tuple[RunCase, ...]
    rounds: int
    """Of runs; the first is dropped."""


SCOPES = {
    "full": Scope(
        steps=StepScope(
            encoders=(
                ("internvideo2-s14", 2),
                ("siglip-b-16-224", 1),
                ("efficientnet-lite0", 16),
            ),
            rounds=8,
        ),
        cases=(
            RunCase(
                name="internvideo2-s14",
                streams=_INTERNVIDEO2,
                recording=_PLAIN,
                num_videos=4,
                seconds=12,
            ),
            RunCase(
                name="projections",
                streams=_PROJECTIONS,
                recording=_PLAIN,
                num_videos=6,
                seconds=48,
            ),
        ),
        rounds=4,
    ),
    "quick": Scope(
        steps=StepScope(encoders=(("internvideo2-s14", 1), ("efficientnet-lite0", 8)), rounds=4),
        cases=(
            RunCase(
                name="projections",
                streams=_PROJECTIONS,
                recording=_PLAIN,
                num_videos=4,
                seconds=24,
            ),
        ),
        rounds=3,
    ),
    "tiny": Scope(
        steps=StepScope(encoders=(("internvideo2-s14", 1), ("none-such", 1)), rounds=2),
        cases=(
            RunCase(
                name="projections", streams=_PROJECTIONS, recording=TINY, num_videos=1, seconds=6
            ),
        ),
        rounds=2,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const="quick", dest="scope", default="full")
    size.add_argument("--tiny", action="store_const", const="tiny", dest="scope", help="a test")
    parser.add_argument("--part", choices=("steps", "run"), help="only this; default: both")
    parser.add_argument("--folder", type=Path, help="where the clips stay")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    options = parser.parse_args()
    scope = SCOPES[options.scope]
    watch = LoadWatch()
    steps: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    if options.part != "run":
        steps = measure_steps(scope.steps)
        show_steps(steps)
    if options.part != "steps":
        with clip_folder(options.folder) as folder:
            for case in scope.cases:
                runs.append(measure_case(case, folder, rounds=scope.rounds))
                show_run(runs[-1])
    report = {
        "name": "encode",
        "num_cores": watch.num_cores,
        "wall_ratios_reliable": watch.look(),
        "load_average": watch.load,
        "python": platform.python_version(),
        "scope": asdict(scope),
        "steps": steps,
        "runs": runs,
        "targets": judge(steps, runs),
    }
    write_report(report, options.json)
    show_verdicts(report)


def judge(steps: list[dict[str, Any]], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    measured = [
        (f"{row['encoder']}: {row['way']}", row["cpu_ratio"], MOST_STEP)
        for row in steps
        if not row["note"] and row["way"] != BARE
    ] + [(f"{row['case']}: pipeline run", row["cpu_ratio"], MOST_RUN) for row in runs]
    return [
        {
            "name": name,
            "ratio": ratio,
            "most": most,
            "verdict": "met" if ratio <= most else "missed",
        }
        for name, ratio, most in measured
    ]


def show_steps(rows: list[dict[str, Any]]) -> None:
    print(f"{'encoder':20}{'way':22}{'CPU s':>8}{'min':>8}   x {BARE}")
    for row in rows:
        if row["note"]:
            print(f"{row['encoder']:20}{row['note']}")
            continue
        cpu = row["cpu_seconds"]
        print(
            f"{row['encoder']:20}{row['way']:22}{cpu['median']:8.3f}{cpu['minimum']:8.3f}"
            f"   {row['cpu_ratio']:.3f}"
        )


def show_run(row: dict[str, Any]) -> None:
    print(
        f"\n{row['case']}, {row['num_clips']} clips: CPU s {row['run_cpu_seconds']:.2f}"
        f" (and {row['start_cpu_seconds']:.2f} for one clip),"
        f" decode floor {row['decode_cpu_seconds']:.2f},"
        f" encode floor {row['encode_cpu_seconds']:.2f}: {row['cpu_ratio']:.3f} x the floors;"
        f" {row['run_wall_seconds']:.1f} s wall",
        flush=True,
    )


def show_verdicts(report: dict[str, Any]) -> None:
    print()
    for target in report["targets"]:
        print(
            f"{target['verdict']}: {target['name']}: {target['ratio']:.3f},"
            f" at most {target['most']:.2f} x its floor by CPU seconds"
        )
    print(f"{report['num_cores']} cores, load up to {report['load_average']:.2f}")
    if not report["wall_ratios_reliable"]:
        print("More load than cores: no wall seconds can be relied on.")


if __name__ == "__main__":
    main()
