"""What a run says of itself: after each step, and at its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What is known after a step."""

    step: int
    """Of all stages together; the number of steps that are done."""
    num_steps: int
    stage: str
    loss: float
    """Of all ranks together."""
    num_tokens: int
    """Of all ranks together."""
    kept: tuple[int, ...] = ()
    """Clips that the reducer kept, of all ranks together, by tenths of their videos; empty: there
    is no reducer."""
    signal: int = 0
    """By which one of the ranks was told to end the run; 0: none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What came of a run."""

    out: str
    step: int
    num_steps: int
    loss: float | None
    """Of the last step; None: there was none left to do."""
    seconds: float
    tokens: int
    """That this run has learned from, since it was begun or resumed."""
    fingerprint: str
    checkpoint: str | None
    data: dict[str, Any] = field(default_factory=dict)
    """Stage -> what became of its rows."""
    signal: int = 0
    """That ended it before its last step; 0: it came to its end."""

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)
