"""Devices: which one to compute on, in which precision, with how many threads."""

from __future__ import annotations

import ctypes
import os
import sys

from schemas.errors import DeviceError

_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""One of them is there where a GPU is; torch takes seconds to say so."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Of mallopt, as in glibc's malloc.h."""
_LARGEST_BLOCK, _MOST_KEPT = 1 << 30, 2**31 - 1


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


def prepare_cpu(num_threads: int) -> None:
    """Let torch compute with so many threads on this process's CPU; best before it is imported.

    What OMP_NUM_THREADS and OMP_WAIT_POLICY already say is left alone.
    """
    # The decoder processes want the same cores. A thread that waits for another one must not turn
    # in circles meanwhile: on two cores with two decoders that doubles the CPU seconds of a run.
    # Asleep, the threads take what cores are left, and cost no more than one thread would.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _keep_freed_memory()
    if "OMP_NUM_THREADS" in os.environ:
        return
    num_threads = max(1, num_threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(num_threads)
    else:  # importing it would cost encoders that have no use for it three seconds
        os.environ["OMP_NUM_THREADS"] = str(num_threads)


def _keep_freed_memory() -> None:
    # Activations are tens of megabytes, and by default glibc gives each back to the system and has
    # it zeroed again for the next layer: up to a tenth of a forward's CPU seconds.
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
    mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
