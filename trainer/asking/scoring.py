"""Score answers: spans of time by their overlap, choices by their letter, short answers by words.

Pure functions of texts and seconds; a model is not needed to score what it said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.data.annotation import Span

THRESHOLDS = (0.3, 0.5, 0.7)
"""Of the IoU, above which the first answer counts: R@1."""
Z_95 = 1.96

_NUMBER = r"(?:[0-9]+:)?[0-9]+:[0-9]{2}(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?"
_UNIT = r"(?: ?(?:seconds|second|secs|sec|s)\b)?"
_STRICT = re.compile(rf"({_NUMBER}) to ({_NUMBER})")
_LENIENT = re.compile(
    rf"({_NUMBER}){_UNIT} ?(?:to|-|–|—|until|till|and|through) ?({_NUMBER})", re.IGNORECASE
)
_ANY = re.compile(rf"(?<![\w.])({_NUMBER})(?![\w:]*[A-Za-z]{{2}})", re.IGNORECASE)
_LETTER = re.compile(r"\(?([A-Z])\)?(?:[.:)](?:\s.*)?)?", re.DOTALL)
_LETTER_IN_TEXT = re.compile(
    r"(?:answer|option|choice)(?: is)?:? *\(?([A-Z])\)?(?![A-Za-z])|\(([A-Z])\)|^([A-Z])[.:)]",
    re.MULTILINE,
)
_ARTICLES = frozenset(("a", "an", "the"))


def parse_spans(text: str, *, lenient: bool = False) -> tuple[Span, ...]:
    """The spans that a text says, in seconds; empty: none can be read.

    Strict: "2.0 to 5.5", several joined by ", ", and nothing else; a start after its end is not
    read. Lenient: anywhere in free text, also "2s - 5.5s", "between 2 and 5.5", "0:02 to 0:05", or
    just two numbers; start and end are put in order.
    """
    if not lenient:
        found = [_STRICT.fullmatch(part) for part in text.strip().rstrip(".").split(", ")]
        if not all(found):
            return ()
        spans = [(_seconds(one[1]), _seconds(one[2])) for one in found if one]
        return tuple(spans) if all(start <= end for start, end in spans) else ()
    pairs = _LENIENT.findall(text)
    if not pairs:
        numbers = _ANY.findall(text)
        pairs = [tuple(numbers)] if len(numbers) == 2 else []
    spans = [(_seconds(first), _seconds(second)) for first, second in pairs]
    return tuple((min(one), max(one)) for one in spans)


def _seconds(text: str) -> float:
    """Of "5.5" or "1:02:03"."""
    total = 0.0
    for part in text.split(":"):
        total = 60 * total + float(part)
    return total


def union(spans: Sequence[Span]) -> list[Span]:
    """The same time, in order and apart from each other."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def temporal_iou(one: Sequence[Span], other: Sequence[Span]) -> float:
    """In [0, 1]: seconds in both unions over seconds in either; 0 where that is nothing."""
    first, second = union(one), union(other)
    both = sum(
        max(0.0, min(end, stop) - max(start, begin))
        for start, end in first
        for begin, stop in second
    )
    total = sum(end - start for start, end in (*first, *second)) - both
    return both / total if total > 0 else 0.0


def parse_letter(text: str, options: Sequence[str]) -> str | None:
    """The letter of the option that a text chooses; None: it chooses none, or several.

    Strict first: "B", "(B)", "B. a cat". Then an option's own words, then "the answer is B".
    """
    letters = [chr(ord("A") + i) for i in range(len(options))]
    strict = _LETTER.fullmatch(text.strip())
    if strict and strict[1] in letters:
        return strict[1]
    said = normalise(text)
    exact = [letter for letter, one in zip(letters, options, strict=True) if normalise(one) == said]
    if len(exact) == 1:
        return exact[0]
    found = {next(filter(None, groups)) for groups in _LETTER_IN_TEXT.findall(text)} & {*letters}
    return found.pop() if len(found) == 1 else None


def normalise(text: str) -> str:
    """Words in small letters, without articles and punctuation; points between digits stay."""
    words = re.findall(r"[^\W_]+(?:[.,][0-9]+)*", text.lower())
    return " ".join(word for word in words if word not in _ARTICLES)


def is_same_answer(text: str, truth: str) -> bool:
    """Whether a short answer is the true one, word by word."""
    return normalise(text) == normalise(truth)


def wilson(num_right: int, num_asked: int, *, z: float = Z_95) -> tuple[float, float]:
    """Wilson's interval of a share, 95 % by default; (0, 1) where nothing was asked.

    (p + z2/2n -+ z sqrt(p(1-p)/n + z2/4n2)) / (1 + z2/n), with z2 = z squared (Wilson 1927).
    """
    if num_asked == 0:
        return 0.0, 1.0
    n, p = num_asked, num_right / num_asked
    middle = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    below, above = (middle - spread, middle + spread)
    scale = 1 + z * z / n
    # By rounding p itself could be left out where it is 0 or 1.
    return min(p, max(0.0, below / scale)), max(p, min(1.0, above / scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyScore:
    """Of answers that are right or wrong."""

    num_asked: int
    accuracy: float
    low: float
    """Of the 95 % interval."""
    high: float

    @classmethod
    def of(cls, right: Sequence[bool]) -> AccuracyScore:
        """That of some answers, at least one."""
        low, high = wilson(sum(right), len(right))
        return cls(num_asked=len(right), accuracy=sum(right) / len(right), low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundingScore:
    """Of answers that are spans of time. What cannot be read has an IoU of 0."""

    num_asked: int
    recall: dict[str, float]
    """IoU, as of THRESHOLDS -> share of answers that have at least that."""
    mean_iou: float
    unparsable: float
    """Share."""

    @classmethod
    def of(cls, ious: Sequence[float | None]) -> GroundingScore:
        """That of some answers, at least one; None: it could not be read."""
        values = [one or 0.0 for one in ious]
        n = len(values)
        return cls(
            num_asked=n,
            recall={f"{t:g}": sum(one >= t for one in values) / n for t in THRESHOLDS},
            mean_iou=sum(values) / n,
            unparsable=sum(one is None for one in ious) / n,
        )
