"""Formats of annotations: which there are, which one a file has, and reading it.

A module a format, with `detects(document)` and `read(document, label)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from schemas.errors import AnnotationError
from schemas.settings import nearest
from trainer.data.annotation import Annotation
from trainer.data.formats import (
    activitynetqa,
    charades,
    llava,
    mcq,
    messages,
    nextqa,
    qvhighlights,
    sharegpt,
)
from trainer.data.formats.document import Document, read_document


@dataclass(frozen=True, slots=True)
class _Format:
    detects: Callable[[Document], bool]
    """Whether a file looks so; of files that are no training rows, false."""
    read: Callable[[Document, str], list[Annotation]]


FORMATS = {
    module.__name__.rpartition(".")[2]: _Format(module.detects, module.read)
    for module in (
        messages,
        llava,
        sharegpt,
        mcq,
        charades,
        qvhighlights,
        nextqa,
        activitynetqa,
    )
}


def read_annotations(
    path: str,
    *,
    format: str = "auto",  # noqa: A002 - as the field of the settings
    label: str = "",
) -> list[Annotation]:
    """All rows of a file, here or in a store, in its order; none is left out.

    `format` is one of FORMATS, or auto: known by the content. Rows without an id get LABEL/NUMBER,
    by default after the file; ids that come again get #2, #3, ... AnnotationError: the file or a
    row of it cannot be read, or its format cannot be told.
    """
    if format != "auto" and format not in FORMATS:
        raise AnnotationError(f"{path}: format {format!r} is not known{nearest(format, FORMATS)}")
    document = read_document(path)
    name = detect(document) if format == "auto" else format
    if document.kind == "object" and name != "mcq":
        raise AnnotationError(f"{path}: expected rows of {name}; it is {document.looks}")
    annotations = FORMATS[name].read(document, label or PurePosixPath(path).stem)
    counts = Counter(one.id for one in annotations)
    seen: Counter[str] = Counter()
    for i, one in enumerate(annotations):
        seen[one.id] += 1
        if seen[one.id] > 1:
            while (again := f"{one.id}#{seen[one.id]}") in counts:  # an id of another row
                seen[one.id] += 1
            annotations[i] = replace(one, id=again)
    return annotations


def detect(document: Document) -> str:
    """The one format that a file has. AnnotationError: none, or more than one."""
    found = [name for name, one in FORMATS.items() if one.detects(document)]
    if len(found) == 1:
        return found[0]
    could_be = f"could be {' or '.join(found)}" if found else "is of no format that is known"
    raise AnnotationError(
        f"{document.path} {could_be}: it is {document.looks}",
        hint=f'say format = "...", one of {", ".join(FORMATS)}',
    )
