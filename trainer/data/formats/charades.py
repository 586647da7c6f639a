"""charades: Charades-STA; sentences with one span of time each.

    VXJS4 0.0 3.4##a person walks through the doorway.

or rows with a video, a caption and a timestamp [start, end], as TimeChat and lmms-eval have them.
"""

from __future__ import annotations

import re

from schemas.errors import AnnotationError
from trainer.data.annotation import Annotation
from trainer.data.formats.document import LINE, Document
from trainer.data.formats.grounding import grounding_messages
from trainer.data.formats.row import VIDEO_NAMES, Row, shown

_LINE = re.compile(r"\s*(\S+)\s+(\S+)\s+(\S+)\s*##(.*)")
_VIDEO_NAMES = ("image_id", *VIDEO_NAMES)
_SENTENCE_NAMES = ("caption", "sentence", "query")
_TIME_NAMES = ("timestamp", "timestamps")


def detects(document: Document) -> bool:
    """Whether a file looks so."""
    if document.kind == "lines":
        return bool(_LINE.fullmatch(document.rows[0].fields[LINE]))
    names = document.names
    wanted = (_VIDEO_NAMES, _SENTENCE_NAMES, _TIME_NAMES)
    return all(names & {*some} for some in wanted) and "messages" not in names


def read(document: Document, label: str) -> list[Annotation]:
    """All rows. AnnotationError."""
    annotations = []
    for number, row in enumerate(document.rows, start=1):
        row = _split(row) if document.kind == "lines" else row
        video, sentence, time = (
            row.first(names) or names[0] for names in (_VIDEO_NAMES, _SENTENCE_NAMES, _TIME_NAMES)
        )
        query = row.text(*_SENTENCE_NAMES)
        spans = row.as_answer_spans(time, row.fields[row.require(*_TIME_NAMES)])
        annotations.append(
            Annotation(
                id=row.text("id") if row.first(["id"]) else f"{label}/{number}",
                video=row.text(*_VIDEO_NAMES),
                messages=grounding_messages(query, spans),
                answer_spans=spans,
                meta={"query": query, **row.rest("id", video, sentence, time)},
            )
        )
    return annotations


def _split(row: Row) -> Row:
    found = _LINE.fullmatch(row.fields[LINE])
    if found is None:
        line = shown(row.fields[LINE])
        raise AnnotationError(f"{row.where}: expected VIDEO START END##SENTENCE, not {line}")
    video, start, end, sentence = found.groups()
    fields = {"video": video, "timestamp": [start, end], "caption": sentence}
    return Row(where=row.where, fields=fields)
