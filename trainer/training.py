"""Train: the loop. Stages, steps, checkpoints; what happens in them is elsewhere.

    for each stage: its data, its optimiser
        for each step: packs of this rank -> gradients -> move -> figures -> checkpoint

The state of a run is (seed, step): everything random in a step is drawn from them and the rank.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.cache import FeatureCache
from schemas.errors import FingerprintMismatch, UsageError
from schemas.recipe import differing_fields
from trainer.checkpointing import list_checkpoints, load_checkpoint, read_state, save_checkpoint
from trainer.config import TrainConfig
from trainer.data.buffers import Buffers
from trainer.data.cache_shape import CacheShape
from trainer.data.catalog import Catalog
from trainer.data.clip_reader import ClipReader, audio_tokens_per_clip
from trainer.data.formats import read_annotations
from trainer.data.planning import Pack, of_rank
from trainer.data.read_ahead import read_ahead
from trainer.data.stage_data import Prepared, StageData, prepare, require_packs
from trainer.data.video_view import needs_frame_times
from trainer.metrics_log import MetricsLog
from trainer.model.language import add_lora, load_language_model, load_tokenizer, make_renderer
from trainer.model.video_lm import VideoLM
from trainer.optimizing import make_optimizer, rate_factor, set_rates
from trainer.preprocessing import Preprocessing
from trainer.stepping import StepClock, Totals, add_gradients, move


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a run says after a step."""

    step: int
    """Of all stages together; the number of steps that are done."""
    num_steps: int
    stage: str
    loss: float
    tokens_per_second: float
    seconds_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What came of a run."""

    out: str
    step: int
    num_steps: int
    loss: float
    """Of the last step."""
    seconds: float
    tokens: int
    fingerprint: str
    data: dict[str, Any]
    """Stage -> report of its join."""


class TrainingRun:
    """A run that is set up; `train()` does it."""

    def __init__(self, config: TrainConfig, *, cache: FeatureCache, device: str = "cpu") -> None:
        """Errors as of what it reads: annotations, the language model, the cache."""
        self.config = config
        self.cache = cache
        self.device = torch.device(device)
        self.rank, self.world = 0, 1
        require_packs(config, world=self.world)
        self.shape = CacheShape.of(cache, streams=config.view.streams)
        if config.model.audio is not None and self.shape.audio is None:
            raise UsageError("model.audio: the cache has no sound")
        self.frames_per_clip = config.view.frames_per_clip or self.shape.frames_per_clip
        self.tokenizer = load_tokenizer(config.model.lm)
        self.renderer = make_renderer(
            self.tokenizer,
            template=config.model.template,
            time=config.model.time,
            tokens_per_clip=config.model.connector.tokens_per_clip(self.frames_per_clip),
            audio_tokens_per_clip=audio_tokens_per_clip(config.view, self.shape)
            if config.model.audio
            else 0,
            time_base=config.view.time_base,
            system=config.model.system,
        )
        self.preprocessing = Preprocessing.of(
            config, cache=cache, template=self.renderer.template.name
        )
        self.model = self._make_model()
        self.out = Path(config.run.out)

    def _make_model(self) -> VideoLM:
        spec = self.config.model
        torch.manual_seed(self.config.run.seed)
        lm_trains = spec.lora is None and any("lm" in one.train for one in self.config.stages)
        stored = torch.float32 if lm_trains else getattr(torch, spec.dtype)
        language_model = load_language_model(spec.lm, dtype=stored)
        if spec.lora is not None:
            language_model = add_lora(language_model, spec.lora)
        model = VideoLM(
            spec,
            language_model=language_model,
            shape=self.shape,
            frames_per_clip=self.frames_per_clip,
        )
        return model.to(self.device)

    def prepare(self) -> list[Prepared]:
        """The items of every stage, joined and measured."""
        config = self.config
        annotations = {
            data.label: read_annotations(data.path, format=data.format, label=data.label)
            for data in config.data
        }
        catalog = Catalog.of(
            self.cache,
            with_frame_times=needs_frame_times(
                config.view,
                cache_fps=self.shape.fps,
                frames_per_clip=self.shape.frames_per_clip,
            ),
        )
        return [
            prepare(
                config,
                stage=stage,
                annotations=annotations,
                catalog=catalog,
                renderer=self.renderer,
            )
            for stage in config.stages
        ]

    def train(
        self, *, resume: bool = False, progress: Callable[[Told], None] = lambda _: None
    ) -> TrainResult:
        """Do all steps that are not done. Diverged; FingerprintMismatch: to resume another run."""
        config, began = self.config, time.perf_counter()
        prepared = self.prepare()
        reader = ClipReader(
            self.cache,
            shape=self.shape,
            view=config.view,
            with_audio=config.model.audio is not None,
        )
        stages = [
            StageData(
                config,
                one,
                stage_index=index,
                renderer=self.renderer,
                reader=reader,
                frames_per_clip=self.frames_per_clip,
            )
            for index, one in enumerate(prepared)
        ]
        num_steps = sum(stage.num_steps for stage in stages)
        folder = self._checkpoint_to_resume() if resume else None
        done = read_state(folder)["step"] if folder else 0
        first, loss, tokens = 0, float("nan"), 0
        trained: set[str] = set()
        with MetricsLog(self.out, kinds=config.run.log, config=config.to_mapping()) as log:
            for index, data in enumerate(stages):
                stage = config.stages[index]
                optimizer = make_optimizer(self.model.parts(), stage=stage, optim=config.optim)
                trained |= {name for name, p in self.model.named_parameters() if p.requires_grad}
                stop = first + data.num_steps
                if folder is not None and first < done <= stop:
                    load_checkpoint(folder, model=self.model, optimizer=optimizer, trained=trained)
                start = max(first, done)
                packs = [data.packs.step(step - first) for step in range(start, stop)]
                batches = self._batches(data, packs)
                for step, all_packs in zip(range(start, stop), packs, strict=True):
                    clock = StepClock(self.device)
                    begin = time.perf_counter()
                    factor = rate_factor(step - first, num_steps=data.num_steps, optim=config.optim)
                    set_rates(optimizer, factor=factor)
                    torch.manual_seed(_step_seed(config.run.seed, step, self.rank))
                    totals = Totals(
                        num_targets=data.num_targets(all_packs),
                        num_spans=data.num_spans(all_packs),
                        world=self.world,
                        regression_weight=config.model.time.regression_weight,
                    )
                    loss, step_tokens = 0.0, 0
                    for _ in of_rank(all_packs, rank=self.rank, world=self.world):
                        with clock.timed("wait"):
                            held = next(batches)
                        with held as batch:
                            with clock.timed("copy"):
                                moved = batch.to(self.device)
                            step_tokens += moved.num_tokens
                            loss += float(
                                add_gradients(
                                    self.model,
                                    moved,
                                    totals=totals,
                                    clock=clock,
                                    autocast=self._autocast,
                                )
                            )
                    norm = move(
                        optimizer, clip=config.optim.clip, loss=loss, step=step, clock=clock
                    )
                    tokens += step_tokens
                    seconds = time.perf_counter() - begin
                    log.log(
                        step + 1,
                        {
                            "stage": stage.name,
                            "loss": loss,
                            "norm": norm,
                            "rate": factor,
                            "tokens": step_tokens,
                            "seconds": seconds,
                            **{f"{name}_seconds": value for name, value in clock.seconds.items()},
                        },
                    )
                    progress(
                        Told(
                            step=step + 1,
                            num_steps=num_steps,
                            stage=stage.name,
                            loss=loss,
                            tokens_per_second=step_tokens / seconds,
                            seconds_left=(num_steps - step - 1)
                            * (time.perf_counter() - began)
                            / (step + 1 - done),
                        )
                    )
                    every = config.run.save_every
                    if step + 1 == stop or (every and (step + 1) % every == 0):
                        save_checkpoint(
                            self.out,
                            step=step + 1,
                            model=self.model,
                            optimizer=optimizer,
                            trained=trained,
                            state=self._state(step + 1, stage.name),
                            keep=config.run.keep,
                            is_first_rank=self.rank == 0,
                        )
                first = stop
        return TrainResult(
            out=str(self.out),
            step=num_steps,
            num_steps=num_steps,
            loss=loss,
            seconds=time.perf_counter() - began,
            tokens=tokens,
            fingerprint=self.preprocessing.fingerprint(),
            data={
                stage.name: one.report for stage, one in zip(config.stages, prepared, strict=True)
            },
        )

    @property
    def _autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.config.model.dtype == "bfloat16" else None

    def _batches(self, data: StageData, packs: list[list[Pack]]) -> Iterator[Any]:
        jobs = (pack for step in packs for pack in of_rank(step, rank=self.rank, world=self.world))

        def make(pack: Pack, buffers: Buffers) -> Any:
            return data.batch(pack, buffers)

        readers = self.config.batch.readers
        return iter(read_ahead(jobs, make, num_threads=readers, depth=readers + 1))

    def _state(self, step: int, stage: str) -> dict[str, Any]:
        return {
            "step": step,
            "stage": stage,
            "seed": self.config.run.seed,
            "fingerprint": self.preprocessing.fingerprint(),
            "preprocessing": self.preprocessing.to_mapping(),
            "config": self.config.to_mapping(),
        }

    def _checkpoint_to_resume(self) -> Path:
        found = list_checkpoints(self.out)
        if not found:
            raise UsageError(
                f"{self.out} has no complete checkpoint", hint="start it with: trainer train"
            )
        state = read_state(found[-1])
        fields = differing_fields(state["preprocessing"], self.preprocessing.to_mapping())
        if fields:
            raise FingerprintMismatch(
                f"{found[-1]} was trained otherwise: {'; '.join(fields)}",
                hint="resume it with the cache and settings that it was started with",
            )
        return found[-1]


def _step_seed(seed: int, step: int, rank: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def as_mapping(result: TrainResult) -> dict[str, Any]:
    """JSON-ready."""
    return dataclasses.asdict(result)
