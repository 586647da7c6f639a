"""Devices: threads and memory of a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from encoders.devices import prepare_cpu

ROOT = Path(__file__).resolve().parents[2]
_ASK = """
import json, os, sys
from encoders.devices import prepare_cpu
if {first}:
    import torch
prepare_cpu(2)
early = "torch" in sys.modules
import torch
named = [os.environ.get(name) for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")]
print(json.dumps([early, torch.get_num_threads(), *named]))
"""


def ask(*, torch_first: bool = False, **environment: str) -> list[Any]:
    """[was torch imported by it, torch's threads, OMP_NUM_THREADS, OMP_WAIT_POLICY]."""
    chosen = ("OMP_", "MKL_", "OPENBLAS_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(chosen)}
    answer: list[Any] = json.loads(
        subprocess.check_output(
            [sys.executable, "-c", _ASK.format(first=torch_first)],
            env=plain | environment | {"PYTHONPATH": str(ROOT)},
        )
    )
    return answer


def test_threads_are_chosen_before_torch_is_imported_and_sleep_while_they_wait() -> None:
    assert ask() == [False, 2, "2", "PASSIVE"]


def test_threads_are_chosen_after_torch_is_imported() -> None:
    assert ask(torch_first=True) == [True, 2, None, "PASSIVE"]


def test_what_the_user_says_is_left_alone() -> None:
    said = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "ACTIVE"}
    assert ask(**said) == [False, 1, "1", "ACTIVE"]


def test_another_c_library_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setattr("encoders.devices.ctypes.CDLL", lambda _: object())
    prepare_cpu(1)
    assert torch.get_num_threads() >= 1
