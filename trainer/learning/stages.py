"""Stages of a run: what each learns from, which of the run's steps are its own, its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.cache import FeatureCache
from trainer.config import StageSpec, TrainConfig
from trainer.data.batch import Batch
from trainer.data.buffers import Buffers
from trainer.data.clip_reader import ClipReader
from trainer.data.read_ahead import ReadAhead, read_ahead
from trainer.data.stage_data import Job, Prepared, StageData
from trainer.learning.distributed import Ranks
from trainer.learning.learner import Learner

Batches = ReadAhead[tuple[Job, Batch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage and its place in the run."""

    spec: StageSpec
    data: StageData
    first: int
    """Steps of the stages before."""

    @property
    def stop(self) -> int:
        """The run's steps when this stage is done."""
        return self.first + self.data.num_steps

    def batches(self, *, done: int, ranks: Ranks, readers: int) -> Batches:
        """What is left for one rank when `done` of the run's steps are done, read ahead."""

        def make(job: Job, buffers: Buffers) -> tuple[Job, Batch]:
            return job, self.data.batch(job.pack, buffers)

        first = max(0, done - self.first)
        return read_ahead(
            self.data.jobs(first=first, rank=ranks.rank, world=ranks.world),
            make,
            num_threads=readers,
            depth=readers + 1,
            pin_memory=ranks.device.startswith("cuda"),
        )


def make_stages(
    config: TrainConfig, prepared: Sequence[Prepared], *, cache: FeatureCache, learner: Learner
) -> list[Stage]:
    """The stages of a config, in their order, of the items of each."""
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
            prepared[index],
            stage_index=index,
            renderer=learner.renderer,
            reader=reader,
            frames_per_clip=learner.frames_per_clip,
        )
        stages.append(Stage(spec=spec, data=data, first=stages[-1].stop if stages else 0))
    return stages
