"""One step of training: the gradients of its packs together, then one move of the optimiser."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trainer.data.batch import Batch
from trainer.sharding import full

Section = Literal["wait", "copy", "forward", "backward", "optimizer"]
SECTIONS: tuple[Section, ...] = ("wait", "copy", "forward", "backward", "optimizer")


class StepClock:
    """Seconds of a step by what they went into.

    On a GPU by events in its queue, which make nobody wait; `seconds` is asked for when the step is
    over. The wait for data is the processor's.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._events: list[tuple[Section, Any, Any]] = []

    @contextlib.contextmanager
    def timed(self, section: Section) -> Iterator[None]:
        """Add the time within this context to a section."""
        if self._is_cuda and section != "wait":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()  # type: ignore[no-untyped-call]
            yield
            end.record()  # type: ignore[no-untyped-call]
            self._events.append((section, begin, end))
            return
        began = time.perf_counter()
        yield
        self._seconds[section] += time.perf_counter() - began

    def seconds(self) -> dict[Section, float]:
        """Of each section; on a GPU the work of all of them must be over."""
        for section, begin, end in self._events:
            self._seconds[section] += begin.elapsed_time(end) / 1000
        self._events = []
        return {section: self._seconds[section] for section in SECTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a step has over all ranks; by these its sums are divided."""

    num_targets: int
    num_spans: int
    regression_weight: float

    def loss(self, tokens: Tensor, times: Tensor | None) -> Tensor:
        """The part of the step's loss that one pack's sums are."""
        loss = tokens / max(1, self.num_targets)
        if times is not None:
            loss = loss + times * (self.regression_weight / max(1, self.num_spans))
        return loss


def add_gradients(
    model: nn.Module,
    batch: Batch,
    *,
    totals: Totals,
    world: int,
    clock: StepClock,
    autocast: torch.dtype | None,
) -> Tensor:
    """Forward and backward of one pack: its part of the step's loss, on the device.

    Ranks average gradients, so each multiplies by their number.
    """
    device = batch.input_ids_L.device.type
    enabled = autocast is not None
    with clock.timed("forward"), torch.autocast(device, dtype=autocast, enabled=enabled):
        losses = model(batch)
        loss = totals.loss(losses.tokens, losses.times)
    with clock.timed("backward"):
        (loss * world).backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def clip_gradients(optimizer: torch.optim.Optimizer, *, norm: float) -> Tensor:
    """Scale all gradients together to a norm of at most `norm` (0: do not): their norm before."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    found: Tensor = full(torch.nn.utils.clip_grad_norm_(parameters, norm or float("inf")))
    return found
