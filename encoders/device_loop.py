"""DeviceLoop: runs a module over the items of an array, in batches, on a CPU or a GPU.

Every forward has the same number of items, the last one filled up, so that an item's features
depend on the others as little as the libraries allow; with batches of 1 they do not at all.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from schemas.errors import DeviceError

_Moving = tuple[slice, torch.Tensor, "torch.cuda.Event | None"]
"""Which items; what is moved to the device or from it; when it is there."""

SMALLER = "use a smaller encoder, or precision = 'bfloat16'"


class DeviceLoop:
    """A module on a device, and how items get there and back."""

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        name: str,
        item: str,
        device: str,
        precision: str,
        max_batch: int,
        compiled: bool,
        prepare: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """`prepare` makes the module's input from items on the device, in float32.

        `item` is what one is called in messages: a clip, a chunk.
        """
        self._name = name
        self._item = item
        self._device = torch.device(device)
        self._on_gpu = self._device.type == "cuda"
        self.max_batch = max_batch
        self._dtype = getattr(torch, precision or "float32")
        if self._dtype == torch.float32:
            torch.backends.cudnn.allow_tf32 = False  # products already are exact by default
        else:
            _lower(module, self._dtype)
        try:
            self.module = module.eval().requires_grad_(requires_grad=False).to(self._device)
        except RuntimeError as error:
            if not _says_no_memory(error):
                raise
            raise DeviceError(
                f"{name}: its weights are too much for the memory of {device}", hint=SMALLER
            ) from error
        if compiled:
            self.module = torch.compile(self.module)  # type: ignore[assignment]
        self._prepare = prepare
        self._copying = torch.cuda.Stream(self._device) if self._on_gpu else None  # type: ignore[no-untyped-call]

    def run(self, items: npt.NDArray[Any], *, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """(N, ...) -> (N, *shape) float32. Out of memory halves the batch, and the work goes on.

        DeviceError: one item is too much for the device.
        """
        while True:
            size = self.max_batch  # another thread may halve it meanwhile
            try:
                with self._on_device():
                    return self._run(items, shape, size=size)
            except RuntimeError as error:
                if not _says_no_memory(error):
                    raise
                if size == 1:
                    raise DeviceError(
                        f"{self._name}: one {self._item} is too much for the memory of"
                        f" {self._device}",
                        hint=SMALLER,
                    ) from error
            self.max_batch = min(self.max_batch, size // 2)
            torch.cuda.empty_cache()

    def _run(
        self, items: npt.NDArray[Any], shape: tuple[int, ...], *, size: int
    ) -> npt.NDArray[np.float32]:
        features = np.empty((len(items), *shape), dtype=np.float32)
        before: _Moving | None = None
        for where, batch in self._batches(items, size=size):
            computed = (where, *self._forward(batch))
            if before is not None:  # is taken while this one is computed
                _take(before, features)
            before = computed
        if before is not None:
            _take(before, features)
        return features

    def _batches(
        self, items: npt.NDArray[Any], *, size: int
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        # The next batch is on its way to the device before this one is asked to compute.
        ahead: deque[_Moving] = deque()
        for start in range(0, len(items), size):
            where = slice(start, min(start + size, len(items)))
            ahead.append((where, *self._to_device(items[where], size=size)))
            if len(ahead) > 1:
                yield self._arrived(*ahead.popleft())
        while ahead:
            yield self._arrived(*ahead.popleft())

    def _to_device(
        self, items: npt.NDArray[Any], *, size: int
    ) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        dtype = torch.from_numpy(np.empty(0, items.dtype)).dtype
        batch = torch.empty((size, *items.shape[1:]), dtype=dtype, pin_memory=self._on_gpu)
        batch.numpy()[: len(items)] = items
        batch.numpy()[len(items) :] = items[-1]
        if self._copying is None:
            return batch, None
        with torch.cuda.stream(self._copying):
            return batch.to(self._device, non_blocking=True), _event(self._copying)

    def _arrived(
        self, where: slice, batch: torch.Tensor, arrival: torch.cuda.Event | None
    ) -> tuple[slice, torch.Tensor]:
        if arrival is not None:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_event(arrival)
            batch.record_stream(computing)
        return where, batch

    @torch.inference_mode()
    def _forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        prepared = self._prepare(batch)
        with self._autocast():
            features = self.module(prepared).to(torch.float32)
        if not self._on_gpu:
            return features, None
        on_host = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
        on_host.copy_(features, non_blocking=True)
        return on_host, _event(torch.cuda.current_stream(self._device))

    def bare_forward(self, items: npt.NDArray[Any]) -> Callable[[], torch.Tensor]:
        """A function that is one forward of these items, already prepared: what nothing can beat.

        Its result is on the device, and not waited for.
        """
        with self._on_device(), torch.inference_mode():
            prepared = self._prepare(torch.from_numpy(items).to(self._device))

        def forward() -> torch.Tensor:
            with self._on_device(), torch.inference_mode(), self._autocast():
                features: torch.Tensor = self.module(prepared)
            return features

        return forward

    def _on_device(self) -> contextlib.AbstractContextManager[object]:
        # Pinned memory and compiled kernels belong to the thread's current device, which is the
        # first one in every new thread.
        return torch.cuda.device(self._device) if self._on_gpu else contextlib.nullcontext()

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self._dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    # Whoever waits for a plain event keeps a core busy, which decoders could use.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _says_no_memory(error: RuntimeError) -> bool:
    # Handles of the libraries are not allocated by torch, and their failing is told otherwise.
    said = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(
        f"{library}_STATUS_{failure}" in said
        for library in ("CUBLAS", "CUDNN")
        for failure in ("ALLOC_FAILED", "NOT_INITIALIZED")
    )


def _take(computed: _Moving, into: npt.NDArray[np.float32]) -> None:
    where, features, done = computed
    if done is not None:
        done.synchronize()
    into[where] = features.numpy()[: where.stop - where.start]


def _lower(module: torch.nn.Module, dtype: torch.dtype) -> None:
    # What autocast would do to the weights of every product, once and not each time.
    products = torch.nn.Linear | torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d
    for layer in module.modules():
        if isinstance(layer, products):
            layer.to(dtype)
