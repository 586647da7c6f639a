"""One step of training: the gradients of its packs together, then one move of the optimiser."""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from schemas.errors import Diverged
from trainer.data.batch import Batch


class StepClock:
    """Seconds of a step by what they went into: wait, copy, forward, backward, optimizer."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._device = device

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begin = self._now()
        try:
            yield
        finally:
            self.seconds[name] += self._now() - begin

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a step has over all ranks; by these its sums are divided."""

    num_targets: int
    num_spans: int
    world: int
    regression_weight: float


def add_gradients(
    model: nn.Module,
    batch: Batch,
    *,
    totals: Totals,
    clock: StepClock,
    autocast: torch.dtype | None,
) -> Tensor:
    """Forward and backward of one pack: its part of the step's loss.

    Ranks average gradients, so each multiplies by their number.
    """
    device = batch.input_ids_L.device.type
    enabled = autocast is not None
    with clock.timed("forward"), torch.autocast(device, dtype=autocast, enabled=enabled):
        losses = model(batch)
        loss: Tensor = losses.tokens * (totals.world / max(1, totals.num_targets))
        if losses.times is not None:
            weight = totals.regression_weight * totals.world / max(1, totals.num_spans)
            loss = loss + losses.times * weight
    with clock.timed("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def move(
    optimizer: torch.optim.Optimizer, *, clip: float, loss: float, step: int, clock: StepClock
) -> float:
    """Clip the gradients to a norm of `clip` (0: do not) and take the step: their norm before.

    Diverged: the loss or the norm is no number.
    """
    with clock.timed("optimizer"):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip if clip else math.inf)
        size = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        if not math.isfinite(loss) or not math.isfinite(size):
            raise Diverged(
                f"step {step}: the loss is {loss} and the norm of the gradients {size}",
                hint="go on from an earlier checkpoint with a lower rate: trainer resume RUN",
            )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return size
