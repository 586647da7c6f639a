"""Read events that people have: subtitles (srt, vtt), or tables (csv, tsv, jsonl, parquet)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pipeline.cache import FeatureCache
from pipeline.events import check_kind, list_kinds, read_events, read_maker, write_events
from pipeline.signing import to_public
from pipeline.storage import parse_table
from schemas.errors import UsageError
from schemas.event import Event
from schemas.json_text import parse_json
from schemas.settings import nearest

CAPTION = "caption"
"""The kind of what does not say its own."""
IMPORTED = {"by": "import"}
SUBTITLES = (".srt", ".vtt")
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{1,2})[.,](\d{1,3})"
_CUE = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_TAG = re.compile(r"<[^>\n]*>|\{\\[^}\n]*\}")
_COLUMNS = ("video", "start", "end")


def import_events(
    cache: FeatureCache, path: Path, *, kind: str = CAPTION, video: str | None = None
) -> list[Event]:
    """The events of a file, whose videos are in the cache.

    Of subtitles the video is the one that is called so, with or without its ending, unless `video`
    names it. A table has the columns video, start and end (seconds), and may have text, kind and
    score; `kind` is for rows without their own. UsageError: the file cannot be read, or a row is no
    event of a video of the cache, with its number.
    """
    check_kind(kind)
    ending = path.suffix.lower()
    if ending not in (*SUBTITLES, *TABLES):
        known = ", ".join(one[1:] for one in (*SUBTITLES, *TABLES))
        raise UsageError(f"{path}: events are read from files that end in {known}")
    try:
        data = path.read_bytes()
        rows = list(_rows(data, ending))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, csv.Error) as error:  # of Arrow too
        raise UsageError(f"{path}: cannot be read: {error}") from error
    names = _names(cache)
    events = []
    for number, row in rows:
        name = video or row.get("video") or path.stem
        try:
            event = _event(row, video_id=_find(str(name), names), kind=kind)
            check_kind(event.kind)
        except (ValueError, TypeError, OverflowError, KeyError, UsageError) as error:
            what = f"no column {error}" if isinstance(error, KeyError) else error
            raise UsageError(
                f"{path}, {'cue' if ending in SUBTITLES else 'row'} {number}: {what}",
                hint="docs/events.md says what an event is, and which names a video has",
            ) from error
        events.append(event)
    return events


def lie_outside(cache: FeatureCache, events: Sequence[Event]) -> list[Event]:
    """Those that no clip of their video can overlap: before its first one or after its last."""
    starts, ends = (cache.index.column(f"{one}_seconds").to_numpy() for one in ("start", "end"))
    rows = cache.rows_by_video
    spans = {
        video_id: (starts[rows[video_id]].min(), ends[rows[video_id]].max())
        for video_id in {event.video_id for event in events}
    }
    return [
        event
        for event in events
        if event.end_seconds < spans[event.video_id][0]
        or event.start_seconds >= spans[event.video_id][1]
    ]


def add_imported(cache: FeatureCache, events: Iterable[Event]) -> dict[str, int]:
    """Put events into the tables of their kinds: kind -> how many.

    They replace those of the same kind and video. UsageError: a detector has made such a table.
    StorageError.
    """
    by_kind: dict[str, dict[str, list[Event]]] = {}
    for event in events:
        by_kind.setdefault(event.kind, {}).setdefault(event.video_id, []).append(event)
    there = list_kinds(cache.layout)
    for kind in by_kind:
        maker, _ = read_maker(cache.layout, kind=kind) if kind in there else (IMPORTED, None)
        if maker != IMPORTED:
            raise UsageError(
                f"{cache.layout.events_of(kind)} was made by {maker.get('by', 'somebody else')}",
                hint="name another kind with --kind, or delete the table",
            )
    for kind, fresh in by_kind.items():
        old = read_events(cache.layout, kinds=[kind]) if kind in there else {}
        joined = [event for some in (old | fresh).values() for event in some]
        write_events(cache.layout, kind=kind, events=joined, made_by=IMPORTED)
    return {kind: sum(map(len, fresh.values())) for kind, fresh in by_kind.items()}


def _rows(data: bytes, ending: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if ending == ".parquet":
        yield from enumerate(parse_table(data).to_pylist(), start=1)
        return
    text = data.decode("utf-8-sig")
    if ending in SUBTITLES:
        yield from _cues(text)
    elif ending == ".jsonl":
        lines = [line for line in text.splitlines() if line.strip()]
        for number, line in enumerate(lines, start=1):
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no object")
            yield number, row
    else:
        reader = csv.DictReader(
            io.StringIO(text, newline=""), delimiter="\t" if ending == ".tsv" else ","
        )
        yield from enumerate(reader, start=1)


def _cues(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Cues of subtitles, without their marks; what is no cue (numbers, notes, styles) is not."""
    number = 0
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n").replace("\r", "\n")):
        lines = block.split("\n")
        place = next((i for i, line in enumerate(lines) if _CUE.match(line)), None)
        if place is None:
            continue
        number += 1
        match = _CUE.match(lines[place])
        assert match is not None
        words = " ".join(" ".join(_TAG.sub("", line).split()) for line in lines[place + 1 :])
        start, end = _seconds(match.groups()[:4]), _seconds(match.groups()[4:])
        if words.strip():
            yield number, {"start": start, "end": end, "text": words.strip()}


def _seconds(parts: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, fraction = parts
    assert minutes and seconds and fraction
    whole = int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds)
    return whole + int(fraction.ljust(3, "0")) / 1000


def _event(row: Mapping[str, Any], *, video_id: str, kind: str) -> Event:
    score, text = row.get("score"), str(row.get("text") or "")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("holds half of a surrogate pair, which is no text")
    return Event(
        video_id=video_id,
        start_seconds=float(row["start"]),
        end_seconds=float(row["end"]),
        kind=str(row.get("kind") or kind),
        text=text,
        score=None if score in (None, "") else float(score),
    )


def _names(cache: FeatureCache) -> dict[str, set[str]]:
    """What a video may be called -> the videos that are."""
    names: dict[str, set[str]] = {}
    for video_id in cache.videos:
        names.setdefault(video_id, set()).add(video_id)
    aliases = [*cache.aliases.items()]
    # A uri stands for each video that is a span of it.
    aliases += [(uri, video_id) for video_id, uris in cache.uris.items() for uri in uris]
    for alias, video_id in aliases:
        file = PurePath(alias.partition("?~")[0]).name
        for name in {alias, file, file.rpartition(".")[0] or file}:
            names.setdefault(name, set()).add(video_id)
    return names


def _find(name: str, names: Mapping[str, set[str]]) -> str:
    found = names.get(name) or names.get(to_public(name)) or set()
    if len(found) == 1:
        return next(iter(found))
    if found:
        raise ValueError(f"{name!r} may be one of {len(found)} videos: name it by its id or uri")
    raise ValueError(f"no video {name!r} in the cache{nearest(name, names)}")
