"""RunOptions: how and where a run is executed, which no recipe says.

Nothing here changes what is cached but by the device: `precision = "auto"` becomes what suits it,
which is in the stamp, and a GPU's last bits depend on the batch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from encoders import Runtime
from encoders.devices import choose_device, num_gpus, prepare_cpu
from pipeline.engines import NO_ACCELERATOR, find_engine
from pipeline.fetching import FETCH_BYTES
from pipeline.pool import num_cores
from schemas.errors import UsageError

LOCAL = "local"
_RAM = re.compile(r"[0-9]+(\.[0-9]+)? ?[KMGTP]i?B")
_ENGINES_ONLY = ("accelerator", "min_ram", "min_cpus", "container")


class Claims(Protocol):
    """Gives each process of a machine another number."""

    def claim_number(self) -> int:
        """0, 1, 2, ..."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How and where a run is executed."""

    runner: str = LOCAL
    """`local`, `dataflow`, `flink`, `spark`, `prism`, or `beam:` and a name that Beam knows."""
    num_workers: int = 1
    """Processes; each has its own encoders and its own decoder processes. On an engine at most."""
    num_decoders: int | None = None
    """Decoder processes of each worker; None: as many as there are cores for it."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`; auto: a GPU where there is one. Workers share out several GPUs."""
    compile: bool = False
    """Let torch.compile specialise the encoders."""
    max_batch: int | None = None
    """Clips that go through an encoder at once; None: a choice by device."""
    fetch_bytes: int = FETCH_BYTES
    """Of remote videos on a worker's disk, but for one file that may be beyond it."""
    max_reject_rate: float = 1.0
    """In [0, 1]; a run with more rejects writes no cache.json. A local one stops early."""
    keep_encoders: bool = False
    """Leave the encoders loaded for the next run in this process; for one worker."""
    accelerator: str = ""
    """What an engine's workers need, as Beam says it; `none`; empty: what the engine has here."""
    min_ram: str = ""
    """Memory that an engine's workers need, such as 16GB; empty: not said."""
    min_cpus: int | None = None
    """Cores that an engine's workers need."""
    container: str = ""
    """The image of an engine's workers, see deploy/."""
    beam_arguments: tuple[str, ...] = ()
    """Handed on to Beam as they are."""

    def __post_init__(self) -> None:
        """UsageError: an unknown runner, or a value that no engine can read."""
        if self.is_local:
            useless = [name for name in _ENGINES_ONLY if getattr(self, name)]
            if useless:
                raise UsageError(
                    f"{', '.join(useless)} is for engines, and the runner is {LOCAL!r}",
                    hint="see docs/engines.md",
                )
            return
        find_engine(self.runner)
        if self.min_ram and not _RAM.fullmatch(self.min_ram):
            raise UsageError(f"min_ram = {self.min_ram!r} must be a size such as 16GB")
        if self.accelerator not in ("", NO_ACCELERATOR) and "type:" not in self.accelerator:
            raise UsageError(
                f"accelerator = {self.accelerator!r} must be {NO_ACCELERATOR} or such as"
                " type:nvidia-l4;count:1;install-nvidia-driver"
            )

    @property
    def is_local(self) -> bool:
        return self.runner == LOCAL

    @property
    def accelerator_hint(self) -> str:
        """What is asked of the engine; empty: nothing."""
        asked = self.accelerator or find_engine(self.runner).accelerator
        return "" if asked == NO_ACCELERATOR else asked

    @property
    def decoders_per_worker(self) -> int:
        return self.num_decoders or self.cores_per_worker

    @property
    def cores_per_worker(self) -> int:
        """On an engine a machine's cores are one worker's."""
        return max(1, num_cores() // self.num_workers) if self.is_local else num_cores()

    def resource_hints(self) -> dict[str, str]:
        """What workers that build need, as Beam's hints."""
        if self.is_local:
            return {}
        hints = {
            "accelerator": self.accelerator_hint,
            "min_ram": self.min_ram,
            "cpu_count": str(self.min_cpus or ""),
        }
        return {name: value for name, value in hints.items() if value}

    def choose_device(self) -> str:
        """The device of the workers, which on an engine are not here. DeviceError."""
        if self.is_local:
            return choose_device(self.device)
        if self.device == "auto":
            return "cuda" if self.accelerator_hint else "cpu"
        return self.device

    def runtime(self, claims: Claims) -> Runtime:
        """How the encoders of this process compute: call it once a process. DeviceError."""
        device = self.device
        if not self.is_local:
            choose_device(device)  # nobody has looked whether it is there
        if device == "cpu":
            prepare_cpu(self.cores_per_worker)
        elif device == "cuda":
            device = f"cuda:{claims.claim_number() % max(1, num_gpus())}"
        return Runtime(device=device, compile=self.compile, max_batch=self.max_batch)
