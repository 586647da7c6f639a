"""messages: the native format; rows of ms-swift, LLaMA-Factory and OpenAI with `messages` too.

{"id": "a", "video": "v1", "span": [3.0, 8.0],
 "messages": [{"role": "user", "content": "<video>What happens?"},
              {"role": "assistant", "content": "A cat jumps."}]}
"""

from __future__ import annotations

from trainer.data.annotation import Annotation
from trainer.data.formats.conversation import read_conversation
from trainer.data.formats.document import Document


def detects(document: Document) -> bool:
    """Whether a file looks so."""
    return "messages" in document.names


def read(document: Document, label: str) -> list[Annotation]:
    """All rows. AnnotationError."""
    return [
        read_conversation(row, "messages", default_id=f"{label}/{number}")
        for number, row in enumerate(document.rows, start=1)
    ]
