"""What a confined process can still do, and a machine on which it cannot be confined."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.jailed import confining

PROGRAM = """
import ctypes, json, os, resource, subprocess, sys, threading, time
import av, numpy as np, PIL.Image
from pipeline.jailed.confining import filter_calls, limit_resources
gate, results = threading.Event(), {}
def attempt(name, work):
    try:
        work()
    except OSError as error:
        results[name] = error.errno
    else:
        results[name] = 0
def early():
    gate.wait()
    attempt("earlier thread", lambda: os.open("/dev/null", os.O_WRONLY))
thread = threading.Thread(target=early)
thread.start()
limit_resources(memory_bytes=2**32)
results["why not"] = filter_calls(allow_programs=sys.argv[1] == "programs")
gate.set()
thread.join()
later = threading.Thread(target=lambda: attempt("later thread", lambda: open("/dev/null", "w")))
later.start()
later.join()
attempt("read", lambda: open("/dev/null").close())
attempt("pipe", lambda: os.close(os.pipe()[0]))
attempt("program", lambda: subprocess.run(["/bin/true"], check=True))
def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
attempt("fork", fork)
attempt("its own limits", lambda: resource.prlimit(0, resource.RLIMIT_CORE))
attempt("limits of others", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE))
def signal_thread(pid):
    number = {"x86_64": 234, "aarch64": 131}[os.uname().machine]
    if ctypes.CDLL(None, use_errno=True).syscall(number, pid, pid, 0):
        raise OSError(ctypes.get_errno(), "tgkill")
attempt("signal to itself", lambda: signal_thread(os.getpid()))
attempt("signal to others", lambda: signal_thread(os.getppid()))
attempt("directory", lambda: os.listdir("/"))
np.linalg.inv(np.eye(50))
PIL.Image.new("RGB", (9, 9)).resize((5, 5), PIL.Image.Resampling.BICUBIC)
av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8)).reformat(format="yuv420p")
frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8))
print(json.dumps(results))
"""
EPERM = 1


@pytest.mark.parametrize(("programs", "denied"), [("none", EPERM), ("programs", 0)])
def test_what_a_filtered_process_can_do(programs: str, denied: int) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, programs],
        capture_output=True,
        text=True,
        cwd=Path(confining.__file__).parents[2],
        env={"PYTHONPATH": str(Path(confining.__file__).parents[2])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    if results.pop("why not"):
        pytest.skip("no filter on this machine")
    assert results == {
        "earlier thread": EPERM,
        "later thread": EPERM,
        "read": 0,
        "pipe": 0,
        "program": denied,
        "fork": denied,
        "its own limits": 0,
        "limits of others": EPERM,
        "signal to itself": 0,
        "signal to others": denied,
        "directory": 0,
    }


def test_a_machine_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert "riscv64" in confining.filter_calls(allow_programs=False)


@pytest.mark.parametrize(("column", "architecture"), confining._MACHINES.values())
@pytest.mark.parametrize("allow_programs", [False, True])
def test_a_filter_is_as_the_kernel_wants_it(
    column: int, architecture: int, allow_programs: bool
) -> None:
    """At most 4096 steps, no jump beyond the end, a return as the last one."""
    steps = list(confining._filter(column, architecture, allow_programs=allow_programs))
    assert len(steps) < 4096
    for place, step in enumerate(steps):
        assert len(step) == 8
        assert place + 1 + max(step[2], step[3]) <= len(steps)
    assert steps[-1][0] == confining._RETURN


def test_a_number_stands_for_one_call() -> None:
    calls = confining._CALLS | confining._PROGRAM_CALLS
    for column in range(2):
        numbers = [n[column] for n in calls.values() if n[column] is not None]
        assert len(numbers) == len(set(numbers))
        for others in (confining._OPEN, confining._OPENAT, confining._CLONE, confining._CLONE3):
            assert others[column] is None or others[column] not in numbers
