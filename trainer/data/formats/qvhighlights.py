"""qvhighlights: queries with several relevant windows; JSONL of Moment-DETR.

`vid` is ID_START_END: a cut from a longer video, on whose clock the windows count. Here they are
told on the video's own clock; a file that holds the cut only is found by the whole `vid`.
"""

from __future__ import annotations

import re

from trainer.data.annotation import Annotation, Span
from trainer.data.formats.document import Document
from trainer.data.formats.grounding import grounding_messages
from trainer.data.formats.row import Row

_CUT = re.compile(r"(.+)_(\d+(?:\.\d+)?)_(\d+(?:\.\d+)?)")


def detects(document: Document) -> bool:
    """Whether a file looks so."""
    wanted = {"vid", "query"} <= document.names
    predicted = any(name.startswith("pred_") for name in document.names)
    return wanted and not predicted and bool({"relevant_windows", "duration"} & document.names)


def read(document: Document, label: str) -> list[Annotation]:
    """All rows. AnnotationError."""
    return [
        _read_row(row, default_id=f"{label}/{number}")
        for number, row in enumerate(document.rows, start=1)
    ]


def _read_row(row: Row, *, default_id: str) -> Annotation:
    vid, query = row.text("vid"), row.text("query")
    found = _CUT.fullmatch(vid)
    span = row.as_span("vid", found.groups()[1:]) if found else None
    windows = row.fields.get("relevant_windows")
    spans: tuple[Span, ...] = ()
    if windows is not None:
        offset = span[0] if span else 0.0
        spans = row.as_answer_spans("relevant_windows", windows, offset_seconds=offset)
    return Annotation(
        id=row.text("qid") if row.first(["qid"]) else default_id,
        video=found[1] if found else vid,
        messages=grounding_messages(query, spans),
        span=span,
        answer_spans=spans,
        cut=vid if found else None,
        meta=row.rest("qid", "relevant_windows"),
    )
