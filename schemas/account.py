"""Account: what became of every source. Sources = cached + rejected, always."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from schemas.reject import Reject


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of every source that the cache has seen."""

    outcomes: dict[tuple[str, str, float, float], Reject | None]
    """`Source.identity` -> None where it is cached."""

    def part(self, identities: Collection[tuple[str, str, float, float]]) -> Account:
        """Of these sources only, as far as they are known."""
        outcomes = self.outcomes
        return Account(outcomes={i: outcomes[i] for i in outcomes if i in identities})

    @property
    def rejects(self) -> list[Reject]:
        return [reject for reject in self.outcomes.values() if reject is not None]

    @property
    def num_retryable(self) -> int:
        """Rejects that a later run may cache although their source is the same."""
        return sum(1 for reject in self.rejects if reject.retryable)

    @property
    def num_cached(self) -> int:
        return len(self.outcomes) - len(self.rejects)

    @property
    def reject_rate(self) -> float:
        """In [0, 1]."""
        return len(self.rejects) / max(1, len(self.outcomes))


def outlook(rejects: Sequence[Reject]) -> str:
    """Such as `2 may succeed later (2 timed_out), 1 is permanent (1 empty_file)`."""
    later = [reject for reject in rejects if reject.retryable]
    never = [reject for reject in rejects if not reject.retryable]
    parts = []
    if later:
        parts.append(f"{len(later)} may succeed later ({commonest_reasons(later)})")
    if never:
        verb = "is" if len(never) == 1 else "are"
        parts.append(f"{len(never)} {verb} permanent ({commonest_reasons(never)})")
    return ", ".join(parts)


def commonest_reasons(rejects: Iterable[Reject], *, limit: int | None = None) -> str:
    """Such as `3 not_a_video, 1 empty_file`; the `limit` commonest, or all."""
    counts = Counter(reject.reason for reject in rejects)
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common(limit))
