"""TorchEncoder: an encoder of clips from a module of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from encoders.base import EncoderSpec, Runtime
from encoders.device_loop import DeviceLoop

GPU_BATCH = 16
"""Clips a forward, where nothing else is asked for."""
CPU_BATCH = 1


class TorchEncoder:
    """An `Encoder` from a module that takes (B, T, 3, H, W) float32 and gives (B, T', h, w, D)."""

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        spec: EncoderSpec,
        runtime: Runtime,
        mean: Sequence[float],
        std: Sequence[float],
        report: Any = None,
    ) -> None:
        """`mean` and `std` are of pixels in [0, 1]; `report` is the LoadReport of the weights."""
        self.spec = spec
        self.report = report
        self._mean = torch.tensor(mean, device=runtime.device)
        self._std = torch.tensor(std, device=runtime.device)
        self._loop = DeviceLoop(
            module,
            name=spec.name,
            item="clip",
            device=runtime.device,
            precision=spec.precision,
            max_batch=runtime.max_batch or (CPU_BATCH if runtime.device == "cpu" else GPU_BATCH),
            compiled=runtime.compile,
            prepare=self._normalise,
        )

    @property
    def module(self) -> torch.nn.Module:
        """The module as it runs: on the device, in the precision, maybe compiled."""
        return self._loop.module

    @property
    def max_batch(self) -> int:
        """Clips a forward; fewer than asked for once the memory was too small."""
        return self._loop.max_batch

    def encode(self, frames_BTHWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """See `Encoder.encode`. Out of memory halves the batch, and the work goes on."""
        num_grids = self.spec.num_grids(frames_BTHWC.shape[1])
        return self._loop.run(frames_BTHWC, shape=(num_grids, *self.spec.grid, self.spec.dim))

    def bare_forward(self, frames_BTHWC: npt.NDArray[np.uint8]) -> Callable[[], torch.Tensor]:
        """A function that is one forward of these clips and nothing else; for benchmarks."""
        return self._loop.bare_forward(frames_BTHWC)

    def _normalise(self, pixels_BTHWC: torch.Tensor) -> torch.Tensor:
        images_BTHWC = pixels_BTHWC.to(torch.float32).div_(255.0)
        # A row of pixels at a time: the colours alone are too short a run for a processor.
        rows = images_BTHWC.view(*images_BTHWC.shape[:3], -1)
        rows.sub_(self._mean.repeat(images_BTHWC.shape[3]))
        rows.div_(self._std.repeat(images_BTHWC.shape[3]))
        return images_BTHWC.permute(0, 1, 4, 2, 3)
