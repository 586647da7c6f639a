"""Document: a file of annotations as rows, before anyone knows what they mean.

JSON, JSONL, CSV, TSV, Parquet and plain lines are told apart by content, never by the name.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.places import Place, read_bytes, to_place
from schemas.errors import AnnotationError
from trainer.data.formats.row import Row

LINE = "line"
"""The one field of rows of a file of plain lines."""
NUM_LOOKED_AT = 100
"""Rows by which a format is known."""
_KNOWN_BY_BYTES = {
    b"\x1f\x8b": "is compressed by gzip; unpack it",
    b"PK\x03\x04": "is a zip file; unpack it",
    b"\xff\xfe": "is UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "is UTF-16 text; save it as UTF-8",
}
_ROW_NAMES = {"messages", "conversations"}
"""What only a row has, however little it says."""
_CHARADES_LINE = re.compile(r"\S+\s+\S+\s+\S+\s*##")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file that could be read: rows, or one JSON object that is no row."""

    path: str
    kind: str
    """JSON, JSONL, CSV, TSV, Parquet, lines or object."""
    rows: list[Row] = field(default_factory=list)
    tree: Mapping[str, Any] = field(default_factory=dict)
    """Of kind object."""

    @property
    def names(self) -> frozenset[str]:
        """The fields of the first rows."""
        return frozenset().union(*(row.fields for row in self.rows[:NUM_LOOKED_AT]))

    @property
    def looks(self) -> str:
        """What it holds, in words."""
        if self.kind == "object":
            some = ", ".join(repr(key) for key in list(self.tree)[:6])
            return f"a JSON object of {len(self.tree)} entries: {some}"
        if self.kind == "lines":
            return f"{len(self.rows)} lines, the first {self.rows[0].fields[LINE][:60]!r}"
        return f"{self.kind} of {len(self.rows)} rows with {', '.join(sorted(self.names)) or '{}'}"


def read_document(path: str) -> Document:
    """The rows of a file, here or in a store. AnnotationError: it cannot be read or holds none."""
    data = _read(to_place(path), path)
    if data.startswith(b"PAR1"):
        return _parse_parquet(data, path)
    for mark, problem in _KNOWN_BY_BYTES.items():
        if data.startswith(mark):
            raise AnnotationError(f"{path} {problem}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AnnotationError(
            f"{path} is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}"
        ) from None
    if "\0" in text:
        raise AnnotationError(f"{path} is not text: it holds a zero byte")
    start = text.lstrip()[:1]
    if not start:
        raise AnnotationError(f"{path} is empty")
    document = _parse_json(text, path) if start in "[{" else _parse_lines(text, path)
    if not document.rows and not document.tree:
        raise AnnotationError(f"{path} holds no row")
    return document


def _read(place: Place, path: str) -> bytes:
    try:
        return read_bytes(place)
    except FileNotFoundError:
        raise AnnotationError(f"{path}: no such file") from None
    except OSError as error:
        raise AnnotationError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse_parquet(data: bytes, path: str) -> Document:
    import pyarrow as pa

    from pipeline.storage import parse_table

    try:
        rows = parse_table(data).to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise AnnotationError(f"{path}: not a readable Parquet file: {error}") from error
    if not rows:
        raise AnnotationError(f"{path} holds no row")
    return Document(path=path, kind="Parquet", rows=_number(rows, path))


def _parse_json(text: str, path: str) -> Document:
    first, _, rest = text.strip().partition("\n")
    if text.lstrip().startswith("{") and rest and _is_json(first):
        return Document(path=path, kind="JSONL", rows=_parse_jsonl(text, path))
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise AnnotationError(
            f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f"{path}: not JSON that can be read: {error}") from None
    _check_text(tree, text, path)
    if isinstance(tree, dict):
        values = list(tree.values())
        if tree.keys() & _ROW_NAMES or any(isinstance(value, str) for value in values):
            return Document(path=path, kind="JSONL", rows=_number([tree], path))  # of one line
        elif len(values) == 1 and isinstance(values[0], list):
            tree = values[0]  # {"annotations": [...]}
        else:
            return Document(path=path, kind="object", tree=tree)
    return Document(path=path, kind="JSON", rows=_number(tree, path))


def _parse_jsonl(text: str, path: str) -> list[Row]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise AnnotationError(f"{where}: not JSON: {what}") from None
        _check_text(value, line, where)
        rows.append(_to_row(value, where))
    return rows


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _check_text(value: Any, text: str, where: str) -> None:
    # Only an escape can bring half of a surrogate pair into decoded text.
    if "\\ud" not in text and "\\uD" not in text:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise AnnotationError(
            f"{where}: holds half of a surrogate pair, which is no text"
        ) from None


def _number(values: list[Any], path: str) -> list[Row]:
    return [_to_row(one, f"{path}: row {number}") for number, one in enumerate(values, start=1)]


def _to_row(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise AnnotationError(f"{where}: must be an object, not {str(value)[:60]!r}")
    return Row(where=where, fields=value)


def _parse_lines(text: str, path: str) -> Document:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    num_blank = next(number for number, line in enumerate(lines) if line.strip())
    first = lines[num_blank]
    tabs, commas = first.count("\t"), first.count(",")
    if _CHARADES_LINE.match(first) or not (tabs or commas):
        rows = [
            Row(where=f"{path}: line {number}", fields={LINE: line})
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]
        return Document(path=path, kind="lines", rows=rows)
    delimiter, kind = ("\t", "TSV") if tabs >= commas else (",", "CSV")
    body = io.StringIO("\n".join(lines[num_blank:]), newline="")
    reader = csv.DictReader(body, delimiter=delimiter, strict=True)
    rows = []
    try:
        columns = list(reader.fieldnames or ())
        if len(set(columns)) < len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            raise AnnotationError(f"{path}: two columns are named {twice!r}")
        for fields in reader:
            where = f"{path}: line {num_blank + reader.line_num}"
            if None in fields or None in fields.values():
                more = "more" if None in fields else "fewer"
                raise AnnotationError(f"{where}: {more} cells than columns")
            rows.append(Row(where=where, fields=fields))
    except csv.Error as error:
        where = f"{path}: line {num_blank + reader.line_num}"
        raise AnnotationError(f"{where}: not {kind}: {error}") from None
    return Document(path=path, kind=kind, rows=rows)
