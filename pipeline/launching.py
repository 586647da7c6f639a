"""Launch a Beam pipeline: in this run's own processes, or on an engine that is waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from pipeline.ending import leave_all
from pipeline.engines import Engine, Stage, find_engine
from pipeline.meeting import Meeting
from pipeline.options import RunOptions
from pipeline.run_folder import RunFolder
from schemas.errors import EngineError

if TYPE_CHECKING:
    from pipeline.engine_meeting import EngineMeeting


@contextlib.contextmanager
def open_root(
    options: RunOptions, *, meeting: Meeting, stage: Stage, num_elements: int
) -> Iterator[Any]:
    """A Beam pipeline to build a graph on; leaving the context runs it and waits for its end.

    `num_elements` bounds the local workers: starting an idle process costs seconds. An error that a
    worker reported is raised as itself. UsageError: options that Beam refuses. WorkerDied.
    EngineError: the engine refused the job, or it ended without saying which error of ours.
    """
    if isinstance(meeting, RunFolder):
        with _open_local(options, run_folder=meeting, num_elements=num_elements) as root:
            yield root
    else:
        from pipeline.engine_meeting import EngineMeeting

        assert isinstance(meeting, EngineMeeting)
        with _open_engine(options, meeting=meeting, stage=stage) as root:
            yield root


@contextlib.contextmanager
def _open_local(options: RunOptions, *, run_folder: RunFolder, num_elements: int) -> Iterator[Any]:
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    from pipeline.beam_options import parse_options
    from pipeline.local_workers import LocalWorkers

    num_workers = min(options.num_workers, max(1, num_elements))
    arguments = [f"--direct_num_workers={num_workers}", *options.beam_arguments]
    beam_options = parse_options(arguments)
    with _temporary_files_in(run_folder.path), LocalWorkers(run_folder) as workers:
        # By instance: the default runner tries to download a binary.
        runner = FnApiRunner(workers.environment() if num_workers > 1 else None)
        try:
            with beam.Pipeline(runner=runner, options=beam_options) as root:
                yield root
        except Exception as error:
            reported = run_folder.reported_error(error) or workers.death()
            if reported is None:
                raise
            raise reported from error


@contextlib.contextmanager
def _open_engine(options: RunOptions, *, meeting: EngineMeeting, stage: Stage) -> Iterator[Any]:
    import apache_beam as beam
    from apache_beam.runners.runner import PipelineState

    from pipeline.beam_options import beam_arguments, parse_options, to_flags

    engine = find_engine(options.runner)
    arguments = beam_arguments(options, stage=stage, run_id=meeting.run_id)
    beam_options = parse_options([*arguments, *to_flags(options)], engine=engine)
    with _engine_errors(engine, meeting):
        root = beam.Pipeline(runner=engine.beam_runner, options=beam_options)
    yield root
    with _engine_errors(engine, meeting):
        result = root.run()
        meeting.follow(result)
        with _say_that_the_job_goes_on(engine, meeting):
            state = result.wait_until_finish()
        state = state or result.state
        meeting.ended()
    if state != PipelineState.DONE:
        raise EngineError(
            f"{engine.name}: the job {meeting.job} ended in state {state}".replace("  ", " "),
            hint="what is committed is kept, run again",
        )


@contextlib.contextmanager
def _engine_errors(engine: Engine, meeting: EngineMeeting) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reported = meeting.reported_error(error)
        if reported is not None:
            raise reported from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = lines[-1 if "Traceback" in str(error) else 0] if lines else ""
        hint = "see the engine's own log; what is committed is kept, run again"
        if isinstance(error, ImportError) and engine.install:
            hint = engine.install
        what = f"{type(error).__name__}: {said[:500]}"
        raise EngineError(f"{engine.name}: {what}", hint=hint) from error


@contextlib.contextmanager
def _say_that_the_job_goes_on(engine: Engine, meeting: EngineMeeting) -> Iterator[None]:
    # A run that is interrupted only stops to wait: the job is the engine's.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    sentence = f"\nThe job {meeting.job} is still at work on {engine.name}: cancel it there."

    def told(number: int, frame: FrameType | None) -> None:
        os.write(2, sentence.encode())
        leave_all()  # the job still needs its files and its lock
        then = before[number]
        if callable(then):
            then(number, frame)

    before: dict[int, Callable[..., Any] | int | None] = {}
    for one in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(one)):
            before[one] = signal.signal(one, told)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    # The engine makes a folder for itself, which stays behind where a run is killed.
    before = tempfile.tempdir
    tempfile.tempdir = str(folder.absolute())
    try:
        yield
    finally:
        tempfile.tempdir = before
