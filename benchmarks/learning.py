"""Whether a model learns from a cache what only the video can tell; and what helps it.

    python -m benchmarks.learning [--quick] [--folder DIR] [--seeds 3] [--only proof|claims]

Videos of shapes in time are written as mp4 files and cached by `pipeline run`; a small random
Qwen2 learns captions, then questions, from the cache, and its exported model is asked about videos
that it never saw. Beside it stand the same model without a video and with one frame of it, and the
best constant answers. `proof` has gates, and the exit code is 1 where one is missed; `claims`
compares, with several seeds, what is said to matter. What was trained is kept in the folder and
not trained again. Prints tables and writes bench-results/learning.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.shapes.arms import BASELINES, CLAIMS, DIRECTION
from benchmarks.shapes.blind import best_constant_accuracy, best_constant_spans
from benchmarks.shapes.learn import Learnt, learn
from benchmarks.shapes.questions import read_rows
from benchmarks.shapes.task import Task, make_task
from benchmarks.timing import write_report

RESULTS = Path("bench-results") / "learning.json"
SCORES = ("order", "color", "direction", "beep", "miou", "r@0.3", "r@0.5")
TIMES = ("miou", "r@0.3", "r@0.5")
"""What the claims are compared by, with the loss on captions: what few steps teach."""
PROOF_STEPS, DIRECTION_STEPS, CLAIM_STEPS = (300, 2700), (900, 1300), (200, 300)
"""Of captions, and of questions with captions among them."""
GATES = {"order": 0.90, "color": 0.70, "r@0.3": 0.85, "r@0.5": 0.70, "miou": 0.55}
"""Least of `base`."""
DIRECTION_GATE = 0.60
"""Least of the arm that is asked for nothing else."""
ABOVE_BLIND = 0.30
"""Each gated score over that without a video."""
ABOVE_CENTRE = 0.20
"""Of order, over that with one frame."""
BLIND_LIMITS = {"order": 0.60, "color": 0.40, "r@0.5": 0.35}
"""Most without a video; more, and the questions give answers away."""
BEEP = (0.90, 0.65)
"""Least with sound, most without."""


def main() -> int:
    """Exit code 1: a gate was missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="few videos and steps; no gates")
    parser.add_argument("--folder", type=Path, help="keep videos, cache and runs here")
    parser.add_argument("--seeds", type=int, default=3, help="of the claims")
    parser.add_argument("--only", choices=("proof", "claims"))
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        num_train, num_test = (200, 20) if options.quick else (3000, 200)
        task = make_task(
            folder / "task", num_train=num_train, num_test=num_test, processes=options.processes
        )
        report: dict[str, Any] = {"bounds": bounds(task)}
        missed: list[str] = []
        num_workers = options.processes
        if options.only != "claims":
            proof = [("base", 0), *((arm, 0) for arm in BASELINES)]
            moves = [(arm, 0) for arm in DIRECTION]
            steps, more_steps = ((20, 20),) * 2 if options.quick else (PROOF_STEPS, DIRECTION_STEPS)
            learnt = run(task, proof, folder / "proof", steps, num_workers)
            learnt += run(
                task, moves, folder / "direction", more_steps, num_workers, kind="direction"
            )
            print_proof(learnt, report["bounds"])
            missed = [] if options.quick else missed_gates(learnt)
            report["proof"] = [asdict(one) for one in learnt]
            report["missed"] = missed
        if options.only != "proof":
            steps = (10, 10) if options.quick else CLAIM_STEPS
            seeds = range(1 if options.quick else options.seeds)
            arms = dict.fromkeys(arm for arms in CLAIMS.values() for arm in arms)
            jobs = [(arm, seed) for seed in seeds for arm in arms]
            learnt = run(task, jobs, folder / "claims", steps, num_workers, kind="time")
            print_claims(learnt)
            report["claims"] = [asdict(one) for one in learnt]
    write_report(report, RESULTS)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def run(
    task: Task,
    jobs: list[tuple[str, int]],
    folder: Path,
    steps: tuple[int, int],
    processes: int,
    *,
    kind: str = "",
) -> list[Learnt]:
    """What each (arm, seed) has learned, in processes of one thread each."""
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), max_tasks_per_child=1)
    with pool:
        align_steps, qa_steps = steps
        options = {"align_steps": align_steps, "qa_steps": qa_steps, "kind": kind}
        at_work = [
            pool.submit(learn, task, arm, seed=seed, folder=folder, **options) for arm, seed in jobs
        ]
        learnt = []
        for one in (future.result() for future in at_work):
            shown = ", ".join(f"{name} {value:.3f}" for name, value in one.scores.items())
            print(f"{one.arm}, seed {one.seed}: {shown}; {one.cpu_seconds:.0f} CPU s", flush=True)
            learnt.append(one)
    return learnt


def bounds(task: Task) -> dict[str, float]:
    """The best constant answers, on the questions that models are asked."""
    rows = read_rows(task.questions("test"))
    of_type = {name: [row for row in rows if row["meta"]["type"] == name] for name in SCORES[:4]}
    times = best_constant_spans(row for row in rows if row["meta"]["type"] == "time")
    found = {name: best_constant_accuracy(some) for name, some in of_type.items()}
    return found | {
        "miou": times.mean_iou,
        "r@0.3": times.recall_03,
        "r@0.5": times.recall_05,
    }


def missed_gates(learnt: list[Learnt]) -> list[str]:
    """Which gates of the proof were missed, in words."""
    by_arm = {one.arm: one.scores for one in learnt}
    base, blind, centre = by_arm["base"], by_arm["text only"], by_arm["centre frame"]
    checks = [(f"{name} >= {least}", base[name] >= least) for name, least in GATES.items()]
    checks += [
        (f"{name} {ABOVE_BLIND} above text only", base[name] >= blind[name] + ABOVE_BLIND)
        for name in GATES
    ]
    checks += [
        (f"text only: {name} <= {most}", blind[name] <= most) for name, most in BLIND_LIMITS.items()
    ]
    moves = by_arm["direction"]["direction"]
    checks.append((f"direction >= {DIRECTION_GATE}", moves >= DIRECTION_GATE))
    with_sound, without = base["beep"], by_arm["no sound"]["beep"]
    checks += [
        (
            f"order {ABOVE_CENTRE} above the centre frame",
            base["order"] >= centre["order"] + ABOVE_CENTRE,
        ),
        (f"beep >= {BEEP[0]} with sound", with_sound >= BEEP[0]),
        (f"beep <= {BEEP[1]} without sound", without <= BEEP[1]),
    ]
    return [name for name, holds in checks if not holds]


def print_proof(learnt: list[Learnt], constant: dict[str, float]) -> None:
    """A row an arm, and the constant answers; blank: not asked."""
    rows = [(one.arm, one.scores) for one in learnt] + [("best constant", constant)]
    print(f"\n{'':20}" + "".join(f"{name:>10}" for name in SCORES))
    for name, scores in rows:
        cells = (f"{scores[one]:10.3f}" if one in scores else " " * 10 for one in SCORES)
        print(f"{name:20}" + "".join(cells))


def print_claims(learnt: list[Learnt]) -> None:
    """A row an arm: mean and standard deviation over seeds."""
    by_arm: dict[str, list[Learnt]] = {}
    for one in learnt:
        by_arm.setdefault(one.arm, []).append(one)
    columns = ("caption loss", *TIMES)
    for claim, arms in CLAIMS.items():
        print(f"\n{claim:20}" + "".join(f"{name:>15}" for name in columns))
        for arm in arms:
            values = [[one.caption_loss for one in by_arm[arm]]]
            values += [[one.scores[name] for one in by_arm[arm]] for name in TIMES]
            print(f"{arm:20}" + "".join(f"{mean_text(some):>15}" for some in values))


def mean_text(values: list[float]) -> str:
    """Such as 0.714 ±0.012."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} ±{spread:.3f}"


if __name__ == "__main__":
    sys.exit(main())
