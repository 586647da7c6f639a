"""TorchEncoder: runs a module on batches of clips, on a CPU or a GPU.

Every forward has the same number of clips, the last one filled up, so that a clip's features depend
on the others as little as the libraries allow; on a CPU that number is 1 and they do not at all.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from encoders.base import EncoderSpec, Runtime
from schemas.errors import DeviceError

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
        self._device = torch.device(runtime.device)
        self._on_gpu = self._device.type == "cuda"
        self.max_batch = runtime.max_batch or (GPU_BATCH if self._on_gpu else CPU_BATCH)
        self._dtype = getattr(torch, spec.precision or "float32")
        if self._dtype == torch.float32:
            torch.backends.cudnn.allow_tf32 = False  # products already are exact by default
        else:
            _lower(module, self._dtype)
        self._module = module.eval().requires_grad_(requires_grad=False).to(self._device)
        if runtime.compile:
            self._module = torch.compile(self._module)  # type: ignore[assignment]
        shape = (1, 1, 3, 1, 1)
        self._mean = torch.tensor(mean, device=self._device).view(shape)
        self._std = torch.tensor(std, device=self._device).view(shape)
        self._copying = torch.cuda.Stream(self._device) if self._on_gpu else None  # type: ignore[no-untyped-call]

    def encode(self, frames_BTHWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """See `Encoder.encode`. Out of memory halves the batch, and the work goes on."""
        while True:
            try:
                return self._encode(frames_BTHWC)
            except torch.OutOfMemoryError as error:
                if self.max_batch == 1:
                    raise DeviceError(
                        f"{self.spec.name}: one clip is too much for the memory of {self._device}",
                        hint="use a smaller encoder, or precision = 'bfloat16'",
                    ) from error
            self.max_batch //= 2
            torch.cuda.empty_cache()

    def _encode(self, frames_BTHWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        num_clips, num_frames = frames_BTHWC.shape[:2]
        spec = self.spec
        shape = (num_clips, spec.num_grids(num_frames), *spec.grid, spec.dim)
        features = np.empty(shape, dtype=np.float32)
        before: tuple[slice, torch.Tensor, torch.cuda.Event | None] | None = None
        for where, pixels in self._batches(frames_BTHWC):
            computed = (where, *self._forward(pixels))
            if before is not None:  # is taken while this one is computed
                _take(before, features)
            before = computed
        if before is not None:
            _take(before, features)
        return features

    def _batches(self, frames_BTHWC: npt.NDArray[np.uint8]) -> Iterator[tuple[slice, torch.Tensor]]:
        # The next batch is on its way to the device before this one is asked to compute.
        ahead: deque[tuple[slice, torch.Tensor, torch.cuda.Event | None]] = deque()
        for start in range(0, len(frames_BTHWC), self.max_batch):
            where = slice(start, min(start + self.max_batch, len(frames_BTHWC)))
            ahead.append((where, *self._to_device(frames_BTHWC[where])))
            if len(ahead) > 1:
                yield self._arrived(*ahead.popleft())
        while ahead:
            yield self._arrived(*ahead.popleft())

    def _to_device(
        self, frames_BTHWC: npt.NDArray[np.uint8]
    ) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        filled = (self.max_batch, *frames_BTHWC.shape[1:])
        pixels = torch.empty(filled, dtype=torch.uint8, pin_memory=self._on_gpu)
        pixels.numpy()[: len(frames_BTHWC)] = frames_BTHWC
        pixels.numpy()[len(frames_BTHWC) :] = frames_BTHWC[-1]
        if self._copying is None:
            return pixels, None
        with torch.cuda.stream(self._copying):
            return pixels.to(self._device, non_blocking=True), self._copying.record_event()

    def _arrived(
        self, where: slice, pixels: torch.Tensor, arrival: torch.cuda.Event | None
    ) -> tuple[slice, torch.Tensor]:
        if arrival is not None:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_event(arrival)
            pixels.record_stream(computing)
        return where, pixels

    @torch.inference_mode()
    def _forward(self, pixels_BTHWC: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        images_BTCHW = pixels_BTHWC.permute(0, 1, 4, 2, 3).to(torch.float32).div_(255.0)
        images_BTCHW = images_BTCHW.sub_(self._mean).div_(self._std)
        with self._autocast():
            features = self._module(images_BTCHW).to(torch.float32)
        if not self._on_gpu:
            return features, None
        on_host = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
        on_host.copy_(features, non_blocking=True)
        return on_host, torch.cuda.current_stream(self._device).record_event()

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self._dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)


def _take(
    computed: tuple[slice, torch.Tensor, torch.cuda.Event | None], into: npt.NDArray[np.float32]
) -> None:
    where, features, done = computed
    if done is not None:
        done.synchronize()
    into[where] = features.numpy()[: where.stop - where.start]


def _lower(module: torch.nn.Module, dtype: torch.dtype) -> None:
    # What autocast would do to the weights of every product, once and not each time.
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d | torch.nn.Conv3d):
            layer.to(dtype)
