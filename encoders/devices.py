"""Devices: which one to compute on, in which precision, with how many threads."""

from __future__ import annotations

import os

from schemas.errors import DeviceError

PRECISIONS = ("float32", "bfloat16", "float16")


def choose_device(name: str) -> str:
    """`auto` -> `cuda` where there is a GPU, else `cpu`. DeviceError: it is not there."""
    if name == "cpu":
        return name
    import torch

    num_devices = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if num_devices else "cpu"
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number == "" or number.isdecimal()):
        raise DeviceError(f"device {name!r} must be auto, cpu, cuda or cuda:N")
    if int(number or 0) >= num_devices:
        raise DeviceError(
            f"device {name!r}: there are {num_devices} GPUs that torch can use",
            hint="use --device cpu, or see: pipeline doctor",
        )
    return name


def choose_precision(choice: str, *, device: str) -> str:
    """`auto` -> bfloat16 on a GPU, float32 on a CPU."""
    if choice != "auto":
        return choice
    return "float32" if device == "cpu" else "bfloat16"


def set_threads(num_threads: int) -> None:
    """Let torch compute with so many threads, unless OMP_NUM_THREADS says otherwise.

    Threads that wait for each other on busy cores cost many times what they bring.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    import torch

    torch.set_num_threads(max(1, num_threads))
