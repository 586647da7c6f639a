"""Account: what became of every source. Sources = cached + rejected, always."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from schemas.reject import Reject


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of every source that the cache has seen."""

    outcomes: dict[tuple[str, str, float, float], Reject | None]
    """`Source.identity` -> None where it is cached."""

    @property
    def rejects(self) -> list[Reject]:
        return [reject for reject in self.outcomes.values() if reject is not None]

    @property
    def num_cached(self) -> int:
        return len(self.outcomes) - len(self.rejects)

    @property
    def reject_rate(self) -> float:
        """In [0, 1]."""
        return len(self.rejects) / max(1, len(self.outcomes))


def commonest_reasons(rejects: Iterable[Reject], *, limit: int | None = None) -> str:
    """Such as `3 not_a_video, 1 empty_file`; the `limit` commonest, or all."""
    counts = Counter(reject.reason for reject in rejects)
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common(limit))
