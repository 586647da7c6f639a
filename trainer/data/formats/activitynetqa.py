"""activitynetqa: open questions of ActivityNet-QA; the answers lie in the file beside it.

`val_q.json` has video_name, question and question_id, `val_a.json` question_id, answer and type.
Rows that have an answer of their own need no other file.
"""

from __future__ import annotations

from schemas.errors import AnnotationError
from trainer.data.annotation import Annotation, Message, VideoPart
from trainer.data.formats.document import Document, read_document
from trainer.data.formats.row import Row


def detects(document: Document) -> bool:
    """Whether a file looks so."""
    return {"video_name", "question", "question_id"} <= document.names


def read(document: Document, label: str) -> list[Annotation]:  # noqa: ARG001 - rows have ids
    """All rows. AnnotationError."""
    answers: dict[str, Row] = {}
    if "answer" not in document.names:
        answers = _read_answers(document.path)
    annotations = []
    for row in document.rows:
        question_id, video = row.text("question_id"), row.text("video_name")
        answer = answers.get(question_id, row)
        if answer is row and answers:
            raise row.error("question_id", f"{question_id!r} is not among the answers")
        messages = (
            Message.of("user", VideoPart(), row.text("question")),
            Message.of("assistant", answer.text("answer")),
        )
        meta = {**answer.rest("question_id"), **row.rest("question_id", "question", "video_name")}
        annotations.append(
            Annotation(
                id=question_id,
                video=video,
                aliases=(f"v_{video}",),  # as the videos of ActivityNet are called
                messages=messages,
                meta=meta,
            )
        )
    return annotations


def _read_answers(path: str) -> dict[str, Row]:
    stem, mark, ending = path.rpartition("_q.")
    other = f"{stem}_a.{ending}"
    if not mark:
        raise AnnotationError(
            f"{path} has questions without answers",
            hint="name the file *_q.json and put *_a.json with the answers beside it",
        )
    return {row.text("question_id"): row for row in read_document(other).rows}
