"""nextqa: NExT-QA, whose answer is a number into a0 ... a4; NExT-GQA, whose answer is its text.

Where `gsub_*.json` of NExT-GQA lies beside the file, it says where the evidence is: val.csv has
gsub_val.json, nextgqa_val.csv has nextgqa_gsub_val.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.places import is_file, read_bytes, to_place
from schemas.errors import AnnotationError
from trainer.data.annotation import Annotation
from trainer.data.formats.choices import (
    choice_messages,
    choice_meta,
    read_question,
    settle,
)
from trainer.data.formats.document import Document
from trainer.data.formats.row import Row, shown

OPTION_NAMES = tuple(f"a{i}" for i in range(5))
_VIDEO_NAMES = ("video", "video_id")


def detects(document: Document) -> bool:
    """Whether a file looks so."""
    return {"question", *OPTION_NAMES} <= document.names


def read(document: Document, label: str) -> list[Annotation]:  # noqa: ARG001 - rows have numbers
    """All rows. AnnotationError."""
    grounds, ground_path = _read_grounds(document.path)
    questions = [
        read_question(
            row,
            question=row.text("question"),
            options=[row.fields.get(name) for name in OPTION_NAMES],
            answer_names=["answer"],
        )
        for row in document.rows
    ]
    annotations = []
    for one, right in zip(questions, settle(questions, path=document.path), strict=True):
        row = one.row
        video, qid = row.text(*_VIDEO_NAMES), row.text("qid")
        meta = row.rest("question", "answer", row.first(_VIDEO_NAMES), *OPTION_NAMES)
        ground = Row(where=f"{ground_path}: {video}", fields=grounds.get(video, {}))
        spans = ground.fields.get("location", {}).get(qid)
        annotations.append(
            Annotation(
                id=f"{video}_{qid}",
                video=video,
                messages=choice_messages(one.question, one.options, right),
                answer_spans=() if spans is None else ground.as_answer_spans(qid, spans),
                meta=choice_meta(one, right, {**ground.rest("location"), **meta}),
            )
        )
    return annotations


def _read_grounds(path: str) -> tuple[Mapping[str, Any], str]:
    """Video -> its entry, and where that was read; nothing where no such file lies beside it."""
    folder, slash, name = path.rpartition("/")
    stem = name.rpartition(".")[0] or name
    pieces = stem.split("_")
    for first in range(len(pieces)):
        other = "_".join([*pieces[:first], "gsub", *pieces[first:]])
        place = to_place(f"{folder}{slash}{other}.json")
        if not is_file(place):
            continue
        try:
            grounds = json.loads(read_bytes(place))
        except (OSError, ValueError, RecursionError) as error:
            raise AnnotationError(f"{place}: cannot be read: {error}") from error
        shaped = isinstance(grounds, dict) and all(
            isinstance(one, dict) and isinstance(one.get("location"), dict)
            for one in grounds.values()
        )
        if not shaped:
            raise AnnotationError(
                f"{place}: expected {{video: {{location: {{qid: spans}}}}}}, not {shown(grounds)}"
            )
        return grounds, str(place)
    return {}, ""
