"""JoinReport: what became of every row of annotations when they met a cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OUTCOMES = {
    "matched": "joined with their video",
    "text_only": "about no video",
    "unsupervised": "without an answer to learn",
    "missing": "whose video is not in the cache",
    "ambiguous": "whose video may be one of several",
    "outside": "about a span of which nothing is cached",
    "no_clips": "of whose video the view keeps no frame",
    "no_events": "in whose video nobody has looked for events",
}
"""What may become of a row; each becomes one of them."""
LOST = ("missing", "ambiguous", "outside", "no_clips", "no_events")
"""What `on_missing` decides about."""
MAX_EXAMPLES = 3


@dataclass(kw_only=True, slots=True)
class LabelReport:
    """What became of the rows of one file."""

    rows: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Outcome -> the first few rows of it that are no items, and what is known of them."""

    def add(self, outcome: str, example: str = "") -> None:
        """Count one row."""
        self.rows += 1
        self.counts[outcome] += 1
        examples = self.examples.setdefault(outcome, []) if example else []
        if len(examples) < MAX_EXAMPLES:
            examples.append(example)

    def sentence(self, outcome: str) -> str:
        """One outcome in words, with examples."""
        count, examples = self.counts[outcome], self.examples.get(outcome, [])
        more = ", ..." if count > len(examples) > 0 else ""
        listed = f": {', '.join(examples)}{more}" if examples else ""
        return f"{count} {OUTCOMES[outcome]}{listed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReport:
    """What became of all rows, by label."""

    labels: dict[str, LabelReport]

    def lines(self) -> list[str]:
        """For people: a line a label, and one for each other outcome than matched."""
        lines = []
        for label, report in self.labels.items():
            lines.append(f"{label}: {report.rows} rows, {report.sentence('matched')}")
            lines += [
                f"  {report.sentence(outcome)}"
                for outcome in OUTCOMES
                if outcome != "matched" and report.counts[outcome]
            ]
        return lines

    def to_mapping(self) -> dict[str, Any]:
        """For JSON: label -> rows, the count of each outcome, examples."""
        return {
            label: {"rows": report.rows, **report.counts, "examples": report.examples}
            for label, report in self.labels.items()
        }
