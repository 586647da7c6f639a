"""Manifest: a list that names videos of a cache, or spans of them, as `pipeline run` takes it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path, PurePath

from pipeline.listing import read_remote
from pipeline.signing import learn, to_public
from pipeline.source_files import is_remote, to_path
from pipeline.sources import LIST_EXTENSIONS, parse_list, read_row, resolve_uri
from schemas.errors import SourceError
from schemas.video import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRow:
    """What one row names."""

    where: str
    """Such as list.csv:3."""
    names: tuple[str, ...]
    """Its id, its uri, and the uri as it is written: what may be a video's name, best first."""
    source: Source
    """As `pipeline run` would take the row; without a uri, that is its id."""

    @property
    def span(self) -> tuple[float | None, float | None]:
        """(start, end) in seconds on the source's own clock; None: open."""
        return self.source.start_seconds, self.source.end_seconds


def read_manifest(argument: str) -> list[ManifestRow]:
    """The rows of a txt, csv, tsv, jsonl or parquet, here or in a store, or of text on stdin ("-").

    A row has a uri, an id or both, and perhaps start and end in seconds; a line of text is a uri or
    an id. Relative paths are so to the list. SourceError: it cannot be read, or names nothing.
    """
    data, name, base = _read(argument)
    rows = []
    for row, where in parse_list(data, name, where=argument):
        fields, _ = read_row(row, where=where)
        text, video_id = fields.get("uri"), fields.get("video_id")
        if not isinstance(text, str | None) or (text is None and video_id is None):
            raise SourceError(
                f"{where}: neither a uri nor an id; the columns are {', '.join(map(repr, row))}",
                hint="the first line of a csv or tsv names its columns",
            )
        uri = video_id if text is None else _resolve(text, base=base)
        names = [video_id, *([] if text is None else [uri, to_public(text)])]
        try:
            source = Source(**(fields | {"uri": uri}))
        except SourceError as error:
            raise SourceError(f"{where}: {error.message}") from error
        told = dict.fromkeys(name for name in names if name)
        rows.append(ManifestRow(where=where, names=tuple(told), source=source))
    if not rows:
        raise SourceError(f"{argument}: the list is empty")
    return rows


def _resolve(text: str, *, base: Path | str) -> str:
    # A word may be an id as well, which no store has to be opened for.
    return learn(text) if is_remote(text) else resolve_uri(text, base=base)


def _read(argument: str) -> tuple[bytes, str, Path | str]:
    """(bytes, a name that tells the kind, what relative paths are relative to)."""
    if argument == "-":
        return sys.stdin.buffer.read(), "stdin.txt", Path.cwd()
    name = PurePath(argument.partition("?")[0]).name
    if PurePath(name).suffix.lower() not in LIST_EXTENSIONS:
        raise SourceError(
            f"{argument}: a list is one of {', '.join(sorted(LIST_EXTENSIONS))}",
            hint="a single video is named by --video",
        )
    try:
        if is_remote(argument):
            return read_remote(learn(argument)), name, argument.rpartition("/")[0]
        path = to_path(argument)
        return path.read_bytes(), name, Path(os.path.abspath(path)).parent  # noqa: PTH100
    except OSError as error:
        reason = error.strerror or str(error)
        raise SourceError(f"{argument}: not a readable list: {reason}") from error
