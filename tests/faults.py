"""Faults of whole runs, one function each: what is done to a cache, and what must come of it.

`test_faults` calls them with few points, `soak` with many that are chosen by a seed. AssertionError
says what did not come out as it must; the value returned says how often a fault was injected, and
where.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.verifying import verify_cache
from tests.forking import PATIENCE_SECONDS, ROOT, Fork, Forks, children

if TYPE_CHECKING:
    from tests.clips import ClipShelf

SETTINGS = ("--set", "shards.max_seconds=2", "--set", "sampling.fps=10")
NAMES = ("25.mp4", "b_frames.mp4", "with_audio.mp4", "variable_rate.mp4")
INTERRUPT_SECONDS = 5.0
"""That a run may take to end when it is told to."""
ORPHAN_SECONDS = 10.0
"""After a run was killed, until its workers and decoders have noticed."""
MOST_KILLS = 6
MOST_CLIPS = 20
"""Of a video, by these settings."""
SENTENCE = "Interrupted. What is committed is kept: run the same command again to go on."

Told = Counter[str]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A folder with videos, one of them broken, and what a run that nothing disturbs makes."""

    folder: Path
    forks: Forks
    whole: dict[str, bytes]
    num_operations: int
    seconds: float
    """Of that run."""

    @classmethod
    def make(cls, clips: ClipShelf, folder: Path, forks: Forks, *, num_videos: int) -> Site:
        videos = folder / "videos"
        videos.mkdir()
        for number in range(num_videos):
            data = clips[NAMES[number % len(NAMES)]].path.read_bytes()
            of_its_own = b"\0\0\0\x0cfree" + number.to_bytes(4, "big")
            (videos / f"{number}.mp4").write_bytes(data + of_its_own)
        (videos / "broken.mp4").write_text("no video")
        fork = forks.start("run", "videos", "whole", *SETTINGS, cache="whole", count=True)
        assert fork.wait() == 0, fork.err
        operations = [one for one in fork.journal if one["kind"] == "operation"]
        return cls(
            folder=folder,
            forks=forks,
            whole=contents(folder / "whole"),
            num_operations=len(operations),
            seconds=time.monotonic() - fork.began,
        )

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def begin(self) -> Trial:
        """A cache that does not exist yet."""
        shutil.rmtree(self.cache, ignore_errors=True)
        return Trial(self)


class Trial:
    """The runs on one cache, from the first to the one that ends well."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._forks: list[Fork] = []
        self._committed: dict[str, tuple[int, int]] = {}

    def start(self, *arguments: str, **injury: object) -> Fork:
        fork = self.site.forks.start("run", "videos", "cache", *SETTINGS, *arguments, **injury)
        self._forks.append(fork)
        return fork

    def ended(self) -> None:
        """After each run: no process is left, and what was committed is as it was."""
        self.site.forks.gone_after(seconds=ORPHAN_SECONDS)
        now = committed(self.site.cache)
        for name, identity in self._committed.items():
            assert now.get(name) == identity, f"{name} was written again"
        self._committed = now

    def finish(self, *arguments: str) -> None:
        """One more run, which ends well; then the cache is that of an uninterrupted run."""
        fork = self.start(*arguments)
        assert fork.wait() == 0, fork.err
        self.ended()
        self.check()

    def check(self, *, num_tried_again: int = 0) -> None:
        """Every file of the cache, what was encoded, what was left behind.

        `num_tried_again` is of videos whose decoder was killed: clips of theirs are encoded again.
        """
        check_same(contents(self.site.cache), self.site.whole)
        assert verify_cache(self.site.cache, deep=True).findings == []
        assert self.site.forks.temporary_files() == []
        self._check_encodes(num_tried_again)

    def _check_encodes(self, num_tried_again: int) -> None:
        wanted: Counter[str] = Counter()
        lost, encoded = num_tried_again * MOST_CLIPS, 0
        for fork in self._forks:
            begun = {one["shard"]: one["clips"] for one in fork.journal if one["kind"] == "begin"}
            done = {one["shard"]: one["clips"] for one in fork.journal if one["kind"] == "end"}
            encoded += sum(one["clips"] for one in fork.journal if one["kind"] == "encode")
            assert len(begun.keys() - done.keys()) <= 1, "more than one shard was in flight"
            lost += sum(begun[name] for name in begun.keys() - done.keys())
            wanted.update(done)
            assert all(wanted[name] == done[name] for name in done), "a shard was built twice"
        num_clips = sum(wanted.values())
        assert encoded <= num_clips + lost, f"{encoded} clips were encoded, {lost} were in flight"


def contents(cache: Path) -> dict[str, bytes]:
    """Every file."""
    paths = sorted(path for path in cache.rglob("*") if path.is_file())
    return {str(path.relative_to(cache)): path.read_bytes() for path in paths}


def check_same(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
    differing = [name for name in found if found[name] != expected[name]]
    assert differing == []


def committed(cache: Path) -> dict[str, tuple[int, int]]:
    """Tars and sidecars of the shards that are committed: which file each is."""
    found = {}
    for sidecar in (cache / "shards").glob("*.json"):
        for path in (sidecar, sidecar.with_suffix(".tar")):
            if path.exists():
                found[path.name] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return found


def stage_of(cache: Path, whole: dict[str, bytes]) -> str:
    """How far a run has come that was ended."""
    there = {str(path.relative_to(cache)) for path in cache.rglob("*")}
    if "probes/000000.parquet" not in there:
        return "probe"
    if "plan/000000.parquet" not in there:
        return "plan"
    sidecars = {name for name in whole if name.startswith("shards/") and name.endswith(".json")}
    if not sidecars <= there:
        tars = {name.removesuffix(".tar") for name in there if name.endswith(".tar")}
        return "publish" if any(f"{tar}.json" not in there for tar in tars) else "build"
    return "finalize" if "cache.json" not in there else "end"


def killed_at_operation(site: Site, number: int, *, when: str) -> Told:
    """kill -9 of the run before or after its n-th change of the cache."""
    trial = site.begin()
    fork = trial.start(kill_at=number, kill_when=when)
    code = fork.wait()
    # What the operations are is not certain to the last one: some depend on time.
    assert code == -signal.SIGKILL or (code == 0 and number > 0.9 * site.num_operations), fork.err
    trial.ended()
    stage = stage_of(site.cache, site.whole)
    trial.finish()
    return Counter({stage: 1})


def killed_at_random(
    site: Site, chance: random.Random, *, num_workers: int, waits: bool = True
) -> Told:
    """kill -9 of the run's process group, again and again.

    Unless it `waits`, the next run begins while workers of the killed one are still at work.
    """
    trial, told = site.begin(), Counter[str]()
    for _ in range(MOST_KILLS):
        fork = trial.start("--workers", str(num_workers))
        time.sleep(chance.uniform(0, 1.2 * site.seconds * num_workers))
        fork.signal(signal.SIGKILL)
        code = fork.wait()
        if waits:
            trial.ended()
        if code == 0:
            break
        assert code == -signal.SIGKILL, fork.err
        told[stage_of(site.cache, site.whole)] += 1
    trial.finish()
    return told


def worker_killed(site: Site, chance: random.Random) -> Told:
    """kill -9 of one of two worker processes: the run ends, and says so."""
    trial = site.begin()
    fork = trial.start("--workers", "2")
    pid = _wait_for(fork, "pipeline.worker")
    time.sleep(chance.uniform(0, 2 * site.seconds))
    told = Counter[str]()
    if pid is not None and _kill(pid):
        told[stage_of(site.cache, site.whole)] += 1
    code = fork.wait()
    trial.ended()
    assert code in (0, 2), fork.err
    assert code == 0 or "a worker process died (SIGKILL" in fork.err, fork.err
    assert "Traceback" not in fork.err
    trial.finish()
    return told


def decoder_killed(
    site: Site, chance: random.Random, *, num_workers: int, most_seconds: float = 0.0
) -> Told:
    """kill -9 of a decoder process: nothing is lost."""
    trial, told = site.begin(), Counter[str]()
    fork = trial.start("--workers", str(num_workers))
    _wait_for(fork, "pipeline.jailed")
    time.sleep(chance.uniform(0, most_seconds or site.seconds))
    _wait_for(fork, "pipeline.jailed")
    pids = list(_processes(fork, "pipeline.jailed"))
    if pids and _kill(chance.choice(pids)):
        told[stage_of(site.cache, site.whole)] += 1
    assert fork.wait() == 0, fork.err
    trial.ended()
    trial.check(num_tried_again=told.total())
    return told


def interrupted(
    site: Site,
    number: signal.Signals,
    *,
    num_workers: int,
    after_seconds: float = 0.0,
    once_there: str = "",
) -> tuple[float, str]:
    """SIGINT to the group, or SIGTERM to the run: (seconds until all is gone, stage).

    So many seconds after its start, or as soon as the cache has files of the pattern `once_there`.
    """
    trial = site.begin()
    fork = trial.start("--workers", str(num_workers))
    while once_there and fork.poll() is None and not list(site.cache.glob(once_there)):
        time.sleep(0.002)
    time.sleep(after_seconds)
    began = time.monotonic()
    if number == signal.SIGINT:
        fork.signal(number)
    elif fork.poll() is None:
        os.kill(fork.pid, number)
    code = fork.wait(seconds=INTERRUPT_SECONDS)
    site.forks.gone_after(seconds=INTERRUPT_SECONDS)
    seconds = time.monotonic() - began
    trial.ended()
    stage = stage_of(site.cache, site.whole)
    if code != 0:
        assert code == 128 + number, (code, fork.err)
        assert SENTENCE in fork.err, fork.err
        assert "Traceback" not in fork.err, fork.err
        assert not (site.cache / ".tmp").exists()
        assert site.forks.temporary_files() == []
    trial.finish()
    return seconds, stage


def disk_full_at(site: Site, number: int) -> Told:
    """From its n-th change of the cache on nothing can be written; then there is room again."""
    trial = site.begin()
    fork = trial.start(full_at=number)
    code = fork.wait()
    assert code == 2, (code, fork.err)
    assert "cannot be written: No space left on device" in fork.err
    assert "what is committed is kept, run again" in fork.err
    trial.ended()
    stage = stage_of(site.cache, site.whole)
    trial.finish()
    return Counter({stage: 1})


def can_mount() -> bool:
    """Whether a user may mount a small disk in a name space of its own."""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def disk_really_full(site: Site, *, num_bytes: int, num_workers: int) -> Told:
    """A cache on a disk of `num_bytes`, which then grows."""
    disk = site.folder / "disk"
    shutil.rmtree(disk, ignore_errors=True)
    disk.mkdir()
    run = [sys.executable, "-m", "pipeline", "run", "videos", "disk/cache", *SETTINGS]
    run += ["--workers", str(num_workers)]
    script = f"""
        mount -t tmpfs -o size={num_bytes} tmpfs disk || exit 99
        {shlex.join(run)}; echo code $?
        mount -o remount,size=1g disk
        {shlex.join(run)} -q; echo code $?
        cp -r disk/cache cache
    """
    site.begin()
    child = subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", script],
        cwd=site.folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        _, err = child.communicate()
        raise TimeoutError(f"not ended after {PATIENCE_SECONDS:.0f} s: {err}") from None
    codes = [int(line.split()[1]) for line in out.splitlines() if line.startswith("code")]
    assert codes[1:] == [0], (codes, err)
    assert codes[0] in (0, 2), (codes, err)
    if codes[0] == 2:
        assert "No space left on device" in err, err
    check_same(contents(site.cache), site.whole)
    return Counter({"full": int(codes[0] == 2)})


def two_at_once(site: Site, *, after_seconds: float) -> Told:
    """Two runs on one cache: one does all, the other says who."""
    trial = site.begin()
    first = trial.start()
    time.sleep(after_seconds)
    second = site.forks.start("run", "videos", "cache", *SETTINGS)
    codes = [fork.wait() for fork in (first, second)]
    winner, loser = (first, second) if codes[0] == 0 else (second, first)
    assert winner.wait() == 0, winner.err
    told = Counter[str]()
    if loser.wait() != 0:  # else one had ended before the other began
        assert loser.wait() == 2, loser.err
        assert f"another run is at work on this cache: process {winner.pid} on " in loser.err
        assert loser.journal == []
        told["refused"] += 1
    if winner is first:
        trial.check()
    check_same(contents(site.cache), site.whole)
    return told


def clock_moved(site: Site, *, by_seconds: float, kill_at: int) -> Told:
    """Killed, then run on by a clock that is years away, over a cache that is from the future."""
    trial = site.begin()
    future = time.time() + 1e8
    assert trial.start(kill_at=kill_at).wait() == -signal.SIGKILL
    for path in site.cache.rglob("*"):
        os.utime(path, (future, future))
    trial._committed = committed(site.cache)
    fork = trial.start(clock_seconds=by_seconds)
    assert fork.wait() == 0, fork.err
    trial.ended()
    trial.check()
    return Counter({"moved": 1})


def _processes(fork: Fork, module: str) -> Iterator[int]:
    for pid in children(fork.pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if module in words and "python" in Path(words[0]).name:
            yield pid


def _wait_for(fork: Fork, module: str) -> int | None:
    while fork.poll() is None:
        for pid in _processes(fork, module):
            return pid
        time.sleep(0.005)
    return None


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
