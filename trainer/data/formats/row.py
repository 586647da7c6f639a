"""Row: the fields of one annotation, read with errors that say where they stand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.errors import AnnotationError
from trainer.data.annotation import Span

VIDEO_NAMES = ("video", "video_path", "videoID", "video_id", "video_name", "vid", "video_uid")
"""What the field of a video is called, the first that is there."""
SPAN_PAIRS = (("start_seconds", "end_seconds"), ("start", "end"), ("start_time", "end_time"))
"""Names of fields that are a span together."""
MAX_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a file; every error is an AnnotationError that names file, row and field."""

    where: str
    fields: Mapping[str, Any]

    def error(self, name: str, problem: str, *, hint: str = "") -> AnnotationError:
        """What is wrong with a field."""
        return AnnotationError(f"{self.where}: {name}: {problem}", hint=hint)

    def first(self, names: Iterable[str]) -> str | None:
        """The first of some fields that is there and is neither null nor empty."""
        for name in names:
            if self.fields.get(name) not in (None, ""):
                return name
        return None

    def require(self, *names: str) -> str:
        """The same, which must be there."""
        name = self.first(names)
        if name is None:
            there = ", ".join(map(repr, self.fields)) or "nothing"
            raise self.error(" or ".join(names), f"is missing or empty; the row has {there}")
        return name

    def text(self, *names: str) -> str:
        """A field that must hold text, or a whole number that stands for it."""
        name = self.require(*names)
        return self.as_text(name, self.fields[name])

    def as_text(self, name: str, value: Any) -> str:
        """The value as text."""
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise self.error(name, f"must be text, not {shown(value)}")
        return value

    @property
    def span_names(self) -> tuple[str, ...]:
        """The fields that say which part of the video a row is about: one, a pair or none."""
        pairs = [pair for pair in SPAN_PAIRS if all(self.first([name]) for name in pair)]
        return ("span",) if self.fields.get("span") is not None else (*pairs, ())[0]

    def span(self) -> Span | None:
        """The part of the video that a row is about."""
        names = self.span_names
        if not names:
            return None
        values = [self.fields[name] for name in names]
        return self.as_span(", ".join(names), values[0] if names == ("span",) else values)

    def as_span(self, name: str, value: Any) -> Span:
        """A pair [start, end] of seconds, the start before the end."""
        start, end = self._as_pair(name, value)
        if not start < end:
            raise self.error(name, f"start {start:g} must be before its end {end:g}")
        return start, end

    def as_answer_spans(
        self, name: str, value: Any, *, offset_seconds: float = 0.0
    ) -> tuple[Span, ...]:
        """A list of pairs, or one pair; an answer may be an instant."""
        if not isinstance(value, list | tuple):
            raise self.error(name, f"must be a list of [start, end], not {shown(value)}")
        if len(value) == 2 and not any(isinstance(one, list | tuple) for one in value):
            value = [value]
        spans = []
        for start, end in (self._as_pair(name, one) for one in value):
            if start > end:
                raise self.error(name, f"start {start:g} must not be after its end {end:g}")
            spans.append((start + offset_seconds, end + offset_seconds))
        return tuple(spans)

    def _as_pair(self, name: str, value: Any) -> Span:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise self.error(name, f"must be [start, end] in seconds, not {shown(value)}")
        return self.as_seconds(name, value[0]), self.as_seconds(name, value[1])

    def as_seconds(self, name: str, value: Any) -> float:
        """A finite number; CSV and some JSON have it as text."""
        try:
            seconds = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            seconds = math.nan
        if not math.isfinite(seconds):
            raise self.error(name, f"{shown(value)} must be a number of seconds")
        return seconds

    def rest(self, *used: str | None) -> dict[str, Any]:
        """All other fields that say something; those in an object `meta` among them."""
        rest = {name: value for name, value in self.fields.items() if name not in used}
        meta = rest.get("meta")
        if isinstance(meta, Mapping) and not meta.keys() & rest.keys():
            rest = {**{name: rest[name] for name in rest if name != "meta"}, **meta}
        return {name: value for name, value in rest.items() if value is not None}


def shown(value: Any) -> str:
    """The value in an error, not too long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
