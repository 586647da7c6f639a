"""Render: messages and clips to token ids, labels and slots. The only place that builds prompts.

Training, evaluation and generation all come here. Ids are joined turn by turn, so what is
supervised is known by construction and never searched for in text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.errors import AnnotationError
from schemas.event import Event
from trainer.data.annotation import Annotation, Message, Span, VideoPart
from trainer.data.template import Template
from trainer.data.video_view import VideoView, evenly
from trainer.model_spec import TimeSpec

Tokenize = Callable[[str], list[int]]
"""Text -> ids, without special tokens of its own making."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One item as L tokens, C clips of K tokens of video and A of sound."""

    ids_L: npt.NDArray[np.int64]
    supervised_L: npt.NDArray[np.bool_]
    """Whether the model learns to say this token."""
    clips_C: npt.NDArray[np.int64]
    """Which clips of the view are shown, in order; a clip may come twice."""
    clip_slots_CK: npt.NDArray[np.int64]
    audio_slots_CA: npt.NDArray[np.int64]
    clip_span_C2: npt.NDArray[np.int64]
    """[first, stop) of all that belongs to a clip: its text, its video, its sound."""
    prompt_length: int
    """Tokens before the first supervised one; all, if there is none."""
    num_events: int = 0
    """That are read."""
    num_events_left_out: int = 0
    """That found no room."""

    def __len__(self) -> int:
        return len(self.ids_L)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """How items become tokens; part of a model, and the same wherever it is asked."""

    template: Template
    tokenize: Tokenize
    """Of the template's own text, in which special tokens count."""
    tokenize_content: Tokenize
    """Of what people wrote, in which they do not."""
    end_id: int
    """The tokenizer's end of text."""
    time: TimeSpec
    tokens_per_clip: int
    audio_tokens_per_clip: int = 0
    system: str = ""
    event_kinds: tuple[str, ...] = ()
    """As of `ViewSpec.events`."""
    event_tokens: int = 0

    def render(self, annotation: Annotation, *, view: VideoView | None) -> Rendered:
        """The tokens of one annotation. AnnotationError: nothing in it is supervised."""
        rendered = self.render_messages(annotation.messages, view=view)
        if not rendered.supervised_L.any():
            raise AnnotationError(f"{annotation.id}: no message to learn from")
        return rendered

    def render_prompt(self, messages: Sequence[Message], *, view: VideoView | None) -> Rendered:
        """The tokens up to where the assistant's next turn begins."""
        return self.render_messages(messages, view=view, opens_answer=True)

    def render_messages(
        self,
        messages: Sequence[Message],
        *,
        view: VideoView | None,
        opens_answer: bool = False,
    ) -> Rendered:
        """As `render`, of messages that need not be supervised."""
        row = _Row(self, view)
        row.add(self.tokenize(self.template.begin))
        if self.system and not any(message.role == "system" for message in messages):
            messages = [Message.of("system", self.system), *messages]
        has_clips = view is not None and len(view) > 0
        for message in _with_video(messages) if has_clips else messages:
            row.add(self.tokenize(self.template.before[message.role]))
            for part in message.content:
                if isinstance(part, VideoPart):
                    row.add_clips(part.span)
                    row.add_events()
                else:
                    row.add(self.tokenize_content(part), supervised=message.supervised)
            stop = self.tokenize(self.template.stop) if self.template.stop else [self.end_id]
            row.add(stop, supervised=message.supervised)
            row.add(self.tokenize(self.template.after))
        if opens_answer:
            row.add(self.tokenize(self.template.before["assistant"]))
        return row.finish()

    def clip_text(self, number: int, *, start_seconds: float, end_seconds: float) -> str:
        """What is said before a clip, the `number`-th of the item."""
        match self.time.mode:
            case "clip_text" | "frame_text":
                return self.time.text.format(start=start_seconds, end=end_seconds)
            case "segment_names":
                return f"[{number + 1}] "
            case _:
                return ""

    def event_lines(self, view: VideoView) -> tuple[list[list[int]], int]:
        """(tokens of each line in order of time, how many events found no room).

        Events that overlap what lies between the first clip and the end of the last. Of a kind that
        does not fit as many as do, evenly spread; kinds come before others as they are named.
        """
        begin = float(view.start_seconds[0]) + view.origin_seconds
        stop = float(view.end_seconds[-1]) + view.origin_seconds
        room, num_left_out = self.event_tokens, 0
        shown: list[tuple[float, float, list[int]]] = []
        for kind in self.event_kinds:
            events = [
                event
                for event in view.events
                if event.kind == kind and event.start_seconds < stop and event.end_seconds > begin
            ]
            lines = [
                (
                    event.start_seconds,
                    event.end_seconds,
                    self.tokenize_content(self._line(event, view)),
                )
                for event in events
            ]
            kept, count = lines, len(lines)
            while (used := sum(len(ids) for _, _, ids in kept)) > room:
                count = min(count - 1, count * room // used)
                kept = [lines[i] for i in evenly(len(lines), count).tolist()]
            room -= used
            num_left_out += len(lines) - len(kept)
            shown += kept
        shown.sort(key=lambda line: line[:2])
        return [ids for _, _, ids in shown], num_left_out

    def _line(self, event: Event, view: VideoView) -> str:
        time = self.time.text.format(
            start=event.start_seconds - view.origin_seconds,
            end=event.end_seconds - view.origin_seconds,
        )
        line = f"{event.kind} {time}{' '.join(event.text.split())}".rstrip()
        return "\n" + line.removesuffix(":")

    @property
    def joint(self) -> str:
        """What stands between clips."""
        return "" if self.time.mode == "none" else self.time.joint


class _Row:
    """The tokens of one item, as they come."""

    def __init__(self, renderer: Renderer, view: VideoView | None) -> None:
        self._renderer = renderer
        self._view = view
        self._ids: list[int] = []
        self._supervised: list[bool] = []
        self._clips: list[int] = []
        self._firsts: list[int] = []
        self._slots: list[int] = []
        self._stops: list[int] = []
        self._num_events = self._num_events_left_out = 0
        self._has_events = False

    def add(self, ids: list[int], *, supervised: bool = False) -> None:
        self._ids += ids
        self._supervised += [supervised] * len(ids)

    def add_clips(self, span: Span | None) -> None:
        view, renderer = self._view, self._renderer
        if view is None:
            return
        clips = np.arange(len(view)) if span is None else view.overlapping(span)
        num_slots = renderer.tokens_per_clip + renderer.audio_tokens_per_clip
        for i, clip in enumerate(clips.tolist()):
            if i and renderer.joint:
                self.add(renderer.tokenize_content(renderer.joint))
            self._firsts.append(len(self._ids))
            text = renderer.clip_text(
                len(self._clips),
                start_seconds=float(view.start_seconds[clip]),
                end_seconds=float(view.end_seconds[clip]),
            )
            if text:
                self.add(renderer.tokenize_content(text))
            self._clips.append(clip)
            self._slots.append(len(self._ids))
            self.add([renderer.end_id] * num_slots)
            self._stops.append(len(self._ids))

    def add_events(self) -> None:
        # Once: after the first clips that are shown.
        view = self._view
        if view is None or self._has_events or not self._renderer.event_kinds:
            return
        self._has_events = True
        lines, self._num_events_left_out = self._renderer.event_lines(view)
        self._num_events = len(lines)
        for ids in lines:
            self.add(ids)

    def finish(self) -> Rendered:
        K, A = self._renderer.tokens_per_clip, self._renderer.audio_tokens_per_clip
        first_C1 = np.array(self._slots, dtype=np.int64)[:, None]
        supervised_L = np.array(self._supervised, dtype=np.bool_)
        said = np.flatnonzero(supervised_L)
        return Rendered(
            ids_L=np.array(self._ids, dtype=np.int64),
            supervised_L=supervised_L,
            clips_C=np.array(self._clips, dtype=np.int64),
            clip_slots_CK=first_C1 + np.arange(K),
            audio_slots_CA=first_C1 + K + np.arange(A),
            clip_span_C2=np.array([self._firsts, self._stops], dtype=np.int64).T.reshape(-1, 2),
            prompt_length=int(said[0]) if len(said) else len(self._ids),
            num_events=self._num_events,
            num_events_left_out=self._num_events_left_out,
        )


def _with_video(messages: Sequence[Message]) -> list[Message]:
    # Where nobody said where the video goes, it is what the first question is about.
    if any(isinstance(part, VideoPart) for message in messages for part in message.content):
        return list(messages)
    placed = list(messages)
    for i, message in enumerate(placed):
        if message.role == "user":
            content = (VideoPart(), "\n", *message.content)
            placed[i] = Message(role="user", content=content, supervised=message.supervised)
            break
    return placed
