"""Annotation: what is said about a video, in the one form that all formats are read into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Span = tuple[float, float]
"""[start, end) in seconds on the video's own clock."""


def span_text(spans: Sequence[Span]) -> str:
    """How spans are said and learned: "2.0 to 5.5", several joined by ", "."""
    return ", ".join(f"{start:.1f} to {end:.1f}" for start, end in spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoPart:
    """The place of the video in a message: all its clips, or those that overlap a span."""

    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn."""

    role: Role
    content: tuple[str | VideoPart, ...]
    supervised: bool
    """Whether the model learns to say it."""

    @classmethod
    def of(cls, role: Role, *content: str | VideoPart) -> Message:
        """A turn that is supervised if it is the assistant's."""
        return cls(role=role, content=content, supervised=role == "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """One row: messages about a video, or about none."""

    id: str
    video: str | None
    """Its video_id or an alias (uri, given id); None: text only."""
    messages: tuple[Message, ...]
    """At most one VideoPart without a span; where there is none at all, the video comes first in
    the first user's turn."""
    span: Span | None = None
    """The part of the video that the messages are about; None: all of it."""
    answer_spans: tuple[Span, ...] = ()
    """The true answer where it is one or several spans of time, or where the evidence for it lies;
    on the video's own clock."""
    aliases: tuple[str, ...] = ()
    """What else the video may be called, where `video` is not known."""
    cut: str | None = None
    """What a file may be called that holds the span only, and whose clock begins with it; taken
    where the video itself is not known."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the row says: type, category, options, duration, ..."""

    @property
    def is_supervised(self) -> bool:
        """Whether there is anything to learn from it."""
        return any(
            message.supervised and any(isinstance(part, str) and part for part in message.content)
            for message in self.messages
        )

    def since(self, seconds: float) -> Annotation:
        """The same on a clock that begins at `seconds`, spans in words included."""

        def shift(span: Span) -> Span:
            return span[0] - seconds, span[1] - seconds

        said = span_text(self.answer_spans)
        answer_spans = tuple(map(shift, self.answer_spans))

        def shift_part(part: str | VideoPart) -> str | VideoPart:
            if isinstance(part, VideoPart):
                return part if part.span is None else VideoPart(span=shift(part.span))
            return span_text(answer_spans) if said and part == said else part

        return replace(
            self,
            messages=tuple(
                replace(message, content=tuple(map(shift_part, message.content)))
                for message in self.messages
            ),
            span=None if self.span is None else shift(self.span),
            answer_spans=answer_spans,
        )
