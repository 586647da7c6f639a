"""Faults for minutes: python -m tests.soak --rounds 10 --seed 1 [--only NAME]

Points and moments are drawn by the seed, which is printed: the same seed draws the same ones,
though at what a run was at some moment also depends on the machine. Exit code 1: a fault had
another outcome than it must; what was injected, and where, is a table at the end.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests import faults
from tests.clips import ClipShelf
from tests.faults import Site, Told
from tests.forking import Forks

NUM_VIDEOS = 4
YEARS_SECONDS = 1e8


class Interruptions:
    """How long runs took to end when they were told to."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def one(self, site: Site, chance: random.Random) -> Told:
        num_workers = chance.choice((1, 2))
        number = chance.choice((signal.SIGINT, signal.SIGTERM))
        seconds, stage = faults.interrupted(
            site,
            number,
            num_workers=num_workers,
            after_seconds=chance.uniform(0, 1.5 * site.seconds * num_workers),
        )
        self.seconds.append(seconds)
        return Counter({stage: 1})


def soak(site: Site, *, seed: int, rounds: int, only: str | None) -> int:
    """Each fault `rounds` times: how many had another outcome than they must."""
    interruptions = Interruptions()

    def point(chance: random.Random) -> int:
        return chance.randrange(site.num_operations)

    kinds: dict[str, Callable[[random.Random], Told]] = {
        "killed before or after an operation": lambda chance: faults.killed_at_operation(
            site, point(chance), when=chance.choice(("before", "after"))
        ),
        "killed at random, 1 worker": lambda chance: faults.killed_at_random(
            site, chance, num_workers=1
        ),
        "killed at random, 2 workers": lambda chance: faults.killed_at_random(
            site, chance, num_workers=2
        ),
        "killed at random, the next run at once": lambda chance: faults.killed_at_random(
            site, chance, num_workers=2, waits=False
        ),
        "a worker killed": lambda chance: faults.worker_killed(site, chance),
        "a decoder killed": lambda chance: faults.decoder_killed(
            site, chance, num_workers=chance.choice((1, 2))
        ),
        "SIGINT or SIGTERM": lambda chance: interruptions.one(site, chance),
        "disk full from an operation on": lambda chance: faults.disk_full_at(
            site, int(0.9 * point(chance))
        ),
        "two runs at once": lambda chance: faults.two_at_once(
            site, after_seconds=chance.uniform(0, site.seconds)
        ),
        "clock moved": lambda chance: faults.clock_moved(
            site,
            by_seconds=chance.choice((-1, 1)) * YEARS_SECONDS,
            kill_at=int(0.9 * point(chance)),
        ),
    }
    if faults.can_mount():
        kinds["a disk that is too small"] = lambda chance: faults.disk_really_full(
            site, num_bytes=chance.randrange(4096, 400_000), num_workers=chance.choice((1, 2))
        )
    table: dict[str, Counter[str]] = {}
    num_failed = 0
    for name, fault in kinds.items():
        if only is not None and only not in name:
            continue
        told = table[name] = Counter()
        for number in range(rounds):
            began = time.monotonic()
            try:
                where = fault(random.Random(f"{seed} {name} {number}"))
            except (AssertionError, TimeoutError):
                traceback.print_exc(file=sys.stdout)
                where = Counter({"FAILED": 1})
                num_failed += 1
            told += where
            print(f"{name} {number}: {dict(where)}, {time.monotonic() - began:.1f} s", flush=True)
    print(f"\nseed {seed}, {rounds} rounds: what was injected, and how far the run had come")
    for name, told in table.items():
        places = ", ".join(f"{place} {count}" for place, count in sorted(told.items()))
        print(f"  {name}: {told.total()} ({places})")
    if interruptions.seconds:
        print(f"  slowest end after SIGINT or SIGTERM: {max(interruptions.seconds):.2f} s")
    return num_failed


def main() -> int:
    """Read the arguments, make videos, soak."""
    parser = argparse.ArgumentParser(description="Injure runs, and compare what comes of them.")
    parser.add_argument("--rounds", type=int, default=10, help="of each fault [10]")
    parser.add_argument("--seed", type=int, help="draws the same faults again")
    parser.add_argument("--only", help="faults whose name holds this")
    chosen = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    print(f"seed {seed}: repeat with --rounds {chosen.rounds} --seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="reelcache-soak-") as name:
        folder = Path(name)
        for one in ("clips", "site"):
            (folder / one).mkdir()
        with Forks(folder / "site") as forks:
            clips = ClipShelf(folder / "clips")
            site = Site.make(clips, folder / "site", forks, num_videos=NUM_VIDEOS)
            return int(soak(site, seed=seed, rounds=chosen.rounds, only=chosen.only) > 0)


if __name__ == "__main__":
    sys.exit(main())
