"""Annotation: what is said about a video, in the one form that all formats are read into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Span = tuple[float, float]
"""[start, end) in seconds on the video's own clock."""


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
    """The true answer where it is one or several spans of time, on the video's own clock."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the row says: type, category, options, duration, ..."""

    @property
    def is_supervised(self) -> bool:
        """Whether there is anything to learn from it."""
        return any(
            message.supervised and any(isinstance(part, str) and part for part in message.content)
            for message in self.messages
        )
