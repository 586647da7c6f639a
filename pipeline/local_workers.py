"""Worker processes of a local run: started and watched by the run itself; their death ends it.

Beam's own running mode "multi_processing" waits for ever for a worker that was killed, and takes
its modules from the working folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apache_beam.portability.api import endpoints_pb2
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.transforms import environments
from google.protobuf import json_format, text_format

from pipeline.ending import undone_at_end
from pipeline.run_folder import RunFolder
from schemas.errors import WorkerDied

URN = "reelcache:env:local_process:v1"
NOTICE_SECONDS = 2.0
"""A connection breaks a moment before the system says that its process has ended."""
END_SECONDS = 60.0
"""For a worker to end when it is told to."""
ABORT_SECONDS = 0.2
_READERS = ("beam_control_read", "read_grpc_client_inputs")
"""Threads of the engine that raise when a worker's connection breaks."""
_RUNS: dict[bytes, LocalWorkers] = {}


class LocalWorkers:
    """The worker processes of one run; a context manager."""

    def __init__(self, run_folder: RunFolder) -> None:
        self.log_path = run_folder.workers_log
        self._key = uuid.uuid4().hex.encode()
        self._handlers: list[_Handler] = []
        self._lock = threading.Lock()
        self._noticed = threading.Event()
        self._closed = threading.Event()
        self._death: WorkerDied | None = None

    def __enter__(self) -> LocalWorkers:
        _RUNS[self._key] = self
        self._undoing = contextlib.ExitStack()
        self._undoing.enter_context(undone_at_end(self._end))
        self._hook = threading.excepthook
        threading.excepthook = self._unless_of_the_dead
        return self

    def __exit__(self, *_: object) -> None:
        threading.excepthook = self._hook
        self._closed.set()
        self._kill()
        self._undoing.close()
        del _RUNS[self._key]

    def environment(self) -> Any:
        """What an engine's runner is told to start its workers with."""
        return _Environment(self._key)

    def death(self) -> WorkerDied | None:
        """What became of a worker that did not end well; waits a moment for the news."""
        self._noticed.wait(NOTICE_SECONDS if self._handlers else 0)
        return self._death

    def add(self, handler: _Handler) -> None:
        """A worker that is about to start."""
        with self._lock:
            self._handlers.append(handler)

    def notice(self, code: int) -> None:
        """A worker ended with this exit code and was not told to; ends the run."""
        with self._lock:
            if self._death is None:
                self._death = WorkerDied(
                    f"a worker process died ({_how(code, self.log_path)})",
                    hint="use fewer --workers; what is committed is kept, run again",
                )
        self._noticed.set()
        # The way out waits for the other workers, which wait for work. And whatever the engine
        # still asks of one of them is not answered any more.
        while True:
            self._kill()
            for handler in list(self._handlers):
                handler.abort(self._death)
            if self._closed.wait(ABORT_SECONDS):
                return

    def _kill(self) -> None:
        for handler in list(self._handlers):
            handler.kill()

    def _end(self) -> None:
        self._kill()
        for handler in list(self._handlers):
            handler.stop_worker()  # so that it writes no more into files that are deleted

    def _unless_of_the_dead(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else ""
        if not (name.startswith(_READERS) and self._noticed.wait(NOTICE_SECONDS)):
            self._hook(args)


def _how(code: int, log_path: Path) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            memory = ", as the system does for want of memory" if name == "SIGKILL" else ""
            return f"{name}{memory}"
    last = ""
    with contextlib.suppress(OSError):
        lines = log_path.read_text(errors="replace").strip().splitlines()
        last = f": {lines[-1][:300]}" if lines else ""
    return f"exit code {code}{last}"


@environments.Environment.register_urn(URN, bytes)
class _Environment(environments.Environment):  # type: ignore[misc]
    def __init__(
        self,
        key: bytes,
        capabilities: Iterable[str] = (),
        artifacts: Iterable[Any] = (),
        resource_hints: Any = None,
    ) -> None:
        super().__init__(
            capabilities or environments.python_sdk_capabilities(), artifacts, resource_hints
        )
        self._key = key

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and self._key == getattr(other, "_key", None)

    def __hash__(self) -> int:
        return hash((super().__hash__(), self._key))

    def to_runner_api_parameter(self, context: Any) -> tuple[str, bytes]:  # noqa: ARG002
        return URN, self._key

    @staticmethod
    def from_runner_api_parameter(
        payload: bytes,
        capabilities: Iterable[str],
        artifacts: Iterable[Any],
        resource_hints: Any,
        context: Any,  # noqa: ARG004
    ) -> _Environment:
        return _Environment(payload, capabilities, artifacts, resource_hints)


@worker_handlers.WorkerHandler.register_environment(URN, bytes)
class _Handler(worker_handlers.GrpcWorkerHandler):  # type: ignore[misc]
    def __init__(self, key: bytes, state: Any, provision_info: Any, grpc_server: Any) -> None:
        super().__init__(state, provision_info, grpc_server)
        self._workers = _RUNS[key]
        self._process: subprocess.Popen[bytes] | None = None
        self._told_to_end = threading.Event()

    def start_worker(self) -> None:
        def address(descriptor: endpoints_pb2.ApiServiceDescriptor) -> str:
            text: str = text_format.MessageToString(descriptor)
            return text

        settings = self.provision_info.provision_info.pipeline_options
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            "CONTROL_API_SERVICE_DESCRIPTOR": address(self.control_api_service_descriptor()),
            "LOGGING_API_SERVICE_DESCRIPTOR": address(self.logging_api_service_descriptor()),
            "PIPELINE_OPTIONS": json_format.MessageToJson(settings),
            "WORKER_ID": self.worker_id,
        }
        command = [sys.executable, "-P", "-m", "pipeline.worker", str(os.getpid())]
        with self._workers.log_path.open("ab") as log, worker_handlers.SUBPROCESS_LOCK:
            # Nothing of the caller's is kept open: whoever reads its output would wait for the
            # workers. Ctrl-C is for the owner, whose end they notice.
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._workers.add(self)
        threading.Thread(target=self._watch, name="watch_worker", daemon=True).start()

    def close(self) -> None:
        self._told_to_end.set()
        patience = threading.Timer(END_SECONDS, self.kill)
        patience.daemon = True
        patience.start()
        try:
            super().close()
        finally:
            patience.cancel()

    def stop_worker(self) -> None:
        if self._process is not None:
            self._process.wait()

    def kill(self) -> None:
        """At once; if it has not ended."""
        self._told_to_end.set()
        if self._process is not None:
            self._process.kill()

    def abort(self, error: Exception | None) -> None:
        """Let the engine wait no more for what it has asked of this worker."""
        with contextlib.suppress(RuntimeError):  # the engine asks for more at this moment
            self.control_conn.abort(error)
        with contextlib.suppress(Exception):  # raises what broke the connection, of any kind
            self.data_conn.close()

    def _watch(self) -> None:
        assert self._process is not None
        code = self._process.wait()
        if not self._told_to_end.is_set():
            self._workers.notice(code)
