"""Ranks: the processes of a run. torchrun starts them and says by the environment who each is.

    torchrun --nproc-per-node 8 -m trainer train CACHE --config T.toml

Without it there is one rank and no process group.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import distributed

from schemas.errors import DeviceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Who this process is among `world`."""

    rank: int = 0
    world: int = 1
    device: str = "cpu"
    """Of this rank."""

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes files and talks."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Of all ranks, in float64; each must ask. Waits for what the device is at."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        return self.sum_tensor(tensor)

    def sum_tensor(self, values: torch.Tensor) -> list[float]:
        """As `sum`, of what lies on the device already."""
        if self.world > 1:
            distributed.all_reduce(values)
        summed: list[float] = values.tolist()
        return summed

    def wait(self) -> None:
        """For all ranks."""
        if self.world > 1:
            distributed.barrier()


ALONE = Ranks()
"""One rank, on the CPU."""


def num_ranks() -> int:
    """How many torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextlib.contextmanager
def join_ranks(device: str = "cpu") -> Iterator[Ranks]:
    """Meet the other ranks, over nccl on GPUs and gloo on CPUs, with torch's own time limits.

    `cuda` becomes this rank's own GPU. DeviceError: there are more ranks than GPUs.
    """
    world = num_ranks()
    if world == 1:
        yield Ranks(device=device)
        return
    if device.startswith("cuda"):
        local_rank = int(os.environ["LOCAL_RANK"])
        if local_rank >= torch.cuda.device_count():
            raise DeviceError(
                f"rank {os.environ['RANK']} has no GPU: there are {torch.cuda.device_count()}",
                hint="start as many ranks as there are GPUs: torchrun --nproc-per-node",
            )
        device = f"cuda:{local_rank}"
        torch.cuda.set_device(device)
        distributed.init_process_group("nccl", device_id=torch.device(device))
    else:
        distributed.init_process_group("gloo")
    yield Ranks(rank=distributed.get_rank(), world=world, device=device)
    # Not after an error: it would wait for ranks that are in the middle of a message.
    distributed.destroy_process_group()
