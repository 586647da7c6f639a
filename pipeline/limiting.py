"""RejectLimit: end a run as soon as it is certain to have too many rejects.

A source that is rejected stays so until the run ends. Once there are more of them than the limit
times all sources, it can only get worse, and the rest of the work would be for nothing.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.meeting import Meeting
from schemas.account import Account
from schemas.errors import TooManyRejects
from schemas.plan import ShardSpec
from schemas.reject import Reject
from schemas.sidecar import Sidecar

MAX_UNCOUNTED = 10_000
"""What is sent to each worker has to stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectLimit:
    """What a run allows, and what is certain before its build; picklable.

    Workers count the rejects of their shards in the run folder. What they count is never too much:
    of copies one, of a video in several shards none.
    """

    num_sources: int
    max_rate: float
    before: Mapping[str, int]
    """Reason -> sources of the run that are rejected, whatever the build does."""
    uncounted: frozenset[str]
    """Videos to be built which are not of this run's sources: an earlier run left them."""
    cache: str
    """As messages name it."""

    @classmethod
    def of(
        cls,
        so_far: Account,
        todo: Sequence[ShardSpec],
        *,
        num_sources: int,
        video_ids: Collection[str],
        max_rate: float,
        cache: str,
        is_shared: bool = True,
    ) -> RejectLimit:
        """The limit of a run: `so_far` and `video_ids` are of its sources, `todo` is to be built.

        `is_shared`: workers hear of each other's rejects; else the run is judged at its end.
        TooManyRejects: there are too many of them already.
        """
        others = {piece.video_id for spec in todo for piece in spec.pieces} - set(video_ids)
        limit = cls(
            num_sources=num_sources,
            max_rate=max_rate if len(others) <= MAX_UNCOUNTED else 1.0,
            before=_reasons(so_far.rejects),
            uncounted=frozenset(others) if len(others) <= MAX_UNCOUNTED else frozenset(),
            cache=cache,
        )
        limit._check(Counter())
        return limit if is_shared else replace(limit, max_rate=1.0, uncounted=frozenset())

    def check(self, meeting: Meeting) -> None:
        """TooManyRejects: the workers together have met too many."""
        if self.max_rate < 1:
            self._check(meeting.rejects())

    def count(self, sidecar: Sidecar, spec: ShardSpec, meeting: Meeting) -> None:
        """Add the rejects of a committed shard, once. TooManyRejects."""
        if self.max_rate == 1:
            return
        whole = {p.video_id for p in spec.pieces if p.first_clip == 0 and p.is_last}
        counted = [r for r in sidecar.rejects if r.video_id in whole - self.uncounted]
        if counted:
            meeting.write_rejects(spec.name, _reasons(counted))
            self.check(meeting)

    def _check(self, during: Counter[str]) -> None:
        reasons = Counter(self.before) + during
        rate = reasons.total() / max(1, self.num_sources)
        if rate > self.max_rate:
            text = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
            raise TooManyRejects(
                f"{reasons.total()} of {self.num_sources} sources were rejected ({rate:.1%}, the"
                f" limit is {self.max_rate:.1%}): {text}; the run was stopped early",
                hint=f"see: pipeline rejects {shlex.quote(self.cache)}; what is built is kept:"
                " mend or leave out these sources, or run again with a higher --max-reject-rate to"
                " go on",
            )


def _reasons(rejects: Sequence[Reject]) -> Counter[str]:
    return Counter(reject.reason for reject in rejects)
