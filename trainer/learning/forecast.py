"""Forecast: what a run would do, hold and take; `forecasting` makes one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StageForecast:
    """One stage; an epoch is its first one."""

    name: str
    trains: tuple[str, ...]
    items: int
    packs_per_epoch: int
    fill: float
    """Share of the packs' tokens that are items'."""
    steps: int
    epochs: float
    tokens: int
    """Of all steps."""
    clips_per_epoch: int
    """That are read."""
    bytes_per_epoch: int
    operations: float
    """Floating-point, of all steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank in its hungriest stage."""

    weights: int
    gradients: int
    moments: int
    activations: int
    read_ahead: int
    """Of the machine, not of the GPU."""

    @property
    def on_device(self) -> int:
        return self.weights + self.gradients + self.moments + self.activations


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU."""

    name: str
    tflops: float
    memory_gb: float
    hours: float
    """Of the whole run, on as many as there are ranks."""
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run would be."""

    ranks: int
    parameters: dict[str, int]
    """Part -> how many, and `all`."""
    stages: tuple[StageForecast, ...]
    memory: Memory
    cards: tuple[Card, ...]
    utilisation: float
    """Of a card's peak, assumed."""
    cards_date: str
    data: dict[str, Any]
    """Stage -> what became of its rows."""
    lines: tuple[str, ...]
    """The same for people."""

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        plain = asdict(self)
        del plain["lines"]
        plain["memory"]["on_device"] = self.memory.on_device
        return plain
