"""Train: the loop. Stages, steps, checkpoints; what happens in them is elsewhere.

    for each stage: its data, its optimiser
        for each step: packs of this rank -> gradients -> move -> figures -> checkpoint

The state of a run is (seed, step): everything random in a step is drawn from them and the rank.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from pipeline.cache import FeatureCache
from schemas.errors import Diverged
from trainer.config import TrainConfig
from trainer.data.stage_data import require_packs
from trainer.learning.checkpointing import (
    list_checkpoints,
    load_checkpoint,
    read_state,
    save_checkpoint,
)
from trainer.learning.distributed import Ranks
from trainer.learning.interrupting import Told
from trainer.learning.learner import Learner
from trainer.learning.metrics_log import MetricsLog
from trainer.learning.optimizing import make_optimizer, names_of, rate_factor, set_rates, trained_by
from trainer.learning.preparing import prepare_stages
from trainer.learning.reporting import StepReport, TrainResult
from trainer.learning.run_state import RunState
from trainer.learning.sharding import average_gradients, begin_stage, is_sharded
from trainer.learning.stages import Batches, Stage, make_stages
from trainer.learning.stepping import Computing, StepClock, add_step_gradients, clip_gradients
from trainer.learning.tally import Tally
from trainer.model.reducing import KEPT_BINS


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
        self.out = Path(config.run.out)
        require_packs(config, world=self.ranks.world)
        self.is_sharded = is_sharded(config.parallel, world=self.ranks.world)
        self.learner = Learner.of(config, cache=cache)
        self.prepared = prepare_stages(config, cache=cache, renderer=self.learner.renderer, say=say)
        self.stages = make_stages(config, self.prepared, cache=cache, learner=self.learner)
        self.num_steps = self.stages[-1].stop
        self.done = 0
        self.model = self.learner.make_model(config, ranks=self.ranks)
        in_bfloat16 = config.model.dtype == "bfloat16" and not self.is_sharded
        self._computing = Computing(
            ranks=self.ranks,
            regression_weight=config.model.time.regression_weight,
            autocast=torch.bfloat16 if in_bfloat16 else None,
            kept_bins=0 if self.model.reducer is None else KEPT_BINS,
        )
        self._trained: set[str] = set()
        """Names of the parameters that were, in any stage so far."""
        self._checkpoint: Path | None = None

    def resume(self) -> None:
        """Go on from the newest checkpoint of the run's folder; without one, from the start.

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
        report, num_tokens = None, 0
        with self._open_log() as tally:
            for stage in self.stages:
                optimizer = self.begin(stage)
                if self.done >= stage.stop:
                    continue
                with self._batches(stage) as batches:
                    while self.done < stage.stop and not (report and report.signal):
                        report = self._train_step(stage, batches, optimizer, tally, told=told)
                        num_tokens += report.num_tokens
                        show(report)
                        if report.signal or self._is_save_due(stage):
                            self._save(stage, optimizer)
                if report and report.signal:
                    break
        return TrainResult(
            out=str(self.out),
            step=self.done,
            num_steps=self.num_steps,
            loss=None if report is None else report.loss,
            seconds=time.perf_counter() - began,
            tokens=num_tokens,
            fingerprint=self.learner.preprocessing.fingerprint(),
            checkpoint=None if self._checkpoint is None else str(self._checkpoint),
            data={stage.spec.name: stage.data.prepared.report for stage in self.stages},
            signal=report.signal if report and self.done < self.num_steps else 0,
        )

    def begin(self, stage: Stage) -> torch.optim.Optimizer:
        """The optimiser of a stage, and its parameters as a checkpoint left them.

        Stages are begun in their order. ModelDamaged: the checkpoint cannot be loaded.
        """
        optimizer = make_optimizer(self.model.parts(), stage=stage.spec, optim=self.config.optim)
        begin_stage(self.model)
        self._trained |= names_of(self.model, optimizer)
        if self._checkpoint is not None and stage.first < self.done <= stage.stop:
            load_checkpoint(
                self._checkpoint,
                model=self.model,
                optimizer=optimizer if self.done < stage.stop else None,
                trained=self._trained,
                ranks=self.ranks,
            )
        return optimizer

    def _train_step(
        self,
        stage: Stage,
        batches: Batches,
        optimizer: torch.optim.Optimizer,
        tally: Tally,
        *,
        told: Told,
    ) -> StepReport:
        spec, step, clock = self.config.optim, self.done, tally.clock
        factor = rate_factor(step - stage.first, num_steps=stage.data.num_steps, optim=spec)
        set_rates(optimizer, factor=factor)
        torch.manual_seed(_step_seed(self.config.run.seed, step, self.ranks.rank))
        sums, job = add_step_gradients(self.model, batches, computing=self._computing, clock=clock)
        with clock.timed("optimizer"):
            if self.ranks.world > 1 and not self.is_sharded:
                average_gradients(trained_by(optimizer), ranks=self.ranks)
            norm = clip_gradients(optimizer, norm=spec.clip)
        # The only place where a GPU is waited for. A signal may have come to one rank alone.
        signals = torch.tensor([float(told.number > 0)], dtype=sums.dtype, device=sums.device)
        loss, *kept, num_told = self.ranks.sum_tensor(torch.cat([sums, signals]))
        self._require_numbers(loss, float(norm))
        with clock.timed("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.done += 1
        report = StepReport(
            step=self.done,
            num_steps=self.num_steps,
            stage=stage.spec.name,
            loss=loss,
            num_tokens=job.num_tokens,
            kept=tuple(map(int, kept)),
            signal=(told.number or signal.SIGTERM) if num_told else 0,
        )
        tally.add(report, is_last=self.done == stage.stop, norm=float(norm), rate=factor)
        return report

    def _require_numbers(self, loss: float, norm: float) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        raise Diverged(
            f"step {self.done + 1}: the loss is {loss} and the norm of the gradients {norm}",
            hint=f"go on from the last checkpoint with a lower rate: trainer resume {self.out}"
            " --set stages.NAME.lr.PART=RATE",
        )

    def _batches(self, stage: Stage) -> Batches:
        return stage.batches(done=self.done, ranks=self.ranks, readers=self.config.batch.readers)

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
        return RunState.of(
            self.config,
            step=step,
            stage=stage,
            prepared=self.prepared,
            learner=self.learner,
            num_ranks=self.ranks.world,
        )

    @contextlib.contextmanager
    def _open_log(self) -> Iterator[Tally]:
        clock, run = StepClock(torch.device(self.ranks.device)), self.config.run
        if not self.ranks.is_first:
            yield Tally(None, clock=clock, every=run.log_every)
            return
        config = self.config.to_mapping()
        with MetricsLog(self.out, kinds=run.log, config=config, done=self.done) as log:
            yield Tally(log, clock=clock, every=run.log_every)


def _step_seed(seed: int, step: int, rank: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
