"""DecoderProcess: owns the child that reads hostile video, and kills it past its limits.

One child serves many videos, one at a time. A crash, hang or bomb costs the video in hand.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import messages
from pipeline.answers import Nonsense, text
from pipeline.slots import SharedMemory
from schemas.errors import VideoError, WorkerDied
from schemas.recipe import DecodeLimits
from schemas.reject import REASONS

GOES_ON = ("schedule", "sample", "sound")
"""Answers that others follow."""
ENDS = ("done", "facts", "reject", "start_again", "cancelled", "bug")
CHILD = ("-P", "-m", "pipeline.jailed")
"""What Python is given to run."""
START_SECONDS = 60.0
CANCEL_SECONDS = 5.0
END_SECONDS = 10.0
"""For a process that has closed its pipes to be gone."""
MAX_VIDEOS_PER_CHILD = 512
"""Native libraries leak a little; a fresh child is cheap."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "OPENBLAS_CORETYPE")


class Exchange:
    """One request to a decoder process and its answers."""

    def __init__(self, process: DecoderProcess, *, duration_seconds: float) -> None:
        self.process = process
        self._limits = process.limits
        self._budget_seconds = self._limits.base_seconds + self._limits.factor * duration_seconds
        self._receiver = process.receiver
        self._budget_end = self._receiver.waited_seconds + self._budget_seconds
        self.finished = False

    def answers(self) -> Iterator[tuple[dict[str, Any], bytearray]]:
        """The answers up to the last one. May be called again to go on.

        VideoError: a reject by the child, timed_out, crashed. RuntimeError: a bug in the child. The
        time limits count waiting only, not what the caller does between answers. A child that
        breaks them, or that the caller turns away from with an error, is killed.
        """
        while not self.finished:
            try:
                answer, payload = self._receive()
            except BaseException:
                self.kill()
                raise
            kind = answer["kind"]
            self.finished = kind in ENDS
            if kind == "reject":
                if answer["reason"] == "out_of_memory":
                    self.kill()  # what was taken may not have been given back
                raise VideoError(answer["reason"], text(answer, "detail"))
            if kind == "bug":
                self.kill()
                raise RuntimeError(f"in the decoder process:\n{text(answer, 'traceback')}")
            if kind != "alive":
                yield answer, payload

    def send(self, message: dict[str, Any]) -> None:
        """A word to the child while it works. VideoError: crashed."""
        try:
            self.process.send(message)
        except messages.PipeClosed as error:
            crash = self.process.post_mortem(error)
            self.kill()
            raise crash from error
        except messages.WaitedTooLong:
            self.kill()
            raise VideoError("crashed", "it reads no more") from None

    def abandon(self) -> None:
        """End the work in hand; the child stays in service where it can."""
        if self.finished:
            return
        self._budget_end = self._receiver.waited_seconds + CANCEL_SECONDS
        try:
            self.send({"kind": "cancel"})
            for answer, _ in self.answers():
                if answer.get("slot") is not None:
                    self.send({"kind": "free", "slot": answer["slot"]})
        except (VideoError, RuntimeError):
            self.kill()

    def kill(self) -> None:
        """End the child at once, unless it has gone on to other work."""
        self.finished = True
        if self.process.exchange is self:
            self.process.kill()

    def _receive(self) -> tuple[dict[str, Any], bytearray]:
        over_budget = f"more than {self._budget_seconds:.0f} s"
        left = self._budget_end - self._receiver.waited_seconds
        if left <= 0:
            raise VideoError("timed_out", over_budget)
        stall = min(self._limits.stall_seconds, left)
        try:
            answer, payload = self._receiver.receive(timeout_seconds=stall)
            _check(answer)
            return answer, payload
        except messages.WaitedTooLong:
            detail = f"no progress within {self._limits.stall_seconds:.0f} s"
            if stall < self._limits.stall_seconds:
                detail = over_budget
            raise VideoError("timed_out", detail) from None
        except (messages.PipeClosed, messages.Damaged) as error:
            raise self.process.post_mortem(error) from None


def _check(answer: dict[str, Any]) -> None:
    try:
        kind = text(answer, "kind")
        known = kind in ("alive", *GOES_ON, *ENDS)
        if kind == "reject":
            text(answer, "detail")
            known = text(answer, "reason") in REASONS
        if kind == "bug":
            text(answer, "traceback")
    except Nonsense:
        known = False
    if not known:
        raise messages.Damaged("the decoder process sent something else than an answer")


class DecoderProcess:
    """A child process that probes and decodes; a context manager."""

    def __init__(self, limits: DecodeLimits, *, allow_programs: bool = False) -> None:
        """`allow_programs`: the child may start ffmpeg."""
        self.limits = limits
        self._allow_programs = allow_programs
        self._child: subprocess.Popen[bytes] | None = None
        self._receiver: messages.Receiver | None = None
        self._memory: SharedMemory | None = None
        self._log: Any = None
        self._num_videos = 0
        self._is_ready = False
        self._cpu_before = 0.0
        """Of children that have ended."""
        self._cpu_seen = 0.0
        """Of the child in service, when it was last looked at."""
        self.unfiltered = ""
        """Why there is no filter on what the child asks of the system; empty: there is."""
        self.exchange: Exchange | None = None
        """The latest one."""

    def __enter__(self) -> DecoderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the child in service, if there is one."""
        return self._child.pid if self._child else None

    @property
    def cpu_seconds(self) -> float:
        """Of all children so far, with the programs that they ran; 0 on systems without /proc."""
        child = self._child
        if child is not None:
            with contextlib.suppress(OSError, ValueError):
                stat = Path(f"/proc/{child.pid}/stat").read_text()
                # After the name: the state is field 3, so these are fields 14 to 17.
                ticks = stat.rpartition(")")[2].split()[11:15]
                seconds = sum(map(int, ticks)) / _TICKS_PER_SECOND
                self._cpu_seen = max(self._cpu_seen, seconds)
        return self._cpu_before + self._cpu_seen

    @property
    def is_idle(self) -> bool:
        return self.exchange is None or self.exchange.finished

    @property
    def receiver(self) -> messages.Receiver:
        """Of the child in service."""
        assert self._receiver is not None
        return self._receiver

    @property
    def memory(self) -> SharedMemory:
        """Shared with the child in service."""
        assert self._memory is not None
        return self._memory

    def start(
        self, message: dict[str, Any], *, duration_seconds: float, shared_bytes: int = 0
    ) -> Exchange:
        """Send one request; the process must be idle. WorkerDied: no child starts.

        `shared_bytes` is how much memory both sides need to share for it.
        """
        assert self.is_idle
        for last_try in (False, True):
            self._ensure()
            try:
                self.memory.grow(shared_bytes)
                self.send(message)
                break
            except (messages.PipeClosed, messages.WaitedTooLong):
                # It died while it was idle: not the next video's fault.
                self.kill()
                if last_try:
                    raise WorkerDied(
                        "decoder processes die before they get work",
                        hint="see: pipeline doctor; what is committed is kept, run again",
                    ) from None
        self._num_videos += 1
        self.exchange = Exchange(self, duration_seconds=duration_seconds)
        return self.exchange

    def request(
        self, message: dict[str, Any], *, duration_seconds: float
    ) -> Iterator[tuple[dict[str, Any], bytearray]]:
        """`start` and the answers; errors as of `Exchange.answers`."""
        exchange = self.start(message, duration_seconds=duration_seconds)
        try:
            yield from exchange.answers()
        finally:
            exchange.abandon()

    def send(self, message: dict[str, Any]) -> None:
        """messages.PipeClosed, messages.WaitedTooLong: nobody reads."""
        if self._child is None or self._child.stdin is None:
            raise messages.PipeClosed
        fd = self._child.stdin.fileno()
        messages.send(fd, message, timeout_seconds=self.limits.stall_seconds)

    def close(self) -> None:
        """End the child; closing twice is fine."""
        self.kill()

    def spawn(self) -> None:
        """Start the child where there is none, without waiting until it is ready."""
        if self._child is not None and (
            self._num_videos >= MAX_VIDEOS_PER_CHILD or self._child.poll() is not None
        ):
            self.kill()
        if self._child is not None:
            return
        root = str(Path(__file__).resolve().parents[1])
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {
            "PYTHONPATH": root,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._memory = SharedMemory.make()
        arguments = [str(self.limits.memory_bytes), str(self._memory.fd)]
        arguments += ["--allow-programs"] * self._allow_programs
        self._child = subprocess.Popen(
            [sys.executable, *CHILD, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            pass_fds=[self._memory.fd],
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the owner, which then closes the pipes
        )
        assert self._child.stdout is not None
        self._receiver = messages.Receiver(self._child.stdout.fileno())
        self._num_videos = 0
        self._is_ready = False

    def _ensure(self) -> None:
        for last_try in (False, True):
            self.spawn()
            if self._is_ready:
                return
            try:
                ready, _ = self.receiver.receive(timeout_seconds=START_SECONDS)
            except (messages.PipeClosed, messages.WaitedTooLong, messages.Damaged):
                log = self._tail()
                self.kill()
                if last_try:
                    raise WorkerDied(
                        f"the decoder process does not start: {log or 'it ended without a word'}",
                        hint="see: pipeline doctor; it may lack memory",
                    ) from None
            else:
                self.unfiltered = str(ready.get("unfiltered"))
                self._is_ready = True

    def post_mortem(self, error: Exception) -> VideoError:
        """Why the child in service no longer answers."""
        if self._child is None:
            return VideoError("crashed", "it was ended")
        if isinstance(error, messages.Damaged):
            return VideoError("crashed", str(error))
        try:
            code = self._child.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            return VideoError("crashed", "it closed its pipes and stayed")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        log = self._tail()
        if "MemoryError" in log or "Cannot allocate memory" in log:
            return VideoError("out_of_memory", f"more than {self.limits.memory_bytes} bytes")
        return VideoError("crashed", f"{how}: {log}" if log else how)

    def _tail(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def interrupt(self) -> None:
        """End the child from another thread than the one that uses the process.

        Whoever waits for an answer gets VideoError: crashed.
        """
        child = self._child
        if child is not None:
            child.kill()

    def kill(self) -> None:
        """End the child at once; the next request starts another one."""
        if self._child is None:
            return
        if self.exchange is not None:
            self.exchange.finished = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)  # and the programs that it started
        self._cpu_before, self._cpu_seen = self.cpu_seconds, 0.0
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._log):
            if pipe is not None:
                pipe.close()
        if self._memory is not None:
            self._memory.close()
        self._child = self._receiver = self._memory = self._log = None
