"""Forecast: what a run would do, keep and cost; `forecasting` makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.oddities import Oddity
from pipeline.workload import Workload
from schemas.reject import Reject

MAX_REJECTS = 20
"""Shown one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardForecast:
    """A run on one card."""

    name: str
    gpu_hours: float
    """Of encoding, if nothing else holds it up."""
    usd: float
    usd_low: float
    usd_high: float
    cores: float | None
    """That decode as fast as the card encodes; None: nothing is encoded on a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceForecast:
    """What becomes of the sources, as far as it is known before decoding."""

    named: int
    to_do: int
    cached: int
    copies: int
    """Of other sources' content."""
    rejected: int
    rejects: tuple[Reject, ...]

    @property
    def reasons(self) -> dict[str, int]:
        """Reason -> sources, the most common first."""
        counts: dict[str, int] = {}
        for reject in self.rejects:
            counts[reject.reason] = counts.get(reject.reason, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def to_json(self) -> dict[str, Any]:
        """With reasons, and the first rejects one by one."""
        counts = {name: getattr(self, name) for name in ("named", "to_do", "cached", "copies")}
        shown = [reject.to_row() for reject in self.rejects[:MAX_REJECTS]]
        return counts | {"rejected": self.rejected, "reasons": self.reasons, "rejects": shown}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run of one recipe would do."""

    recipe: str
    description: str
    fps: float
    frames_per_clip: int
    is_new: bool
    """There is no cache yet, or what there is has another recipe."""
    sources: SourceForecast
    work: Workload
    """Still to be done; all other numbers of work are of it."""
    done_clips: int
    """Of the named sources, that are committed."""
    done_bytes: int
    bytes_per_clip: int
    member_bytes: Mapping[str, int]
    """What a clip's bytes are: stream, sound, preview and the rest."""
    trained_bytes: int
    """Features of all clips, done and to do: what training on each of them once reads."""
    card: str
    """That `gpu_hours` and `cost_usd` are of."""
    cards: tuple[CardForecast, ...]
    operations: float
    """Floating-point, of all encoders on a GPU."""
    speed: str
    """What GPU-hours are computed from: `operations`, or `measured` frames a second."""
    unknown_streams: tuple[str, ...]
    """Whose encoders do not say what they compute: they are left out of GPU-hours."""
    utilisation: float
    usd_per_gb_month: float
    figures_date: str
    """Of prices and peaks."""
    oddities: tuple[Oddity, ...]

    @property
    def chosen(self) -> CardForecast:
        """The run on the card that was asked for."""
        return next(card for card in self.cards if card.name == self.card)

    @property
    def kept_bytes(self) -> int:
        """Of the sources' clips, done and to do."""
        return self.done_bytes + self.work.bytes

    @property
    def usd_per_month(self) -> float:
        """For storing them."""
        return self.kept_bytes / 1e9 * self.usd_per_gb_month

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; hours and dollars as they are computed, without rounding."""
        work = self.work
        return {
            "recipe": self.recipe,
            "videos": work.videos,
            "hours": work.seconds / 3600,
            "frames": work.frames,
            "clips": work.clips,
            "shards": work.shards,
            "bytes": work.bytes,
            "gpu_hours": self.chosen.gpu_hours,
            "cost_usd": self.chosen.usd,
            "done_clips": self.done_clips,
            "done_bytes": self.done_bytes,
            "new_cache": self.is_new,
            "card": self.card,
            "cards": [asdict(card) for card in self.cards],
            "operations": self.operations,
            "speed": self.speed,
            "unknown_streams": list(self.unknown_streams),
            "utilisation": self.utilisation,
            "figures_date": self.figures_date,
            "decode_core_hours": work.decode_seconds / 3600,
            "storage_usd_per_month": self.usd_per_month,
            "trainer_bytes_per_epoch": self.trained_bytes,
            "bytes_per_clip": self.bytes_per_clip,
            "member_bytes": dict(self.member_bytes),
            "sources": self.sources.to_json(),
            "oddities": [oddity.to_json() for oddity in self.oddities],
        }
