"""mcq: multiple choice; a question, options and the answer's letter, text or number from 0.

    {"video": "a.mp4", "question": "What?", "options": ["A. cat", "B. dog"], "answer": "B"}

Options are a list, an object, columns (A, B, ... or "option 0", ...) or the question's last lines.
TempCompass's {video: {aspect: [{question, answer}]}} is one too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from schemas.errors import AnnotationError
from trainer.data.annotation import Annotation
from trainer.data.formats.choices import (
    Question,
    choice_messages,
    choice_meta,
    read_question,
    settle,
    split_lettered,
)
from trainer.data.formats.document import NUM_LOOKED_AT, Document
from trainer.data.formats.row import VIDEO_NAMES, Row, shown

QUESTION_NAMES = ("question", "problem")
OPTION_NAMES = ("options", "candidates", "choices")
ANSWER_NAMES = ("answer", "correct_choice", "answer_idx", "correct_answer", "label")
ID_NAMES = ("id", "question_id", "qid", "q_uid")
_COLUMN = re.compile(r"(?:option|choice|a)?[ _]?([0-9]|[A-H])")


def detects(document: Document) -> bool:
    """Whether a file looks so."""
    if document.kind == "object":
        return all(
            isinstance(one.fields.get("question"), str) and "answer" in one.fields
            for _, _, _, one in _leaves(document, strict=False)
        ) and any(_leaves(document, strict=False))
    names = document.names
    if not names & {*QUESTION_NAMES} or "a0" in names:  # a0, ...: nextqa
        return False
    if names & {*OPTION_NAMES} or len(_option_columns(document.rows[0])) >= 2:
        return True
    some = (row.fields.get("question") for row in document.rows[:NUM_LOOKED_AT])
    return any(isinstance(text, str) and bool(split_lettered(text)[1]) for text in some)


def read(document: Document, label: str) -> list[Annotation]:
    """All rows. AnnotationError."""
    if document.kind == "object":
        return _read_tree(document)
    questions = [_read_row(row) for row in document.rows]
    annotations = []
    rights = settle(questions, path=document.path)
    for number, (one, right) in enumerate(zip(questions, rights, strict=True), start=1):
        row = one.row
        names = (*QUESTION_NAMES, *OPTION_NAMES, *_option_columns(row), *row.span_names)
        id_name, video_name = row.first(ID_NAMES), row.first((*VIDEO_NAMES, "image"))
        meta = row.rest(*names, one.answer_field, id_name, video_name)
        messages = choice_messages(one.question, one.options, right)
        annotations.append(
            Annotation(
                id=row.text(id_name) if id_name else f"{label}/{number}",
                video=row.text(*VIDEO_NAMES, "image"),
                messages=messages,
                span=row.span(),
                meta=choice_meta(one, right, meta),
            )
        )
    return annotations


def _read_row(row: Row) -> Question:
    name = row.first(OPTION_NAMES)
    columns = _option_columns(row)
    options: Any = None
    if name is not None:
        options = row.fields[name]
    elif len(columns) >= 2:
        options = [row.fields[column] for column in columns]
        while options and options[-1] in (None, ""):  # fewer than there are columns
            options.pop()
    question = row.text(*QUESTION_NAMES)
    return read_question(row, question=question, options=options, answer_names=ANSWER_NAMES)


def _option_columns(row: Row) -> list[str]:
    if row.first(OPTION_NAMES):
        return []
    return sorted(name for name in row.fields if _COLUMN.fullmatch(name))


def _read_tree(document: Document) -> list[Annotation]:
    leaves = list(_leaves(document, strict=True))
    questions = [
        read_question(row, question=row.text("question"), options=None, answer_names=["answer"])
        for _, _, _, row in leaves
    ]
    rights = settle(questions, path=document.path)
    return [
        Annotation(
            id=f"{video}/{aspect}/{number}",
            video=video,
            messages=choice_messages(one.question, one.options, right),
            meta=choice_meta(one, right, {"category": aspect, **row.rest("question", "answer")}),
        )
        for (video, aspect, number, row), one, right in zip(leaves, questions, rights, strict=True)
    ]


def _leaves(document: Document, *, strict: bool) -> Iterator[tuple[str, str, int, Row]]:
    """(video, aspect, number in it, row) of a tree; strict: AnnotationError where it is none."""
    for video, aspects in document.tree.items():
        for aspect, rows in aspects.items() if isinstance(aspects, dict) else [("", aspects)]:
            for number, fields in enumerate(rows if isinstance(rows, list) else [rows], start=1):
                where = f"{document.path}: {video}, {aspect}, question {number}"
                if not isinstance(fields, dict) or not isinstance(rows, list):
                    if strict:
                        wanted = "{video: {aspect: [questions]}}"
                        raise AnnotationError(f"{where}: expected {wanted}, not {shown(rows)}")
                    fields = {}
                yield video, aspect, number, Row(where=where, fields=fields)
