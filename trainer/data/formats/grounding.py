"""Grounding: questions for the time of something; the answer is one span or several."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.data.annotation import Message, Span, VideoPart, span_text

GROUNDING_PROMPT = "When does this happen: {query}? Answer with start and end in seconds."


def grounding_messages(query: str, spans: Sequence[Span]) -> tuple[Message, ...]:
    """The question about a sentence, and its answer where there is one."""
    prompt = GROUNDING_PROMPT.format(query=query.strip().rstrip(".!? "))
    asked = Message.of("user", VideoPart(), prompt)
    return (asked, Message.of("assistant", span_text(spans))) if spans else (asked,)
