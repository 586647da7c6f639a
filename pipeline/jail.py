"""DecoderProcess: owns the child that reads hostile video, and kills it past its limits.

One child serves many videos, one at a time. A crash, hang or bomb costs the video in hand.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import messages
from schemas.errors import VideoError, WorkerDied
from schemas.recipe import DecodeLimits
from schemas.reject import REASONS

ANSWERS = ("alive", "clip", "done", "facts", "reject", "times_go_back", "bug")
START_SECONDS = 60.0
MAX_VIDEOS_PER_CHILD = 512
"""Native libraries leak a little; a fresh child is cheap."""
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "OPENBLAS_CORETYPE")


class DecoderProcess:
    """A child process that probes and decodes; a context manager."""

    def __init__(self, limits: DecodeLimits) -> None:
        self._limits = limits
        self._child: subprocess.Popen[bytes] | None = None
        self._receiver: messages.Receiver | None = None
        self._log: Any = None
        self._num_videos = 0

    def __enter__(self) -> DecoderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the child in service, if there is one."""
        return self._child.pid if self._child else None

    def request(
        self, message: dict[str, Any], *, duration_seconds: float
    ) -> Iterator[tuple[dict[str, Any], bytearray]]:
        """Send one request and give its answers up to the last one, which is not an "alive".

        VideoError: a reject by the child, timed_out, crashed. RuntimeError: a bug in the child.
        The time limit counts waiting only, not what the caller does between answers.
        """
        receiver = self._start()
        assert self._child is not None and self._child.stdin is not None
        self._num_videos += 1
        budget_seconds = self._limits.base_seconds + self._limits.factor * duration_seconds
        budget_end = receiver.waited_seconds + budget_seconds
        over_budget = f"more than {budget_seconds:.0f} s"
        stall = self._limits.stall_seconds
        finished = False
        try:
            messages.send(self._child.stdin.fileno(), message)
            while not finished:
                left = budget_end - receiver.waited_seconds
                if left <= 0:
                    raise VideoError("timed_out", over_budget)
                stall = min(self._limits.stall_seconds, left)
                answer, payload = receiver.receive(timeout_seconds=stall)
                kind = answer.get("kind")
                if kind not in ANSWERS or answer.get("reason", "crashed") not in REASONS:
                    raise messages.Damaged("the decoder process sent something else than an answer")
                if kind == "alive":
                    continue
                finished = kind != "clip"
                if kind == "reject":
                    raise VideoError(answer["reason"], answer["detail"])
                if kind == "bug":
                    raise RuntimeError(f"in the decoder process:\n{answer['traceback']}")
                yield answer, payload
        except messages.WaitedTooLong:
            detail = f"no progress within {self._limits.stall_seconds:.0f} s"
            if stall < self._limits.stall_seconds:
                detail = over_budget
            raise VideoError("timed_out", detail) from None
        except (messages.PipeClosed, messages.Damaged) as error:
            raise self._post_mortem(error) from None
        finally:
            if not finished:
                self._kill()

    def close(self) -> None:
        """End the child; closing twice is fine."""
        self._kill()

    def _start(self, *, again: bool = True) -> messages.Receiver:
        if self._num_videos >= MAX_VIDEOS_PER_CHILD or (
            self._child is not None and self._child.poll() is not None
        ):
            self._kill()
        if self._child is not None and self._receiver is not None:
            return self._receiver
        root = str(Path(__file__).resolve().parents[1])
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {
            "PYTHONPATH": root,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "pipeline.jailed", str(self._limits.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the owner, which then closes the pipes
        )
        assert self._child.stdout is not None
        self._receiver = messages.Receiver(self._child.stdout.fileno())
        self._num_videos = 0
        try:
            self._receiver.receive(timeout_seconds=START_SECONDS)
        except (messages.PipeClosed, messages.WaitedTooLong, messages.Damaged):
            log = self._tail()
            self._kill()
            if again:
                return self._start(again=False)
            raise WorkerDied(
                f"the decoder process does not start: {log or 'it ended without a word'}",
                hint="see: pipeline doctor; it may lack memory",
            ) from None
        return self._receiver

    def _post_mortem(self, error: Exception) -> VideoError:
        assert self._child is not None
        if isinstance(error, messages.Damaged):
            return VideoError("crashed", str(error))
        try:
            code = self._child.wait(timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            return VideoError("crashed", "it closed its pipes and stayed")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        log = self._tail()
        if "MemoryError" in log or "Cannot allocate memory" in log:
            return VideoError("out_of_memory", f"more than {self._limits.memory_bytes} bytes")
        return VideoError("crashed", f"{how}: {log}" if log else how)

    def _tail(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def _kill(self) -> None:
        if self._child is None:
            return
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._log):
            if pipe is not None:
                pipe.close()
        self._child = self._receiver = self._log = None
