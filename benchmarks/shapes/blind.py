"""Blind bounds: how far a constant answer gets, that of the best one who sees and hears nothing.

Every bound is taken by itself, on the very rows that a model is scored on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.shapes.questions import Row
from benchmarks.shapes.scene import DURATION_SECONDS, GRID_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBounds:
    """Of answers that are a span, one constant for each question."""

    mean_iou: float
    recall_03: float
    """Share with an IoU of at least 0.3."""
    recall_05: float


def best_constant_accuracy(rows: Iterable[Row]) -> float:
    """Share of right answers when each question has the answer that is most often right.

    Where a question names two choices, "..., A or B?", its answers are the first and the second.
    """
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        question, answer = _abstract(row["meta"]["question"], row["meta"]["answer"])
        counts.setdefault(question, Counter())[answer] += 1
    best = sum(answers.most_common(1)[0][1] for answers in counts.values())
    return best / sum(answers.total() for answers in counts.values())


def best_constant_spans(rows: Iterable[Row]) -> TimeBounds:
    """The same for spans of time, over all spans on the grid."""
    by_question: dict[str, list[list[float]]] = {}
    for row in rows:
        by_question.setdefault(row["meta"]["question"], []).append(row["answer_spans"][0])
    total = sum(len(spans) for spans in by_question.values())

    def bound(score: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]) -> float:
        best = sum(score(_ious(spans)).sum(axis=1).max() for spans in by_question.values())
        return float(best / total)

    return TimeBounds(
        mean_iou=bound(lambda ious: ious),
        recall_03=bound(lambda ious: (ious >= 0.3).astype(np.float64)),
        recall_05=bound(lambda ious: (ious >= 0.5).astype(np.float64)),
    )


def _ious(spans: list[list[float]]) -> npt.NDArray[np.float64]:
    """(constants, spans): of each span on the grid with each true one."""
    ticks = np.arange(0, DURATION_SECONDS + GRID_SECONDS / 2, GRID_SECONDS)
    starts, ends = (grid.ravel() for grid in np.meshgrid(ticks, ticks, indexing="ij"))
    constants = np.stack([starts, ends], axis=1)[starts < ends]
    true = np.asarray(spans)
    low = np.maximum(constants[:, None, 0], true[None, :, 0])
    high = np.minimum(constants[:, None, 1], true[None, :, 1])
    both = np.maximum(high - low, 0)
    lengths = (constants[:, None, 1] - constants[:, None, 0]) + (true[:, 1] - true[:, 0])[None]
    ious: npt.NDArray[np.float64] = both / (lengths - both)
    return ious


def _abstract(question: str, answer: str) -> tuple[str, str]:
    choices = re.search(r", (?:the )?(\w+) or (?:the )?(\w+)\?$", question)
    if choices is None:
        return question, answer
    named = choices.groups()
    return question[: choices.start()], ("one", "other")[named.index(answer)]
