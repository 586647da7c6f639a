"""evaluate: what is asked, what counts as right, and what is said of how it was asked."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.cache import FeatureCache
from schemas.errors import AnnotationError
from trainer.asking import evaluating
from trainer.asking.evaluating import evaluate, score_answer, score_rows
from trainer.asking.scoring import AccuracyScore, GroundingScore
from trainer.data.annotation import Annotation, Message
from trainer.data.formats import read_annotations
from trainer.model.model_folder import AskableModel


def of(*content: str, **fields: Any) -> Annotation:
    roles = ("user", "assistant")
    messages = tuple(Message.of(roles[i % 2], text) for i, text in enumerate(content))
    return Annotation(id="a", video="v", messages=messages, **fields)


def test_how_an_answer_is_scored() -> None:
    timed = of("When?", "2.0 to 4.0", answer_spans=((2.0, 4.0),))
    assert score_answer("3.0 to 5.0", "2.0 to 4.0", annotation=timed) == {
        "kind": "time",
        "iou": pytest.approx(1 / 3),
        "lenient_iou": pytest.approx(1 / 3),
    }
    found = score_answer("from 2 until 4 s", "2.0 to 4.0", annotation=timed)
    assert (found["iou"], found["lenient_iou"]) == (None, 1.0)
    # The span is only the evidence.
    seen = of("What?", "a cat", answer_spans=((2.0, 4.0),))
    assert score_answer("Cat.", "a cat", annotation=seen) == {"kind": "words", "right": True}
    chosen = of("What?", "B", meta={"options": ["cat", "dog"], "answer": "B"})
    assert score_answer("dog", "B", annotation=chosen) == {
        "kind": "choice",
        "chosen": "B",
        "right": True,
    }


def test_scores_are_told_by_type_and_kind() -> None:
    rows = [
        {"type": "time", "kind": "time", "iou": 0.6, "lenient_iou": 0.6},
        {"type": "time", "kind": "time", "iou": None, "lenient_iou": 0.4},
        {"type": "color", "kind": "words", "right": True},
        {"type": "color", "kind": "words", "right": False},
    ]
    scores = score_rows(rows)
    assert list(scores) == ["color", "time", "all"]
    strict, lenient = scores["time"]["time"], scores["time"]["time_lenient"]
    assert isinstance(strict, GroundingScore)
    assert isinstance(lenient, GroundingScore)
    assert (strict.mean_iou, strict.unparsable, lenient.unparsable) == (0.3, 0.5, 0.0)
    words = scores["color"]["words"]
    assert isinstance(words, AccuracyScore)
    assert (words.num_asked, words.accuracy) == (2, 0.5)
    assert set(scores["all"]) == {"time", "time_lenient", "words"}


def test_each_question_is_asked_of_what_is_shown(
    cache: FeatureCache, model: AskableModel, questions: Path
) -> None:
    annotations = read_annotations(str(questions))
    lost = replace(annotations[0], id="lost", video="nowhere.mp4")
    told: list[int] = []
    found = evaluate(
        model, cache, [*annotations, lost], max_new_tokens=6, progress=told.append, name="q"
    )
    assert [row["id"] for row in found.rows] == [one.id for one in annotations]
    assert len(told) == len(annotations)
    assert {row["kind"] for row in found.rows if row["type"] == "time"} == {"time"}
    assert {row["kind"] for row in found.rows if row["type"] == "object"} == {"words"}
    assert all(row["num_clips"] == 3 for row in found.rows if row["id"] == "object0")
    assert found.report["q"]["missing"] == 1
    settings = found.settings
    assert settings["fingerprint"] == model.preprocessing.fingerprint()
    assert (settings["input"], settings["fps"], settings["tokens_per_clip"]) == ("video", 2.0, 4)
    assert settings["audio"]
    blind = evaluate(model, cache, annotations, kind="text", max_new_tokens=6)
    assert [row["num_clips"] for row in blind.rows] == [0] * len(annotations)
    assert blind.settings["digest"] != settings["digest"]
    center = evaluate(model, cache, annotations, kind="center", max_new_tokens=6, limit=3)
    assert [row["num_clips"] for row in center.rows] == [1, 1, 1]
    assert found.to_mapping()["scores"].keys() == {"all", "object", "time"}
    with pytest.raises(AnnotationError):
        evaluate(model, cache, [lost])


def test_turns_are_asked_after_the_true_ones(
    cache: FeatureCache, model: AskableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (video, *_) = cache.videos
    asked = []
    real = evaluating.answer

    def noted(model: AskableModel, messages: Any, **rest: Any) -> Any:
        asked.append([message.content[-1] for message in messages])
        return real(model, messages, **rest)

    monkeypatch.setattr(evaluating, "answer", noted)
    one = replace(of("Who?", "a man", "Where?", "there"), video=video)
    found = evaluate(model, cache, [one], max_new_tokens=2)
    assert [row["turn"] for row in found.rows] == [0, 1]
    assert asked == [["Who?"], ["Who?", "a man", "Where?"]]


def test_it_is_fast_enough_to_be_asked_often(
    cache: FeatureCache, model: AskableModel, questions: Path
) -> None:
    annotations = read_annotations(str(questions)) * 5
    began = time.process_time()
    evaluate(model, cache, annotations, max_new_tokens=12)
    # 200 in 20 s of a core.
    assert (time.process_time() - began) / len(annotations) < 0.1
