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
from trainer.data.stage_data import Job
from trainer.learning.distributed import Ranks
from trainer.learning.optimizing import trained_by
from trainer.learning.sharding import full, set_last
from trainer.learning.stages import Batches
from trainer.model.reducing import kept_time_histogram

Section = Literal["wait", "copy", "forward", "backward", "optimizer"]
SECTIONS: tuple[Section, ...] = ("wait", "copy", "forward", "backward", "optimizer")


class StepClock:
    """Seconds of a step by what they went into.

    On a GPU by events in its queue, which make nobody wait; `seconds` is asked for when the step is
    over. The wait for data is the processor's.
    """

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._events: list[tuple[Section, Any, Any]] = []

    @contextlib.contextmanager
    def timed(self, section: Section) -> Iterator[None]:
        """Add the time within this context to a section."""
        if self.is_cuda and section != "wait":
            begin, end = _event(timing=True), _event(timing=True)
            begin.record()
            yield
            end.record()
            self._events.append((section, begin, end))
            return
        began = time.perf_counter()
        yield
        self._seconds[section] += time.perf_counter() - began

    def seconds(self) -> dict[str, float]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """How all packs of a run are computed."""

    ranks: Ranks
    regression_weight: float = 0.0
    autocast: torch.dtype | None = None
    """Of a model that is not sharded: FSDP computes in the dtype that it was told."""
    kept_bins: int = 0
    """B: how finely it is told when clips are that a reducer kept; 0: there is no reducer."""


def add_step_gradients(
    model: nn.Module, batches: Batches, *, computing: Computing, clock: StepClock
) -> tuple[Tensor, Job]:
    """Those of this rank's packs of a step.

    Returns the sums of `add_gradients` over them, and the last job.
    """
    device = torch.device(computing.ranks.device)
    sums = torch.zeros(1 + computing.kept_bins, dtype=torch.float64, device=device)
    while True:
        try:
            with clock.timed("wait"):
                result = next(batches)
        except Exception as error:
            ranks = computing.ranks
            error.add_note(f"rank {ranks.rank} of {ranks.world}, which was reading ahead")
            raise
        with result as (job, batch), _naming(job, batch, ranks=computing.ranks):
            with clock.timed("copy"):
                moved = batch.to(device)
            copied = _event() if device.type == "cuda" else None
            if copied is not None:
                copied.record()
            totals = Totals(
                num_targets=job.num_targets,
                num_spans=job.num_spans,
                regression_weight=computing.regression_weight,
            )
            set_last(model, is_last=job.is_last)
            sums += add_gradients(model, moved, totals=totals, computing=computing, clock=clock)
            if copied is not None:  # before its memory is used again
                copied.synchronize()
        if job.is_last:
            return sums, job


def add_gradients(
    model: nn.Module, batch: Batch, *, totals: Totals, computing: Computing, clock: StepClock
) -> Tensor:
    """Forward and backward of one pack.

    Returns (1 + B,) float64 on the device: its part of the step's loss, and the histogram of
    `kept_time_histogram`. Ranks average gradients, so each multiplies by their number.
    """
    device, autocast = batch.input_ids_L.device.type, computing.autocast
    enabled = autocast is not None
    with clock.timed("forward"), torch.autocast(device, dtype=autocast, enabled=enabled):
        losses = model(batch)
        loss = totals.loss(losses.tokens, losses.times)
    with clock.timed("backward"):
        (loss * computing.ranks.world).backward()  # type: ignore[no-untyped-call]
    sums = loss.detach().double().reshape(1)
    if not computing.kept_bins:
        return sums
    if losses.kept_C is None:  # no clip, so none that was kept
        return torch.cat([sums, sums.new_zeros(computing.kept_bins)])
    kept = kept_time_histogram(batch.clip_place_C, losses.kept_C, bins=computing.kept_bins)
    return torch.cat([sums, kept.double()])


@contextlib.contextmanager
def _naming(job: Job, batch: Batch, *, ranks: Ranks) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        ids = ", ".join(batch.item_ids[:3]) + (", ..." if len(batch.item_ids) > 3 else "")
        error.add_note(
            f"rank {ranks.rank} of {ranks.world}, step {job.step + 1} of the stage, a pack of"
            f" {len(batch.item_ids)} items ({ids}), {batch.num_tokens} tokens"
        )
        raise


def clip_gradients(optimizer: torch.optim.Optimizer, *, norm: float) -> Tensor:
    """Scale all gradients together to a norm of at most `norm` (0: do not): their norm before."""
    parameters = trained_by(optimizer)
    found: Tensor = full(torch.nn.utils.clip_grad_norm_(parameters, norm or float("inf")))
    return found


def _event(*, timing: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
