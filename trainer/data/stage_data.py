"""StageData: what one stage of a run learns from: its items, their lengths, their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from schemas.errors import AnnotationError, ConfigError
from trainer.config import StageSpec, TrainConfig
from trainer.data.annotation import Annotation, VideoPart
from trainer.data.batch import Batch
from trainer.data.batching import RowItem, frames_of, make_batch, takes_sound_away
from trainer.data.buffers import Buffers
from trainer.data.catalog import Catalog
from trainer.data.clip_reader import ClipReader
from trainer.data.fitting import fit_view
from trainer.data.item import Item
from trainer.data.joining import Joined, join
from trainer.data.planning import Items, Pack, PackStream, of_rank
from trainer.data.rendering import Rendered, Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The items of a stage and what a plan needs to know of them."""

    items: tuple[Item, ...]
    num_targets: tuple[int, ...]
    """Supervised tokens of each."""
    num_spans: tuple[int, ...]
    """1 where the answer is a span that a time head learns, else 0."""
    planned: Items
    report: dict[str, Any]
    """As of `JoinReport.to_mapping`, with `too_long`."""
    lines: tuple[str, ...]
    """The same for people."""


def prepare(
    config: TrainConfig,
    *,
    stage: StageSpec,
    annotations: Mapping[str, Sequence[Annotation]],
    catalog: Catalog,
    renderer: Renderer,
    progress: Callable[[int], None] = lambda _: None,
) -> Prepared:
    """Join and measure what a stage learns from; every item is rendered once.

    AnnotationError: rows without their video, or items that are too long, where the config does
    not allow them; or nothing at all to learn from.
    """
    names = stage.data or {data.label: data.weight for data in config.data}
    joined: Joined = join(
        {name: annotations[name] for name in names},
        catalog,
        view=config.view,
        max_clips=stage.max_clips,
        on_missing={data.label: data.on_missing for data in config.data},
        max_missing={data.label: data.max_missing for data in config.data},
    )
    capacity = config.batch.tokens_per_pack
    kept: list[Item] = []
    lengths: list[int] = []
    num_targets: list[int] = []
    too_long: list[str] = []
    num_events = num_left_out = 0
    for item in joined.items:
        fitted = _fit(item, renderer, capacity, on_long=config.batch.on_long)
        if fitted is None:
            too_long.append(item.id)
        else:
            kept.append(fitted[0])
            lengths.append(len(fitted[1]))
            num_events += fitted[1].num_events
            num_left_out += fitted[1].num_events_left_out
            num_targets.append(int(fitted[1].supervised_L[1:].sum()))
        progress(1)
    if too_long and config.batch.on_long == "error":
        raise AnnotationError(
            f"stage {stage.name}: {len(too_long)} of {len(joined.items)} items are longer than"
            f" batch.tokens_per_pack = {capacity}, such as {too_long[0]}",
            hint='raise it, or set batch.on_long = "spread" or "drop", or a stage\'s max_clips',
        )
    if not kept:
        why = f": {len(too_long)} items are longer than a pack" if too_long else ""
        raise AnnotationError(f"stage {stage.name}: there is nothing to learn from{why}")
    if sum(names[item.data] for item in kept) < 1:
        raise AnnotationError(
            f"stage {stage.name}: weights leave less than one of {len(kept)} items an epoch"
        )
    shards = {name: number for number, name in enumerate(sorted({item.shard for item in kept}))}
    return Prepared(
        items=tuple(kept),
        num_targets=tuple(num_targets),
        num_spans=tuple(int(_answer_span(item) is not None) for item in kept),
        planned=Items(
            lengths=np.array(lengths, dtype=np.int64),
            shards=np.array([shards[item.shard] if item.shard else -1 for item in kept]),
            weights=np.array([names[item.data] for item in kept], dtype=np.float64),
        ),
        report=joined.report.to_mapping() | {"too_long": len(too_long)},
        lines=(
            *joined.report.lines(),
            *([f"  {len(too_long)} dropped, longer than a pack"] if too_long else []),
            *(
                [f"  {num_events} events are read, {num_left_out} found no room"]
                if config.view.events
                else []
            ),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A pack that one rank works on, and what its step has over all ranks."""

    step: int
    """Of the stage."""
    pack: Pack
    is_last: bool
    """Of this rank's in the step."""
    num_tokens: int
    num_targets: int
    num_spans: int


class StageData:
    """Packs by step, and a pack as a batch."""

    def __init__(
        self,
        config: TrainConfig,
        prepared: Prepared,
        *,
        stage_index: int,
        renderer: Renderer,
        reader: ClipReader,
        frames_per_clip: int,
    ) -> None:
        """`frames_per_clip` is the view's."""
        stage = config.stages[stage_index]
        self.prepared = prepared
        self.packs = PackStream(
            prepared.planned,
            seed=config.run.seed,
            stage=stage_index,
            tokens_per_pack=config.batch.tokens_per_pack,
            window_shards=config.batch.window_shards,
            packs_per_step=config.batch.packs,
            num_epochs=stage.epochs,
        )
        self.num_steps = stage.steps or self.packs.num_steps()
        self._renderer = renderer
        self._reader = reader
        self._frames_per_clip = frames_per_clip
        self._seed = config.run.seed
        self._mask_p = config.model.audio.mask_p if config.model.audio else 0.0

    def jobs(self, *, first: int, rank: int, world: int) -> Iterator[Job]:
        """What one rank does from a step on, planned as it is asked for."""
        prepared = self.prepared
        lengths = prepared.planned.lengths
        for step in range(first, self.num_steps):
            packs = self.packs.step(step)
            items = [item for pack in packs for item in pack.items]
            num_tokens = int(lengths[items].sum())
            num_targets = sum(prepared.num_targets[item] for item in items)
            num_spans = sum(prepared.num_spans[item] for item in items)
            mine = of_rank(packs, rank=rank, world=world)
            for number, pack in enumerate(mine):
                yield Job(
                    step=step,
                    pack=pack,
                    is_last=number == len(mine) - 1,
                    num_tokens=num_tokens,
                    num_targets=num_targets,
                    num_spans=num_spans,
                )

    def batch(self, pack: Pack, buffers: Buffers) -> Batch:
        """One pack, whose features lie in `buffers`."""
        items = [self._row_item(self.prepared.items[number]) for number in pack.items]
        if not items:
            items = [_blank(self._renderer)]
        rows, frames = frames_of(items, frames_per_clip=self._frames_per_clip)
        clips = self._reader.read(rows, frames, into=buffers)
        sound_off = [
            takes_sound_away(item.id, seed=self._seed, epoch=pack.epoch, probability=self._mask_p)
            for item in items
        ]
        return make_batch(items, clips, frames_CF=frames, sound_off=sound_off)

    def _row_item(self, item: Item) -> RowItem:
        return RowItem(
            id=item.id,
            rendered=self._renderer.render(item.annotation, view=item.view),
            view=item.view,
            answer_span=_answer_span(item),
        )


def _answer_span(item: Item) -> tuple[float, float] | None:
    if "options" in item.annotation.meta:
        return None  # evidence for a choice, not the answer
    spans = item.annotation.answer_spans
    return spans[0] if len(spans) == 1 and item.view is not None and len(item.view) else None


def _blank(renderer: Renderer) -> RowItem:
    # Fills up a step; one token that nobody has to say.
    nothing = np.zeros((0, 1), dtype=np.int64)
    rendered = Rendered(
        ids_L=np.array([renderer.end_id]),
        supervised_L=np.zeros(1, dtype=np.bool_),
        clips_C=nothing[:, 0],
        clip_slots_CK=nothing,
        audio_slots_CA=nothing,
        clip_span_C2=np.zeros((0, 2), dtype=np.int64),
        prompt_length=1,
    )
    return RowItem(id="", rendered=rendered, view=None)


def _fit(
    item: Item, renderer: Renderer, capacity: int, *, on_long: str
) -> tuple[Item, Rendered] | None:
    rendered = renderer.render(item.annotation, view=item.view)
    if len(rendered) <= capacity:
        return item, rendered
    by_span = any(
        isinstance(part, VideoPart) and part.span is not None
        for message in item.annotation.messages
        for part in message.content
    )
    if on_long != "spread" or item.view is None or by_span:
        return None
    fitted = fit_view(
        item.view,
        render=lambda view: renderer.render(item.annotation, view=view),
        capacity=capacity,
    )
    return None if fitted is None else (replace(item, view=fitted[0]), fitted[1])


def require_packs(config: TrainConfig, *, world: int) -> None:
    """ConfigError: the packs of a step cannot be dealt to so many ranks."""
    if config.batch.packs % world:
        raise ConfigError(
            f"batch.packs = {config.batch.packs} must be a multiple of the {world} ranks"
        )
