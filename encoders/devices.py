"""Devices: which one to compute on, in which precision, with how many threads."""

from __future__ import annotations

import os

from schemas.errors import DeviceError

_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""One of them is there where a GPU is; torch takes seconds to say so."""


def choose_device(name: str) -> str:
    """`auto` -> `cuda` where there is a GPU, else `cpu`. DeviceError: it is not there."""
    if name == "cpu" or (name == "auto" and not any(map(os.path.exists, _GPU_FILES))):
        return "cpu"
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


def device_name(device: str) -> str:
    """What a person calls a device: `cpu`, or the model of the GPU."""
    if device == "cpu":
        return device
    import torch

    return torch.cuda.get_device_name(device)


def num_gpus() -> int:
    """How many GPUs torch can use."""
    import torch

    return torch.cuda.device_count()


def set_threads(num_threads: int) -> None:
    """Let torch compute with so many threads, unless OMP_NUM_THREADS says otherwise.

    Threads that wait for each other on busy cores cost many times what they bring.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    import torch

    torch.set_num_threads(max(1, num_threads))
