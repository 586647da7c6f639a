"""RunOptions: how and where a run is executed; nothing here changes a byte of the cache."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from encoders import Runtime
from encoders.devices import num_gpus, prepare_cpu
from pipeline.fetching import FETCH_BYTES
from pipeline.pool import num_cores
from pipeline.run_folder import RunFolder
from schemas.errors import UsageError, WorkerDied

WATCH_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How and where a run is executed."""

    runner: Literal["local"] = "local"
    num_workers: int = 1
    """Processes; each has its own encoders and its own decoder processes."""
    num_decoders: int | None = None
    """Decoder processes of each worker; None: as many as there are cores for it."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`; auto: a GPU where there is one. Workers share out several GPUs."""
    compile: bool = False
    """Let torch.compile specialise the encoders."""
    max_batch: int | None = None
    """Clips that go through an encoder at once; None: a choice by device."""
    fetch_bytes: int = FETCH_BYTES
    """Of remote videos on a worker's disk, but for one file that may be beyond it."""
    max_reject_rate: float = 1.0
    """In [0, 1]; a run with more rejects stops early and writes no cache.json."""
    keep_encoders: bool = False
    """Leave the encoders loaded for the next run in this process; for one worker."""
    beam_arguments: tuple[str, ...] = ()
    """Handed on to Beam as they are."""

    @property
    def decoders_per_worker(self) -> int:
        return self.num_decoders or self.cores_per_worker

    @property
    def cores_per_worker(self) -> int:
        return max(1, num_cores() // self.num_workers)

    def runtime(self, run_folder: RunFolder) -> Runtime:
        """How the encoders of this process compute: call it once a process."""
        device = self.device
        if device == "cpu":
            prepare_cpu(self.cores_per_worker)
        elif device == "cuda":
            device = f"cuda:{run_folder.claim_number() % max(1, num_gpus())}"
        return Runtime(device=device, compile=self.compile, max_batch=self.max_batch)


@contextlib.contextmanager
def open_root(options: RunOptions, *, run_folder: RunFolder, num_elements: int) -> Iterator[Any]:
    """A Beam pipeline to build a graph on; leaving the context runs it.

    `num_elements` bounds the workers: starting an idle process costs seconds. An error that a
    worker reported in the run folder is raised as itself. UsageError: options that Beam refuses.
    WorkerDied.
    """
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    num_workers = min(options.num_workers, max(1, num_elements))
    # By instance: the default runner tries to download a binary.
    runner = FnApiRunner(_worker_processes(run_folder) if num_workers > 1 else None)
    beam_options = _parse([f"--direct_num_workers={num_workers}", *options.beam_arguments])
    try:
        with (
            _temporary_files_in(run_folder.path),
            _watch_workers(run_folder),
            beam.Pipeline(runner=runner, options=beam_options) as root,
        ):
            yield root
    except Exception as error:
        reported = run_folder.reported_error()
        if reported is None:
            raise
        raise reported from error


def _parse(arguments: list[str]) -> Any:
    from apache_beam.options.pipeline_options import PipelineOptions

    said = io.StringIO()
    log = logging.getLogger("apache_beam.options.pipeline_options")
    listener = logging.StreamHandler(said)
    log.addHandler(listener)
    try:
        with contextlib.redirect_stderr(said):
            options = PipelineOptions(arguments)
            # Options are parsed when they are looked at; unknown ones are only logged.
            runner = options.get_all_options(drop_default=True).get("runner")
    except SystemExit as error:
        lines = said.getvalue().strip().splitlines() or [""]
        raise UsageError(f"options for Beam: {lines[-1].partition('error: ')[2]}") from error
    finally:
        log.removeHandler(listener)
    if runner is not None:
        raise UsageError(f"options for Beam: --runner={runner} is chosen before the --")
    unknown = [line for line in said.getvalue().splitlines() if "unparseable" in line]
    if unknown:
        raise UsageError(f"options for Beam: unknown{unknown[0].partition('args')[2]}")
    return options


@contextlib.contextmanager
def _watch_workers(run_folder: RunFolder) -> Iterator[None]:
    # The engine waits for ever for a worker that the system has killed. A signal is the one thing
    # that gets the main thread out of that.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    done = threading.Event()

    def look() -> None:
        while not done.wait(WATCH_SECONDS):
            if run_folder.death_note.exists():
                code = run_folder.death_note.read_text().strip()
                run_folder.report_error(
                    WorkerDied(
                        f"a worker process died (exit code {code}; 137 is what the system kills for"
                        " its memory)",
                        hint="use fewer --workers; what is committed is kept, run again",
                    )
                )
                os.kill(os.getpid(), signal.SIGUSR1)
                # The engine's way out waits for the other workers, which wait for work.
                while not done.wait(WATCH_SECONDS):
                    run_folder.kill_workers()
                return

    def give_up(*_: object) -> None:
        raise RuntimeError("a worker process died")

    def say_nothing_of_the_dead(args: threading.ExceptHookArgs) -> None:
        # The connection breaks a moment before the note is written.
        deadline = time.monotonic() + 2 * WATCH_SECONDS
        while not run_folder.death_note.exists():
            if time.monotonic() > deadline:
                hook(args)
                return
            time.sleep(WATCH_SECONDS / 10)

    hook = threading.excepthook
    threading.excepthook = say_nothing_of_the_dead
    before = signal.signal(signal.SIGUSR1, give_up)
    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, before)
        if not run_folder.death_note.exists():
            threading.excepthook = hook


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    # The engine makes a folder for itself, which stays behind where a run is killed.
    before = tempfile.tempdir
    tempfile.tempdir = str(folder.absolute())
    try:
        yield
    finally:
        tempfile.tempdir = before


def _worker_processes(run_folder: RunFolder) -> Any:
    # As Beam's own running mode "multi_processing", but with our modules whatever the working
    # folder holds, and with the engine's chatter in a file.
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    root = shlex.quote(str(Path(__file__).resolve().parents[1]))
    python, log = shlex.quote(sys.executable), shlex.quote(str(run_folder.workers_log))
    note, pids = shlex.quote(str(run_folder.death_note)), shlex.quote(str(run_folder.worker_pids))
    worker = f"PYTHONPATH={root} {python} -P -m pipeline.worker {os.getpid()} {pids}"
    # Nothing of the caller's is kept open: whoever reads its output would wait for the workers.
    command = f"exec </dev/null >>{log} 2>&1; {worker} || echo $? >{note}"
    return SubprocessSDKEnvironment.from_command_string(command_string=command)
