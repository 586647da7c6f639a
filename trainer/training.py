"""Train: the loop. Stages, steps, checkpoints; what happens in them is elsewhere.

    for each stage: its data, its optimiser
        for each step: packs of this rank -> gradients -> move -> figures -> checkpoint

The state of a run is (seed, step): everything random in a step is drawn from them and the rank.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline.cache import FeatureCache
from schemas.errors import Diverged
from trainer.checkpointing import list_checkpoints, load_checkpoint, read_state, save_checkpoint
from trainer.config import StageSpec, TrainConfig
from trainer.data.batch import Batch
from trainer.data.buffers import Buffers
from trainer.data.clip_reader import ClipReader
from trainer.data.read_ahead import ReadAhead, read_ahead
from trainer.data.stage_data import Job, StageData, require_packs
from trainer.distributed import Ranks
from trainer.interrupting import Told
from trainer.learner import Learner
from trainer.metrics_log import MetricsLog
from trainer.optimizing import make_optimizer, rate_factor, set_rates
from trainer.preparing import prepare_stages
from trainer.run_state import RunState, plan_of
from trainer.sharding import average_gradients, begin_stage, is_sharded, set_last
from trainer.stepping import StepClock, Totals, add_gradients, clip_gradients
from trainer.tally import Tally

Batches = ReadAhead[tuple[Job, Batch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What is known after a step."""

    step: int
    """Of all stages together; the number of steps that are done."""
    num_steps: int
    stage: str
    loss: float
    """Of all ranks together."""
    num_tokens: int
    """Of all ranks together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What came of a run."""

    out: str
    step: int
    num_steps: int
    loss: float | None
    """Of the last step; None: there was none left to do."""
    seconds: float
    tokens: int
    """That this run has learned from, since it was begun or resumed."""
    fingerprint: str
    checkpoint: str | None
    data: dict[str, Any] = field(default_factory=dict)
    """Stage -> what became of its rows."""
    signal: int = 0
    """That ended it before its last step; 0: it came to its end."""

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage and its place in the run."""

    spec: StageSpec
    data: StageData
    first: int
    """Steps of the stages before."""

    @property
    def stop(self) -> int:
        return self.first + self.data.num_steps


class TrainingRun:
    """A run that is set up; `train()` does it. All ranks make one and do the same."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        cache: FeatureCache,
        ranks: Ranks | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Errors as of what it reads: annotations, the language model, the cache."""
        self.config = config
        self.ranks = ranks or Ranks()
        self.device = torch.device(self.ranks.device)
        self.out = Path(config.run.out)
        require_packs(config, world=self.ranks.world)
        self.learner = Learner.of(config, cache=cache)
        self.prepared = prepare_stages(config, cache=cache, renderer=self.learner.renderer, say=say)
        self.stages = self._make_stages(cache)
        self.num_steps = self.stages[-1].stop
        self.done = 0
        self.model = self.learner.make_model(config, ranks=self.ranks)
        self._trained: set[str] = set()
        self._checkpoint: Path | None = None

    def resume(self) -> None:
        """Go on from the newest checkpoint of the run's folder; where there is none, from the start.

        ModelDamaged; UsageError and FingerprintMismatch as of `RunState.require_same`.
        """
        found = list_checkpoints(self.out)
        if not found:
            return
        self._checkpoint = found[-1]
        state = RunState.from_mapping(read_state(found[-1]), where=found[-1])
        state.require_same(self._state(state.step, state.stage), where=found[-1])
        self.done = state.step

    def train(
        self,
        *,
        show: Callable[[StepReport], None] = lambda _: None,
        told: Told | None = None,
    ) -> TrainResult:
        """Do all steps that are not done, or those until it is told to end. Diverged."""
        began, told = time.perf_counter(), told or Told()
        signal, num_tokens, loss = 0, 0, None
        with self._open_log() as tally:
            for stage in self.stages:
                optimizer = self._begin(stage)
                if self.done >= stage.stop:
                    continue
                with self._batches(stage) as batches:
                    while self.done < stage.stop and not signal:
                        report, signal = self._train_step(
                            stage, batches, optimizer, tally=tally, told=told
                        )
                        loss, num_tokens = report.loss, num_tokens + report.num_tokens
                        show(report)
                        if signal or self._is_save_due(stage):
                            self._save(stage, optimizer)
                if signal:
                    break
        return TrainResult(
            out=str(self.out),
            step=self.done,
            num_steps=self.num_steps,
            loss=loss,
            seconds=time.perf_counter() - began,
            tokens=num_tokens,
            fingerprint=self.learner.preprocessing.fingerprint(),
            checkpoint=None if self._checkpoint is None else str(self._checkpoint),
            data={stage.spec.name: stage.data.prepared.report for stage in self.stages},
            signal=signal if self.done < self.num_steps else 0,
        )

    def _train_step(
        self,
        stage: Stage,
        batches: Batches,
        optimizer: torch.optim.Optimizer,
        *,
        tally: Tally,
        told: Told,
    ) -> tuple[StepReport, int]:
        """One step; also the signal that one of the ranks was told to end by, or 0."""
        spec, step = self.config.optim, self.done
        factor = rate_factor(step - stage.first, num_steps=stage.data.num_steps, optim=spec)
        set_rates(optimizer, factor=factor)
        torch.manual_seed(_step_seed(self.config.run.seed, step, self.ranks.rank))
        loss, job = self._add_gradients(batches, clock=tally.clock)
        with tally.clock.timed("optimizer"):
            if self.ranks.world > 1 and not self._is_sharded:
                trained = (p for group in optimizer.param_groups for p in group["params"])
                average_gradients(trained, ranks=self.ranks)
            norm = clip_gradients(optimizer, norm=spec.clip)
        # The only place where a GPU is waited for.
        told_now = torch.tensor([told.number], dtype=torch.float64, device=self.device)
        total, signals = self.ranks.sum_tensor(torch.cat([loss, told_now]))
        size = float(norm)
        if not math.isfinite(total) or not math.isfinite(size):
            raise Diverged(
                f"step {step + 1}: the loss is {total} and the norm of the gradients {size}",
                hint="go on from the last checkpoint with lower rates: trainer resume"
                f" {self.out} --set optim.warmup=...; or begin again with lower stages.lr",
            )
        with tally.clock.timed("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.done += 1
        tally.add_step(
            self.done,
            is_last=self.done == stage.stop or bool(signals),
            num_tokens=job.num_tokens,
            figures={"stage": stage.spec.name, "loss": total, "norm": size, "rate": factor},
        )
        report = StepReport(
            step=self.done,
            num_steps=self.num_steps,
            stage=stage.spec.name,
            loss=total,
            num_tokens=job.num_tokens,
        )
        # Ranks are told the same, or at least one of them is.
        return report, told.number or (15 if signals else 0)

    def _add_gradients(self, batches: Batches, *, clock: StepClock) -> tuple[torch.Tensor, Job]:
        """Those of this rank's packs of a step: its part of the loss (1,) float64, its last job."""
        loss = torch.zeros(1, dtype=torch.float64, device=self.device)
        while True:
            with clock.timed("wait"):
                result = next(batches)
            with result as (job, batch), self._naming(job, batch):
                totals = Totals(
                    num_targets=job.num_targets,
                    num_spans=job.num_spans,
                    regression_weight=self.config.model.time.regression_weight,
                )
                with clock.timed("copy"):
                    moved = batch.to(self.device)
                copied = torch.cuda.Event() if self.device.type == "cuda" else None
                if copied is not None:
                    copied.record()  # type: ignore[no-untyped-call]
                set_last(self.model, is_last=job.is_last)
                loss += add_gradients(
                    self.model,
                    moved,
                    totals=totals,
                    world=self.ranks.world,
                    clock=clock,
                    autocast=self._autocast,
                )
                if copied is not None:  # before its memory is used again
                    copied.synchronize()  # type: ignore[no-untyped-call]
            if job.is_last:
                return loss, job

    @contextlib.contextmanager
    def _naming(self, job: Job, batch: Batch) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            ids = ", ".join(batch.item_ids[:3]) + (", ..." if len(batch.item_ids) > 3 else "")
            error.add_note(
                f"rank {self.ranks.rank} of {self.ranks.world}, step {self.done + 1}, a pack of"
                f" {len(batch.item_ids)} items ({ids}), {batch.num_tokens} tokens"
            )
            raise

    def _batches(self, stage: Stage) -> Batches:
        ranks, data = self.ranks, stage.data

        def make(job: Job, buffers: Buffers) -> tuple[Job, Batch]:
            return job, data.batch(job.pack, buffers)

        first = max(0, self.done - stage.first)
        readers = self.config.batch.readers
        return read_ahead(
            data.jobs(first=first, rank=ranks.rank, world=ranks.world),
            make,
            num_threads=readers,
            depth=readers + 1,
            pin_memory=self.device.type == "cuda",
        )

    def _begin(self, stage: Stage) -> torch.optim.Optimizer:
        """The optimiser of a stage, and its parameters as a checkpoint left them."""
        parts = self.model.parts()
        optimizer = make_optimizer(parts, stage=stage.spec, optim=self.config.optim)
        begin_stage(self.model)
        self._trained |= _names_of(self.model, optimizer)
        if self._checkpoint is not None and stage.first < self.done <= stage.stop:
            load_checkpoint(
                self._checkpoint,
                model=self.model,
                optimizer=optimizer if self.done < stage.stop else None,
                trained=self._trained,
                ranks=self.ranks,
            )
        return optimizer

    def _is_save_due(self, stage: Stage) -> bool:
        every = self.config.run.save_every
        return self.done == stage.stop or (every > 0 and self.done % every == 0)

    def _save(self, stage: Stage, optimizer: torch.optim.Optimizer) -> None:
        self._checkpoint = save_checkpoint(
            self.out,
            step=self.done,
            model=self.model,
            optimizer=optimizer,
            trained=self._trained,
            state=self._state(self.done, stage.spec.name).to_mapping(),
            keep=self.config.run.keep,
            ranks=self.ranks,
        )

    def _state(self, step: int, stage: str) -> RunState:
        config, preprocessing = self.config, self.learner.preprocessing
        sampling = self.learner.shape
        names = [one.name for one in config.stages]
        return RunState(
            step=step,
            stage=stage,
            seed=config.run.seed,
            plan={name: plan_of(one) for name, one in zip(names, self.prepared, strict=True)},
            fingerprint=preprocessing.fingerprint(),
            preprocessing=preprocessing.to_mapping(),
            seen={
                "policy": config.view.policy,
                "frames_per_second": config.view.fps or sampling.fps,
                "num_frames": config.view.num_frames,
                "frames_per_clip": self.learner.frames_per_clip,
                "tokens_per_clip": preprocessing.tokens_per_clip,
                "compression": config.model.connector.compression,
                "audio": None
                if config.model.audio is None
                else f"masked with p = {config.model.audio.mask_p}",
            },
            data={name: one.report for name, one in zip(names, self.prepared, strict=True)},
            config=config.to_mapping(),
            num_ranks=self.ranks.world,
        )

    def _make_stages(self, cache: FeatureCache) -> list[Stage]:
        config, learner = self.config, self.learner
        reader = ClipReader(
            cache,
            shape=learner.shape,
            view=config.view,
            with_audio=config.model.audio is not None,
        )
        stages: list[Stage] = []
        for index, spec in enumerate(config.stages):
            data = StageData(
                config,
                self.prepared[index],
                stage_index=index,
                renderer=learner.renderer,
                reader=reader,
                frames_per_clip=learner.frames_per_clip,
            )
            stages.append(Stage(spec=spec, data=data, first=stages[-1].stop if stages else 0))
        return stages

    @contextlib.contextmanager
    def _open_log(self) -> Iterator[Tally]:
        clock = StepClock(self.device)
        if not self.ranks.is_first:
            yield Tally(None, clock=clock, every=self.config.run.log_every)
            return
        with MetricsLog(
            self.out,
            kinds=self.config.run.log,
            config=self.config.to_mapping(),
            done=self.done,
        ) as log:
            yield Tally(log, clock=clock, every=self.config.run.log_every)

    @property
    def _is_sharded(self) -> bool:
        return is_sharded(self.config.parallel, world=self.ranks.world)

    @property
    def _autocast(self) -> torch.dtype | None:
        """Of what is not sharded; FSDP computes in the dtype that it was told."""
        is_bfloat16 = self.config.model.dtype == "bfloat16" and not self._is_sharded
        return torch.bfloat16 if is_bfloat16 else None


def _names_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in trained}


def _step_seed(seed: int, step: int, rank: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
