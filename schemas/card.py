"""Card: a GPU, what it does and costs; the table of them that ships, or a user's own."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from schemas.errors import RecipeError, UsageError
from schemas.settings import nearest, read_settings, to_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU as it can be hired."""

    name: str
    tflops: float
    """Dense, in bfloat16 with float32 sums, at best; in 10^12 operations a second."""
    memory_gb: float
    usd_per_hour: float
    usd_low: float
    usd_high: float
    """Between these it is offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingRates:
    """What one core decodes."""

    pixels_per_second: float
    """Of frames that are decoded, as coded."""
    decoded_part: float
    """Of a video's frames: those that are decoded although a few are sampled; in (0, 1]."""
    full_picture_seconds_per_pixel: float
    """Of a sampled frame, once where a stream is resized as its reference code does."""
    resize_seconds_per_pixel: float
    """Of a sampled frame, for each such stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTable:
    """Cards, and what else a forecast needs to know of machines."""

    date: str
    """When its figures were looked up."""
    default_card: str
    training_utilisation: float
    """Of a card's peak; in (0, 1]."""
    encoding_utilisation: float
    usd_per_gb_month: float
    decoding: DecodingRates
    cards: tuple[Card, ...]

    def card(self, name: str) -> Card:
        """By its name in any case, or by the start of it where only one has it. UsageError."""
        wanted = name.casefold()
        starts = [card for card in self.cards if card.name.casefold().startswith(wanted)]
        found = [card for card in starts if card.name.casefold() == wanted] or starts
        if len(found) != 1 or not name:
            names = [card.name for card in self.cards]
            raise UsageError(f"no card named {name!r}{nearest(name, names)}")
        return found[0]

    def with_price(self, name: str, *, usd_per_hour: float) -> CardTable:
        """With the only price at which a card is to be had. UsageError; also as of `card`."""
        if not 0 < usd_per_hour < math.inf:
            raise UsageError(f"a price of {usd_per_hour} an hour must be a number above 0")
        old = self.card(name)
        new = replace(old, usd_per_hour=usd_per_hour, usd_low=usd_per_hour, usd_high=usd_per_hour)
        return replace(self, cards=tuple(new if one is old else one for one in self.cards))


def read_cards(path: Path | None = None) -> CardTable:
    """The table that ships, or that of a file. UsageError: it cannot be read, or is no such table.

    Every number has to be above zero, parts at most 1.
    """
    if path is None:
        text = (resources.files("schemas") / "cards.toml").read_text("utf-8")
    else:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(f"{path}: cannot be read: {reason}") from error
    hint = "copy schemas/cards.toml and change its figures; docs/costs.md says what they mean"
    try:
        table = read_settings(CardTable, tomllib.loads(text))
        _check_numbers(to_mapping(table))
        twice = [name for name, n in Counter(card.name for card in table.cards).items() if n > 1]
        if twice:
            raise UsageError(f"more than one card is named {twice[0]!r}")
        table.card(table.default_card)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not valid TOML: {error}", hint=hint) from error
    except (RecipeError, UsageError) as error:
        raise UsageError(f"{path}: {error.message}", hint=hint) from error
    return table


def _check_numbers(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            _check_numbers(value)
        elif isinstance(value, list):
            for one in value:
                _check_numbers(one)
        elif isinstance(value, float):
            is_part = name.endswith(("utilisation", "_part"))
            if not 0 < value < math.inf or (is_part and value > 1):
                raise UsageError(f"{name} = {value} must be above 0{' and at most 1' * is_part}")
