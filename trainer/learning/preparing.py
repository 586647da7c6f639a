"""Prepare the stages of a run: read annotations, join them with the cache, measure every item."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.cache import FeatureCache
from trainer.config import TrainConfig
from trainer.data.catalog import Catalog
from trainer.data.formats import read_annotations
from trainer.data.rendering import Renderer
from trainer.data.stage_data import Prepared, prepare

SAY_SECONDS = 5.0


def prepare_stages(
    config: TrainConfig,
    *,
    cache: FeatureCache,
    renderer: Renderer,
    say: Callable[[str], None] = lambda _: None,
) -> list[Prepared]:
    """The items of every stage; `say` is told how far it is when it takes long.

    AnnotationError: files that cannot be read, rows without their video, items that are too long.
    """
    annotations = {}
    for data in config.data:
        annotations[data.label] = read_annotations(data.path, format=data.format, label=data.label)
    catalog = Catalog.of(cache, event_kinds=config.view.events)
    prepared = []
    for stage in config.stages:
        names = stage.data or annotations
        total = sum(len(annotations[name]) for name in names)
        prepared.append(
            prepare(
                config,
                stage=stage,
                annotations=annotations,
                catalog=catalog,
                renderer=renderer,
                progress=_Counter(f"stage {stage.name}: items measured", total, say),
            )
        )
    return prepared


class _Counter:
    def __init__(self, what: str, total: int, say: Callable[[str], None]) -> None:
        self._what, self._total, self._say = what, total, say
        self._count, self._said = 0, time.monotonic()

    def __call__(self, count: int) -> None:
        self._count += count
        now = time.monotonic()
        if now - self._said >= SAY_SECONDS:
            self._said = now
            self._say(f"{self._what}: {self._count:,} of {self._total:,}")
