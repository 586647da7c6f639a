"""Evaluate: ask a model what annotations ask, from a cache, and score its answers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.cache import FeatureCache
from trainer.asking.answering import answer
from trainer.asking.scoring import (
    AccuracyScore,
    GroundingScore,
    is_same_answer,
    parse_letter,
    parse_spans,
    temporal_iou,
)
from trainer.asking.viewing import Input, Viewer, Watched
from trainer.data.annotation import Annotation, Message
from trainer.data.item import Item
from trainer.data.joining import join
from trainer.model.model_folder import AskableModel

MAX_NEW_TOKENS = 64
Score = AccuracyScore | GroundingScore


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What came of asking."""

    rows: list[dict[str, Any]]
    """One a question: id, turn, type, kind, answer, truth, and `right` or `iou`."""
    scores: dict[str, dict[str, Score]]
    """Type of question -> kind -> score; `all` has all types together, where there are several."""
    settings: dict[str, Any]
    """What was shown and how it was asked; `digest` is taken over all else."""
    report: dict[str, Any]
    """What became of the annotations, as of `JoinReport.to_mapping`."""

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready, without the rows."""
        return {
            "scores": {
                name: {kind: dataclasses.asdict(score) for kind, score in kinds.items()}
                for name, kinds in self.scores.items()
            },
            "settings": self.settings,
            "report": self.report,
        }


def evaluate(
    model: AskableModel,
    cache: FeatureCache,
    annotations: Sequence[Annotation],
    *,
    kind: Input = "video",
    limit: int | None = None,
    name: str = "data",
    max_new_tokens: int = MAX_NEW_TOKENS,
    progress: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Ask every question of the annotations, the first `limit` of them that are in the cache.

    Each turn of the assistant is a question, after the true turns before it. `kind` as of
    `ViewSpec.input`: the middle frame or text alone are baselines, by the same model. `name` is
    what the annotations are called. AnnotationError: none of them can be asked.
    FingerprintMismatch: the model was trained from other features.
    """
    viewer = Viewer(model, cache, kind=kind)
    joined = join(
        {name: annotations},
        viewer.catalog,
        view=viewer.spec,
        max_clips=0,
        on_missing={name: "skip"},
    )
    rows = []
    for item in joined.items[:limit]:
        watched = _watched(item, viewer)
        for turn, (history, truth) in enumerate(_questions(item.annotation)):
            said = answer(model, history, watched=watched, max_new_tokens=max_new_tokens)
            rows.append(
                {
                    "id": item.id,
                    "turn": turn,
                    "video": said.video,
                    "type": _type(item.annotation),
                    **score_answer(said.text, truth, annotation=item.annotation),
                    "answer": said.text,
                    "truth": truth,
                    "num_clips": len(said.clips),
                    "is_complete": said.is_complete,
                }
            )
        progress(1)
    return Evaluation(
        rows=rows,
        scores=score_rows(rows),
        settings=_settings(
            model, kind=kind, max_new_tokens=max_new_tokens, asked=[row["id"] for row in rows]
        ),
        report=joined.report.to_mapping(),
    )


def score_answer(text: str, truth: str, *, annotation: Annotation) -> dict[str, Any]:
    """{"kind": "time", "iou", "lenient_iou"}, or {"kind": "choice" or "words", "right"}."""
    said = parse_spans(truth)
    if said:
        spans = annotation.answer_spans or said
        strict, lenient = parse_spans(text), parse_spans(text, lenient=True)
        return {
            "kind": "time",
            "iou": temporal_iou(strict, spans) if strict else None,
            "lenient_iou": temporal_iou(lenient, spans) if lenient else None,
        }
    options, letter = annotation.meta.get("options"), annotation.meta.get("answer")
    if isinstance(options, list) and options and isinstance(letter, str):
        chosen = parse_letter(text, [str(one) for one in options])
        return {"kind": "choice", "chosen": chosen, "right": chosen == letter}
    return {"kind": "words", "right": is_same_answer(text, truth)}


def score_rows(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Score]]:
    """The scores of `Evaluation`, from rows of a file too."""
    types = sorted({row["type"] for row in rows})
    groups = {name: [row for row in rows if row["type"] == name] for name in types}
    if len(types) > 1:
        groups["all"] = list(rows)
    return {name: _score(some) for name, some in groups.items()}


def _score(rows: Sequence[dict[str, Any]]) -> dict[str, Score]:
    scores: dict[str, Score] = {}
    times = [row for row in rows if row["kind"] == "time"]
    if times:
        scores["time"] = GroundingScore.of([row["iou"] for row in times])
        scores["time_lenient"] = GroundingScore.of([row["lenient_iou"] for row in times])
    for kind in ("choice", "words"):
        right = [row["right"] for row in rows if row["kind"] == kind]
        if right:
            scores[kind] = AccuracyScore.of(right)
    return scores


def _questions(annotation: Annotation) -> Iterator[tuple[list[Message], str]]:
    """What comes before each supervised turn, and what that says."""
    messages = list(annotation.messages)
    for i, message in enumerate(messages):
        if message.supervised and i > 0:
            yield messages[:i], "".join(part for part in message.content if isinstance(part, str))


def _watched(item: Item, viewer: Viewer) -> Watched | None:
    view = item.view
    if view is None:
        return None
    return Watched(viewer=viewer, video_id=view.video_id, view=view)


def _type(annotation: Annotation) -> str:
    for name in ("type", "category"):
        if annotation.meta.get(name):
            return str(annotation.meta[name])
    return "question"


def _settings(
    model: AskableModel, *, kind: Input, max_new_tokens: int, asked: Sequence[str]
) -> dict[str, Any]:
    preprocessing = model.preprocessing
    view, shape = replace(preprocessing.view, input=kind), preprocessing.shape
    settings: dict[str, Any] = {
        "input": kind,
        "policy": view.policy,
        "fps": view.fps or shape.fps,
        "num_frames": view.num_frames,
        "max_clips": view.max_clips,
        "frames_per_clip": preprocessing.frames_per_clip,
        "tokens_per_clip": preprocessing.tokens_per_clip,
        "compression": model.config.spec.connector.compression,
        "reduce": preprocessing.reduce.kind,
        "audio": preprocessing.with_audio and kind != "text",
        "time": preprocessing.time.mode,
        "template": preprocessing.template,
        "decoding": "greedy",
        "max_new_tokens": max_new_tokens,
        "num_asked": len(asked),
        "questions_sha256": hashlib.sha256("\n".join(asked).encode()).hexdigest()[:16],
        "fingerprint": preprocessing.fingerprint(),
    }
    text = json.dumps(settings, sort_keys=True)
    return settings | {"digest": hashlib.sha256(text.encode()).hexdigest()[:16]}
