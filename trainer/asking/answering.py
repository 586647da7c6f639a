"""Ask: the greedy answer of a model to a question about what it watches. As in training.

with open_cache("cache/") as cache:
    watched = Viewer(model, cache).watch("v0123456789abcdef", span=(3.0, 8.0))
    print(answer(model, [Message.of("user", "What happens?")], watched=watched).text)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from encoders.importing import without_torchvision
from schemas.errors import UsageError
from trainer.asking.viewing import Watched
from trainer.data.annotation import Message, Span
from trainer.data.fitting import fit_view
from trainer.data.rendering import Rendered
from trainer.data.video_view import VideoView
from trainer.model.model_folder import AskableModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model said, and what it saw."""

    text: str
    video: str | None
    """video_id"""
    clips: tuple[Span, ...]
    """Those that the language model was shown, on the video's clock."""
    span: Span | None
    """By the time head, on the video's clock; None: the model has none, or saw no video."""
    num_tokens: int
    """Of the prompt, video included."""
    num_new_tokens: int
    is_complete: bool
    """False: it was cut off after as many tokens as were allowed."""
    seconds: float


@dataclass(slots=True)
class Prefix:
    """What a language model has read, so that it need not read it again."""

    ids: list[int] = field(default_factory=list)
    """Of the row, also of clips that a reducer left out."""
    num_left_out: int = 0
    """Tokens of those."""
    view: VideoView | None = None
    """That was shown."""
    clips: tuple[Span, ...] = ()
    stop: int = 0
    """Where the video ends in the row."""
    memory: Any = None
    """A DynamicCache of transformers."""

    def common(self, rendered: Rendered, view: VideoView | None) -> int:
        """Tokens of a row that need not be read again; 0 unless its video is among them."""
        if self.memory is None or not _same(view, self.view):
            return 0
        ids = rendered.ids_L.tolist()
        limit = min(len(self.ids), len(ids) - 1)
        count = next((i for i in range(limit) if self.ids[i] != ids[i]), limit)
        if count < self.stop or (count < len(self.ids) and not _goes_back(self.memory)):
            return 0
        return count


def answer(
    model: AskableModel,
    messages: Sequence[Message],
    *,
    watched: Watched | None,
    max_new_tokens: int,
    prefix: Prefix | None = None,
    say: Callable[[str], None] | None = None,
) -> Answer:
    """The greedy answer to the last of `messages`; `watched` is None for text only.

    `prefix` is what was read for the question before in the same conversation, and is brought up to
    date. `say` is told the answer as far as there is one, after each token. A video of more tokens
    than a row had in training is shown fewer clips, evenly spread. UsageError: not even one fits.
    """
    began = time.perf_counter()
    prefix = Prefix() if prefix is None else prefix
    rendered, view = _render(model, messages, watched)
    count = prefix.common(rendered, view)
    if count:
        prefix.memory.crop(count - len(prefix.ids))
        embeds_LH = model.lm.embed_text(rendered.ids_L[count:].tolist())
    else:
        embeds_LH = _begin(model, rendered, view, watched, prefix)

    def decode(ids: list[int]) -> str:
        text: str = model.tokenizer.decode(ids, skip_special_tokens=True)
        return text.strip()

    said = model.lm.generate(
        embeds_LH,
        cache=prefix.memory,
        max_new_tokens=max_new_tokens,
        eos_ids=model.eos_ids,
        say=None if say is None else lambda ids: say(decode(ids)),
    )
    read = prefix.memory.get_seq_length() + prefix.num_left_out
    prefix.ids = [*rendered.ids_L.tolist(), *said.ids][:read]
    return Answer(
        text=decode(said.ids),
        video=None if watched is None else watched.video_id,
        clips=prefix.clips,
        span=_to_seconds(said.span_2, view),
        num_tokens=len(rendered) - prefix.num_left_out,
        num_new_tokens=len(said.ids),
        is_complete=said.is_complete,
        seconds=time.perf_counter() - began,
    )


def _render(
    model: AskableModel, messages: Sequence[Message], watched: Watched | None
) -> tuple[Rendered, VideoView | None]:
    capacity = model.preprocessing.max_tokens
    if watched is None or not len(watched.view):
        rendered = model.renderer.render_prompt(messages, view=None)
        if len(rendered) > capacity:
            raise UsageError(
                f"the question has {len(rendered):,} tokens, the model was trained with rows of"
                f" {capacity:,}"
            )
        return rendered, None

    def render(view: VideoView) -> Rendered:
        return watched.viewer.renderer.render_prompt(messages, view=view)

    fitted = fit_view(watched.view, render=render, capacity=capacity)
    if fitted is None:
        raise UsageError(
            f"the question leaves no room for a clip in the {capacity:,} tokens of a row that the"
            " model was trained with"
        )
    return fitted[1], fitted[0]


def _begin(
    model: AskableModel,
    rendered: Rendered,
    view: VideoView | None,
    watched: Watched | None,
    prefix: Prefix,
) -> Tensor:
    """A prompt that is read from its beginning."""
    with without_torchvision():
        from transformers import DynamicCache

    prefix.memory = DynamicCache(config=model.lm.lm.config)
    prefix.view, prefix.num_left_out, prefix.clips, prefix.stop = view, 0, (), 0
    if view is None or watched is None:
        return model.lm.embed_text(rendered.ids_L.tolist())
    prompt = model.lm.embed_prompt(watched.viewer.batch(rendered, view).to(model.device))
    shown = view.take(rendered.clips_C)
    if prompt.kept_C is not None:
        shown = shown.take(np.flatnonzero(prompt.kept_C.cpu().numpy()))
    shown = shown.since(-shown.origin_seconds)
    starts, ends = shown.start_seconds.tolist(), shown.end_seconds.tolist()
    prefix.clips = tuple(zip(starts, ends, strict=True))
    prefix.num_left_out = len(rendered) - len(prompt.embeds_LH)
    prefix.stop = int(rendered.clip_span_C2[:, 1].max(initial=0))
    return prompt.embeds_LH


def _same(one: VideoView | None, other: VideoView | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one.rows, other.rows) and np.array_equal(one.frames, other.frames)


def _goes_back(memory: Any) -> bool:
    # A sliding window has forgotten what was before, and a state cannot be taken apart.
    return not any(memory.is_sliding) and all(layer.is_croppable for layer in memory.layers)


def _to_seconds(span_2: Tensor | None, view: VideoView | None) -> Span | None:
    if span_2 is None or view is None:
        return None
    view = view.since(-view.origin_seconds)
    begin, end = float(view.start_seconds[0]), float(view.end_seconds[-1])
    start, stop = (begin + span_2.double().cpu() * (end - begin)).tolist()
    return start, stop
