"""What is said and asked about a scene, as rows of annotations.

`meta.type` of a question is one of TYPES. Each has answers that are equally frequent, so that one
who does not see the video can do no better than to guess; for times see `blind`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shapes.scene import BEEPS, DURATION_SECONDS, Event, Scene

CLIP_SECONDS = 2.0
ORDINALS = ("first", "second")
TYPES = ("order", "color", "time", "direction", "beep")
NOTHING = "nothing"

Row = dict[str, Any]


def caption(scene: Scene, start_seconds: float, end_seconds: float) -> str:
    """What is seen in [start, end): "red left 0.5 to 2.0", two joined by a comma, or NOTHING.

    Times are of the part of the event that lies inside.
    """
    parts = []
    for event in scene.events:
        start = max(event.start_seconds, start_seconds)
        end = min(event.end_seconds, end_seconds)
        if start < end:
            parts.append(f"{event.color} {event.direction} {format_span(start, end)}")
    return ", ".join(parts) or NOTHING


def caption_row(scene: Scene) -> Row:
    """All clips of a video in turn, each with its caption."""
    messages: list[Row] = []
    for start in np.arange(0.0, DURATION_SECONDS, CLIP_SECONDS).tolist():
        span = [start, start + CLIP_SECONDS]
        messages.append({"role": "user", "content": [{"type": "video", "span": span}]})
        messages.append({"role": "assistant", "content": caption(scene, *span)})
    return _row(scene, "caption", messages, {"type": "caption"})


def question_rows(scene: Scene) -> list[Row]:
    """A question of each type: of time one for each object, of the beep two if there is one."""
    rng = np.random.default_rng([scene.seed, scene.index, 3])
    first, second = scene.events
    named = [event.color for event in scene.events]
    if rng.integers(2):
        named.reverse()
    asked, moved = rng.integers(2), rng.integers(2)
    rows = [
        _ask(
            scene,
            "order",
            f"Which color comes first, {named[0]} or {named[1]}?",
            first.color,
        ),
        _ask(
            scene,
            "color",
            f"What color is the {ORDINALS[asked]} object?",
            scene.events[asked].color,
        ),
        _ask(
            scene,
            "direction",
            f"Which way does the {ORDINALS[moved]} object move?",
            scene.events[moved].direction,
        ),
        *_ask_about_beep(scene, rng),
    ]
    return rows + [
        _ask_when(scene, ordinal, event)
        for ordinal, event in zip(ORDINALS, (first, second), strict=True)
    ]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """JSON lines; the file gets its name when it is whole."""
    unfinished = path.with_name(f".{path.name}")
    with unfinished.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    unfinished.replace(path)


def read_rows(path: Path) -> list[Row]:
    """The inverse of `write_rows`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def texts_of(rows: Iterable[Row]) -> Iterator[str]:
    """Every text of the rows, for a tokenizer to learn from."""
    for row in rows:
        for message in row["messages"]:
            content = message["content"]
            parts = [content] if isinstance(content, str) else content
            yield from (part if isinstance(part, str) else part.get("text", "") for part in parts)


def format_span(start_seconds: float, end_seconds: float) -> str:
    """As in answers: "2.0 to 5.5"."""
    return f"{start_seconds:.1f} to {end_seconds:.1f}"


def _ask_about_beep(scene: Scene, rng: np.random.Generator) -> list[Row]:
    if scene.beeping is None:
        return [_ask(scene, "beep", "Is there a beep?", "no", about="whether")]
    question = "Which object beeps, the first or the second?"
    rows = [_ask(scene, "beep", question, ORDINALS[scene.beeping], about="which")]
    # Of videos with a beep as many are asked as there are without, so that yes is no better guess.
    if rng.random() < (1 - BEEPS) / BEEPS:
        rows.append(_ask(scene, "beep", "Is there a beep?", "yes", about="whether"))
    return rows


def _ask_when(scene: Scene, ordinal: str, event: Event) -> Row:
    span = (event.start_seconds, event.end_seconds)
    row = _ask(
        scene, "time", f"When is the {ordinal} object visible?", format_span(*span), about=ordinal
    )
    return row | {"answer_spans": [list(span)]}


def _ask(scene: Scene, kind: str, question: str, answer: str, *, about: str = "") -> Row:
    messages = [
        {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": question}]},
        {"role": "assistant", "content": answer},
    ]
    meta = {
        "type": kind,
        "about": about,
        "question": question,
        "answer": answer,
        "sound": scene.sound,
    }
    meta["sound"] = scene.sound
    return _row(scene, f"{kind}-{about}" if about else kind, messages, meta)


def _row(scene: Scene, name: str, messages: list[Row], meta: Row) -> Row:
    return {
        "id": f"{scene.video_id}-{name}",
        "video": scene.video_id,
        "span": None,
        "messages": messages,
        "answer_spans": [],
        "meta": meta,
    }
