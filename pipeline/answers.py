"""What a decoder process says, read with suspicion: hostile input may have taken it over.

Each function reads one field of an answer. Nonsense: it is missing, or is not what it has to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_WHOLE = 2**53
MAX_TEXT = 20_000


class Nonsense(Exception):
    """A field that no sound decoder process sends."""


def whole(answer: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    """An integer, at least `least`."""
    value = answer.get(name)
    if type(value) is not int or not least <= value <= MAX_WHOLE:
        raise Nonsense(f"{name} = {value!r:.40} is no whole number >= {least}")
    return value


def number(answer: Mapping[str, Any], name: str) -> float:
    """A finite number."""
    value: Any = answer.get(name)
    if type(value) not in (int, float) or not abs(value) <= MAX_WHOLE:  # so is NaN
        raise Nonsense(f"{name} = {value!r:.40} is no finite number")
    return float(value)


def flag(answer: Mapping[str, Any], name: str) -> bool:
    """True or false."""
    value = answer.get(name)
    if not isinstance(value, bool):
        raise Nonsense(f"{name} = {value!r:.40} is neither true nor false")
    return value


def text(answer: Mapping[str, Any], name: str) -> str:
    """A text that can be written as UTF-8, cut where it is very long."""
    value = answer.get(name)
    if not isinstance(value, str):
        raise Nonsense(f"{name} = {value!r:.40} is no text")
    return value[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()


def wholes(answer: Mapping[str, Any], name: str) -> list[int]:
    """A list of integers >= 0."""
    values = answer.get(name)
    if not isinstance(values, list):
        raise Nonsense(f"{name} = {values!r:.40} is no list")
    return [whole({name: value}, name) for value in values]


def mapping(answer: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object."""
    value = answer.get(name)
    if not isinstance(value, dict):
        raise Nonsense(f"{name} = {value!r:.40} is no object")
    return value
