"""RunOptions: how and where a run is executed; nothing here changes a byte of the cache."""

from __future__ import annotations

import contextlib
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How and where a run is executed."""

    runner: Literal["local"] = "local"
    num_workers: int = 1
    """Processes; each has its own encoders and its own decoder process."""
    max_reject_rate: float = 1.0
    """In [0, 1]; a run with more rejects writes no cache.json."""
    beam_arguments: tuple[str, ...] = ()
    """Handed on to Beam as they are."""


@contextlib.contextmanager
def open_root(options: RunOptions, *, run_folder: RunFolder, num_elements: int) -> Iterator[Any]:
    """A Beam pipeline to build a graph on; leaving the context runs it.

    `num_elements` bounds the workers: starting an idle process costs seconds. An error that a
    worker reported in the run folder is raised as itself.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    num_workers = min(options.num_workers, max(1, num_elements))
    # By instance: the default runner tries to download a binary.
    runner = FnApiRunner(_worker_processes(run_folder) if num_workers > 1 else None)
    arguments = [f"--direct_num_workers={num_workers}", *options.beam_arguments]
    try:
        with (
            _temporary_files_in(run_folder.path),
            beam.Pipeline(runner=runner, options=PipelineOptions(arguments)) as root,
        ):
            yield root
    except Exception as error:
        reported = run_folder.reported_error()
        if reported is None:
            raise
        raise reported from error


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
    worker = "-P -m apache_beam.runners.worker.sdk_worker_main"
    command = f"PYTHONPATH={root} exec {python} {worker} 2>>{log}"
    return SubprocessSDKEnvironment.from_command_string(command_string=command)
