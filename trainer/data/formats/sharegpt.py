"""sharegpt: `conversations` and `videos`, as LLaMA-Factory has them, with `system` and `tools`.

{"conversations": [{"from": "human", "value": "<video>When?"},
                   {"from": "function_call", "value": "{...}"},
                   {"from": "observation", "value": "..."}, {"from": "gpt", "value": "At 5 s."}],
 "videos": ["a.mp4"], "tools": "[...]"}
"""

from __future__ import annotations

from trainer.data.annotation import Annotation
from trainer.data.formats.conversation import read_conversation
from trainer.data.formats.document import Document

_OURS = {"videos", "images", "system", "tools"}


def detects(document: Document) -> bool:
    """Whether a file looks so."""
    text_only = not {"video", "image"} & document.names
    return "conversations" in document.names and (text_only or bool(_OURS & document.names))


def read(document: Document, label: str) -> list[Annotation]:
    """All rows. AnnotationError."""
    annotations = []
    for number, row in enumerate(document.rows, start=1):
        name = "messages" if "conversations" not in row.fields else "conversations"
        annotations.append(read_conversation(row, name, default_id=f"{label}/{number}"))
    return annotations
