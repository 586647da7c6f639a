"""Runs in processes of their own that begin at once: forked from one that has imported everything.

    with Forks(folder) as forks:
        fork = forks.start("run", "videos", "cache", kill_at=17)
        fork.wait()

Each is a session and process group of its own, as one started by a shell.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 100.0
"""More than any of these runs takes on a busy machine."""
MODULES = ("beam_runner", "pipeline.transforms", "pipeline.cli.run", "pipeline.cli.following")


@dataclass
class Fork:
    """A command in a process of its own."""

    pid: int
    err_path: Path
    journal_path: Path
    began: float = field(default_factory=time.monotonic)
    _code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the signal; None while it runs."""
        if self._code is None:
            path = self.err_path.with_suffix(".code")
            with contextlib.suppress(OSError, ValueError):
                self._code = int(path.read_text())
        return self._code

    def wait(self, *, seconds: float = PATIENCE_SECONDS) -> int:
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
                raise TimeoutError(f"not ended after {seconds:.0f} s: {self.err}")
            time.sleep(0.005)
        return code

    def signal(self, number: int) -> None:
        """To the whole process group, as a shell does on Ctrl-C."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    @property
    def err(self) -> str:
        return self.err_path.read_text()

    @property
    def journal(self) -> list[dict[str, Any]]:
        """See `injuries`."""
        if not self.journal_path.exists():
            return []
        return [json.loads(line) for line in self.journal_path.read_text().splitlines()]


class Forks:
    """Starts commands of `pipeline` in `folder`; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said = folder / "said"
        self._said.mkdir(exist_ok=True)
        self._mark = self._said / f"tmp-{uuid.uuid4().hex}"
        self._mark.mkdir()
        # Handed on to each process of a run, so that all of them can be found.
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self._mark),
            "FSSPEC_LOCAL_AUTO_MKDIR": "true",  # local:// as an object store, without folders
        }
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forking"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._server.kill()
        self._server.wait()
        for pipe in (self._server.stdin, self._server.stdout):
            assert pipe is not None
            pipe.close()

    def start(self, *arguments: str, cache: str = "cache", **injury: Any) -> Fork:
        """Start a command; for `injury` see `injuries.injure`."""
        name = self._said / uuid.uuid4().hex
        request = {"arguments": arguments, "name": str(name), "cache": cache, "injury": injury}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        pid = int(self._server.stdout.readline())
        return Fork(
            pid=pid, err_path=name.with_suffix(".err"), journal_path=name.with_suffix(".jsonl")
        )

    def processes(self) -> dict[int, str]:
        """pid -> command line, of all that was started and has not ended."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            pid = int(path.name)
            with contextlib.suppress(OSError):
                if pid == self._server.pid or self._is_keeper(pid):
                    continue
                if os.fsencode(self._mark) in (path / "environ").read_bytes():
                    found[pid] = (path / "cmdline").read_text().replace("\0", " ")
        return found

    def _is_keeper(self, pid: int) -> bool:
        # It only waits for a command, to write its exit code down.
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(status[1]) == self._server.pid

    def gone_after(self, *, seconds: float) -> float:
        """Seconds until no process is left. AssertionError: some are."""
        began = time.monotonic()
        while left := self.processes():
            waited = time.monotonic() - began
            assert waited < seconds, f"still there after {waited:.1f} s: {left}"
            time.sleep(0.02)
        return time.monotonic() - began

    def temporary_files(self) -> list[Path]:
        """Outside of the cache, but for what torch keeps from process to process."""
        return sorted(p for p in self._mark.iterdir() if "torchinductor" not in p.name)


def children(pid: int) -> Iterator[int]:
    """All descendants."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                child = int(path.parent.name)
                yield child
                yield from children(child)


def _serve() -> None:
    for name in MODULES:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    for line in sys.stdin:
        request = json.loads(line)
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            _keep(request, write_end)
        os.close(write_end)
        pid = os.read(read_end, 16).decode()
        os.close(read_end)
        sys.stdout.write(pid + "\n")
        sys.stdout.flush()


def _keep(request: dict[str, Any], write_end: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.write(write_end, str(os.getpid()).encode())
        os.close(write_end)
        code = 99
        try:
            code = _run(request)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    path = Path(request["name"] + ".code")
    path.with_suffix(".part").write_text(str(os.waitstatus_to_exitcode(status)))
    path.with_suffix(".part").replace(path)
    os._exit(0)


def _run(request: dict[str, Any]) -> int:
    from pipeline.cli import call
    from tests.injuries import Journal, injure

    null = os.open(os.devnull, os.O_RDWR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, fd in enumerate((null, null, os.open(request["name"] + ".err", flags, 0o644))):
        os.dup2(fd, number)
    injure(Path(request["cache"]), Journal(request["name"] + ".jsonl"), **request["injury"])
    code = call(list(request["arguments"]))
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    _serve()
