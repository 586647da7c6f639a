"""Read what the user names as SOURCES: files, folders, globs and lists of sources, or URLs."""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import posixpath
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from pipeline.listing import look_up, read_remote, walk
from pipeline.signing import learn, to_public
from pipeline.source_files import is_remote, to_path, to_uri
from pipeline.stores import open_store
from schemas.errors import NoSources, SourceError
from schemas.json_text import parse_json
from schemas.video import Source

_VIDEO_EXTENSIONS = (
    "3g2,3gp,amv,apng,asf,avi,dv,f4v,flv,gif,h264,hevc,ivf,m1v,m2ts,m2v,m4v,mjpeg,mkv,mov,mp4,mpeg,"
    "mpg,mts,mxf,nut,ogv,rm,rmvb,ts,vob,webm,wmv,y4m"
)
# A folder's sound files become rejects with a reason, never a silent gap.
_SOUND_EXTENSIONS = "aac,aif,aiff,flac,m4a,mka,mp3,oga,ogg,opus,wav,wma"
MEDIA_EXTENSIONS = frozenset(f"{_VIDEO_EXTENSIONS},{_SOUND_EXTENSIONS}".split(","))
LIST_EXTENSIONS = frozenset({".txt", ".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"})
_COLUMNS = {
    "uri": "uri",
    "id": "video_id",
    "video_id": "video_id",
    "start": "start_seconds",
    "start_seconds": "start_seconds",
    "end": "end_seconds",
    "end_seconds": "end_seconds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceList:
    """What was named, without repetition, in the order given."""

    sources: tuple[Source, ...]
    num_ignored: int
    """Files in folders that are not media by their extension."""


def read_sources(arguments: Iterable[str], *, limit: int | None = None) -> SourceList:
    """The sources that the arguments name; the first `limit` of them.

    A file is a list of sources by its extension (txt, csv, tsv, jsonl, parquet), else a video; "-"
    is a list of paths on stdin. SourceError: a path that does not exist, or a list that cannot be
    read. NoSources: no source at all.
    """
    found: dict[Any, Source] = {}
    num_ignored = 0
    for argument in arguments:
        sources, ignored = _read_argument(argument)
        num_ignored += ignored
        for source in sources:
            found.setdefault(source.identity, source)
    if not found:
        ignored_too = f"; {num_ignored} other files were ignored" if num_ignored else ""
        raise NoSources(
            f"no video in {', '.join(arguments)}{ignored_too}",
            hint="name files outright to try them whatever their extension",
        )
    return SourceList(sources=tuple(found.values())[:limit], num_ignored=num_ignored)


def _read_argument(argument: str) -> tuple[list[Source], int]:
    if not argument:
        raise SourceError("an empty path was given as a source")
    if argument == "-":
        return list(_text_rows(os.fsdecode(sys.stdin.buffer.read()), base=Path.cwd())), 0
    if is_remote(argument):
        return _read_remote(argument)
    path = to_path(argument)
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:
        raise SourceError(f"{argument[:80]}: not a path: {error.args[-1]}") from error
    if (path / "cache.json").exists():
        raise SourceError(f"{argument} is a cache", hint="SOURCES come first, CACHE comes last")
    if is_folder:
        return _walk(path)
    if exists:
        if _is_list(path.name, where=str(path)):
            return _nonempty(_read_local_list(path), path), 0
        return [Source(uri=to_uri(str(path)))], 0
    if glob.has_magic(argument):
        matches = sorted(glob.glob(argument, recursive=True))  # noqa: PTH207 - absolute patterns
        if matches:
            results = [_read_argument(match) for match in matches]
            return [s for sources, _ in results for s in sources], sum(n for _, n in results)
        raise NoSources(f"{argument}: no file matches")
    raise SourceError(f"{argument}: no such file or folder")


def _read_remote(url: str) -> tuple[list[Source], int]:
    found = look_up(url)
    if not found:
        what = "file matches" if "*" in url else "such file or folder"
        raise SourceError(f"{to_public(url)}: no {what}")
    sources: list[Source] = []
    num_ignored = 0
    for one in found:
        if one.is_folder:
            uris, ignored = walk(one.uri, is_media=_is_media)
            sources += [Source(uri=uri) for uri in uris]
            num_ignored += ignored
        elif _is_list(_name_in(one.uri), where=one.uri):
            sources += _nonempty(_read_remote_list(one.uri), one.uri)
        else:
            sources.append(Source(uri=one.uri))
    return sources, num_ignored


def _name_in(uri: str) -> str:
    return uri.partition("?~")[0].rpartition("/")[2]


def _is_media(name: str) -> bool:
    return not name.startswith(".") and name.rpartition(".")[2].lower() in MEDIA_EXTENSIONS


def _is_list(name: str, *, where: str) -> bool:
    extension = PurePath(name).suffix.lower()
    if extension == ".json":
        raise SourceError(f"{where}: a list is one of {', '.join(sorted(LIST_EXTENSIONS))}")
    return extension in LIST_EXTENSIONS


def _nonempty(sources: list[Source], path: Path | str) -> list[Source]:
    if not sources:
        raise NoSources(f"{path}: the list is empty")
    return sources


def _walk(folder: Path) -> tuple[list[Source], int]:
    sources, ignored = [], 0

    def refuse(error: OSError) -> None:
        raise SourceError(f"{error.filename}: cannot be read: {error.strerror}") from error

    seen: set[tuple[int, int]] = set()
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        status = Path(parent).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link back up
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if "cache.json" in names:  # a cache inside the videos' folder is not input
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if _is_media(name):
                sources.append(Source(uri=to_uri(os.path.join(parent, name))))  # noqa: PTH118
            else:
                ignored += 1
    return sources, ignored


def _read_local_list(path: Path) -> list[Source]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: not a readable list of sources: {error}") from error
    return _read_list(data, path.name, base=path.absolute().parent, where=str(path))


def _read_remote_list(uri: str) -> list[Source]:
    try:
        data = read_remote(uri)
    except FileNotFoundError as error:
        raise SourceError(str(error)) from None
    base = uri.partition("?~")[0].rpartition("/")[0]
    return _read_list(data, _name_in(uri), base=base, where=uri)


def _read_list(data: bytes, name: str, *, base: Path | str, where: str) -> list[Source]:
    # Rows are relative to `base`, a folder or the URL of one.
    rows = parse_list(data, name, where=where)
    return [_to_source(row, base=base, where=place) for row, place in rows]


def parse_list(data: bytes, name: str, *, where: str) -> Iterator[tuple[dict[Any, Any], str]]:
    """(row, where it stands) of a list of sources, whose kind its name tells; of text, {uri: line}.

    SourceError: it cannot be read.
    """
    extension = PurePath(name).suffix.lower()
    try:
        if extension == ".parquet":
            from pipeline.storage import parse_table

            rows = parse_table(data).to_pylist()
            yield from ((row, where) for row in rows)
            return
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, ValueError) as error:
        raise SourceError(f"{where}: not a readable list of sources: {error}") from error
    if extension in (".csv", ".tsv"):
        delimiter = "\t" if extension == ".tsv" else ","
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
        try:
            for row in reader:
                yield _whole(row, reader, where), f"{where}:{reader.line_num}"
        except csv.Error as error:
            raise SourceError(f"{where}:{reader.line_num}: {error}") from error
        return
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"{where}:{number}"
        if line.strip():
            is_text = extension == ".txt"
            yield {"uri": line} if is_text else _parse_line(line, where=place), place


def _whole(row: dict[Any, Any], reader: Any, where: str) -> dict[Any, Any]:
    # DictReader fills a short row with None; a cell that is there is text.
    if None in row.values():
        raise SourceError(f"{where}:{reader.line_num}: fewer cells than columns")
    return row


def _text_rows(text: str, *, base: Path | str) -> Iterator[Source]:
    for line in text.split("\n"):
        if line.strip():
            yield Source(uri=resolve_uri(line.rstrip("\r"), base=base))


def _parse_line(line: str, *, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise SourceError(f"{where}: not JSON: {error}") from error
    if isinstance(row, str):
        return {"uri": row}
    if not isinstance(row, dict):
        raise SourceError(f"{where}: expected an object with a uri, got {line.strip()[:60]}")
    return row


def _to_source(row: dict[Any, Any], *, base: Path | str, where: str) -> Source:
    fields, extra = read_row(row, where=where)
    uri = fields.get("uri")
    if not isinstance(uri, str):
        raise SourceError(
            f"{where}: no column 'uri'; the columns are {', '.join(map(repr, row))}",
            hint="the first line of a csv or tsv names its columns",
        )
    fields["uri"] = resolve_uri(uri, base=base)
    try:
        return Source(extra=extra, **fields)
    except SourceError as error:
        raise SourceError(f"{where}: {error.message}") from error


def read_row(row: dict[Any, Any], *, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of `Source` that a row fills, and its other columns. SourceError."""
    if None in row:
        raise SourceError(f"{where}: more cells than columns")
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"{where}: holds half of a surrogate pair, which is no text") from error
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in row.items():
        field = _COLUMNS.get(name.strip().lower())
        if field is None:
            extra[name] = to_public(value) if isinstance(value, str) and is_remote(value) else value
        elif value is not None and value != "":
            fields[field] = _to_seconds(name, value, where) if "seconds" in field else value
    if "video_id" in fields:
        fields["video_id"] = str(fields["video_id"])
    return fields, extra


def _to_seconds(name: str, value: Any, where: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SourceError(f"{where}: {name} = {value!r} must be a number of seconds") from error


def resolve_uri(uri: str, *, base: Path | str) -> str:
    """A uri as a list has it, which lies in the folder `base` or below its URL, as a source's."""
    if is_remote(uri):
        open_store(uri)  # UsageError for all of them now, not a reject for each one later
        return learn(uri)
    if isinstance(base, Path) or uri.startswith(("/", "file://")):
        return to_uri(str(base / to_path(uri) if isinstance(base, Path) else to_path(uri)))
    scheme, _, rest = base.partition("://")
    place, _, folder = rest.partition("/")
    return learn(f"{scheme}://{place}{posixpath.normpath('/' + posixpath.join(folder, uri))}")
