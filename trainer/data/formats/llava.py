r"""llava: `video` and `conversations` of human and gpt, as LLaVA and Qwen's fine-tuning have them.

{"id": "a", "video": "a.mp4", "conversations": [
    {"from": "human", "value": "<video>\nWhat happens?"}, {"from": "gpt", "value": "A jump."}]}
"""

from __future__ import annotations

from trainer.data.annotation import Annotation
from trainer.data.formats.conversation import read_conversation
from trainer.data.formats.document import Document

_OURS = {"video", "image"}


def detects(document: Document) -> bool:
    """Whether a file looks so."""
    return "conversations" in document.names and bool(_OURS & document.names)


def read(document: Document, label: str) -> list[Annotation]:
    """All rows. AnnotationError."""
    return [
        read_conversation(row, "conversations", default_id=f"{label}/{number}")
        for number, row in enumerate(document.rows, start=1)
    ]
