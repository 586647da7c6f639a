"""`pipeline events`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.pace import Pace
from pipeline.cli.progress import LINE_SECONDS
from pipeline.cli.show import (
    common_options,
    count_text,
    duration_text,
    print_json,
    print_table,
    printable,
    set_verbosity,
)
from schemas.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pipeline.cache import FeatureCache
    from pipeline.finding_events import Detector, KindReport
    from schemas.event import Event

EPILOG = """\b
Examples:
  pipeline events cache/
  pipeline events cache/ --scenes --speech
  pipeline events cache/ --transcripts whisper-small/
  pipeline events cache/ --kind scene -o scenes.csv    # then: pipeline run scenes.csv scenes/
  pipeline events cache/ --import talk.srt

Detectors look at the sources again, only at those of videos that they have not looked at. What they
find lies beside the cache, which itself does not change: docs/events.md."""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.option("--scenes", is_flag=True, help="Find where shots begin, by TransNetV2.")
@click.option("--speech", is_flag=True, help="Find where somebody speaks, by Silero VAD.")
@click.option(
    "--transcripts",
    metavar="FOLDER",
    help="Find what is said, by a Whisper model of transformers; where there is speech, if that"
    " was looked for.",
)
@click.option("--language", default="", help="Of --transcripts, such as en; else the model tells.")
@click.option("--again", is_flag=True, help="Look at all videos, also those looked at before.")
@click.option(
    "--import",
    "imports",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Add events of yours: srt, vtt, csv, tsv, jsonl or parquet; repeatable.",
)
@click.option("--kind", help="Show the events of this kind; of --import: what they are.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="CSV",
    help="Write the events of --kind as spans, a list that `pipeline run` takes.",
)
@click.option("--device", default="auto", show_default=True, help="Where detectors compute.")
@common_options
def events(
    *,
    cache: str,
    scenes: bool,
    speech: bool,
    transcripts: str | None,
    language: str,
    again: bool,
    imports: tuple[Path, ...],
    kind: str | None,
    out: Path | None,
    device: str,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """List, find or import events of the videos of CACHE: scenes, speech, what is said."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.cache import open_cache

    finds = scenes or speech or transcripts is not None
    if language and transcripts is None:
        raise UsageError("--language is for --transcripts")
    if again and not finds:
        raise UsageError("--again: what?", hint="say --scenes, --speech or --transcripts FOLDER")
    if out is not None and (finds or imports or kind is None):
        raise UsageError("-o writes the events of one --kind", hint="say: --kind scene -o FILE")
    if imports and finds:
        raise UsageError("events are found or imported, not both at once", hint="call it twice")
    if kind is not None and finds:
        raise UsageError("--kind is not for finding events: detectors find their own kinds")
    with open_cache(cache) as opened:
        if out is not None:
            assert kind is not None
            _write_spans(opened, kind, out, as_json=as_json)
        elif finds:
            detectors = _detectors(
                opened,
                scenes=scenes,
                speech=speech,
                transcripts=transcripts,
                language=language,
                device=device,
            )
            _find(opened, detectors, again=again, as_json=as_json, quiet=quiet)
        elif imports:
            _import(opened, imports, kind=kind, as_json=as_json, quiet=quiet)
        elif kind is not None:
            _show(opened, kind, as_json=as_json)
        elif as_json:
            print_json({"kinds": _kinds(opened)})
        else:
            _list(opened)


def _detectors(
    cache: FeatureCache,
    *,
    scenes: bool,
    speech: bool,
    transcripts: str | None,
    language: str,
    device: str,
) -> Iterator[Detector]:
    # Each is asked for when the one before is done with all videos.
    from encoders.devices import choose_device
    from pipeline.events import list_kinds, read_maker
    from pipeline.finding_events import (
        not_looked_at,
        scene_detector,
        speech_detector,
        transcript_detector,
    )
    from pipeline.finding_speech import SPEECH

    if device != "auto":
        device = choose_device(device)
    if scenes:
        yield scene_detector(device=device)
    if speech or (transcripts is not None and not_looked_at(cache, kind=SPEECH)):
        yield speech_detector()
    if transcripts is not None:
        there = SPEECH in list_kinds(cache.layout)
        maker = read_maker(cache.layout, kind=SPEECH)[0] if there else None
        yield transcript_detector(transcripts, device=device, language=language, speech=maker)


def _find(
    cache: FeatureCache,
    detectors: Iterator[Detector],
    *,
    again: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    from pipeline.finding_events import add_events

    reports = []
    for detector in detectors:
        shown = _Shown(quiet=quiet)
        try:
            reports.append(add_events(cache, detector, again=again, progress=shown))
        finally:
            shown.close()
    if as_json:
        found = [
            {
                "kind": one.kind,
                "videos": one.num_videos,
                "events": one.num_events,
                "failed": one.failed,
            }
            for one in reports
        ]
        print_json({"found": found, "kinds": _kinds(cache)})
        return
    print_table(
        ("kind", "looked at", "found", "before", "failed"),
        [
            (one.kind, one.num_videos, one.num_events, one.num_before, len(one.failed))
            for one in reports
        ],
    )
    if not quiet:
        for one in reports:
            _say_failures(one)


def _say_failures(report: KindReport) -> None:
    for reason, count in report.reasons.items():
        example = next(i for i, why in report.failed.items() if why.partition(":")[0] == reason)
        click.echo(
            f"{report.kind}: {count_text(count, 'video')} could not be looked at: {reason}, such as"
            f" {example}; the next call tries again",
            err=True,
        )


def _import(
    cache: FeatureCache, paths: Sequence[Path], *, kind: str | None, as_json: bool, quiet: bool
) -> None:
    from pipeline.importing_events import CAPTION, add_imported, import_events, lie_outside

    found = [event for path in paths for event in import_events(cache, path, kind=kind or CAPTION)]
    counts = add_imported(cache, found)
    if (outside := lie_outside(cache, found)) and not quiet:
        first = outside[0]
        click.echo(
            f"{len(outside):,} of {count_text(len(found), 'event')} outside of the clips of the"
            f" video, such as {printable(first.video_id)} {first.start_seconds:g} to"
            f" {first.end_seconds:g}: times are seconds on its own clock",
            err=True,
        )
    if as_json:
        print_json({"imported": counts, "kinds": _kinds(cache)})
        return
    for one, count in counts.items():
        click.echo(f"{one}: {count_text(count, 'event')} of {_num_videos(found, one)}")
    if not counts:
        click.echo("no events")


def _num_videos(events: Sequence[Event], kind: str) -> str:
    return count_text(len({one.video_id for one in events if one.kind == kind}), "video")


def _write_spans(cache: FeatureCache, kind: str, out: Path, *, as_json: bool) -> None:
    from pipeline.event_manifest import write_manifest
    from pipeline.events import read_events

    count, left_out = write_manifest(cache, read_events(cache.layout, kinds=[kind]), out)
    if as_json:
        print_json({"spans": count, "left_out": left_out, "file": str(out)})
        return
    more = f", {count_text(left_out, 'event')} without length or file left out" if left_out else ""
    click.echo(f"{count_text(count, 'span')} in {out}{more}")


def _show(cache: FeatureCache, kind: str, *, as_json: bool) -> None:
    from pipeline.events import read_events

    rows = [
        (one.video_id, one.start_seconds, one.end_seconds, one.score, one.text)
        for some in read_events(cache.layout, kinds=[kind]).values()
        for one in some
    ]
    header = ("video", "start", "end", "score", "text")
    if as_json:
        names = ("video_id", "start_seconds", "end_seconds", "score", "text")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif rows:
        print_table(header, [tuple("" if cell is None else cell for cell in row) for row in rows])
    else:
        click.echo(f"no event of the kind {kind}")


def _kinds(cache: FeatureCache) -> list[dict[str, Any]]:
    from pipeline.events import list_kinds, read_events, read_maker

    kinds = []
    for kind in list_kinds(cache.layout):
        found = read_events(cache.layout, kinds=[kind])
        maker, in_vain = read_maker(cache.layout, kind=kind)
        known = found.keys() | (in_vain or ())
        missing = 0 if in_vain is None else sum(one not in known for one in cache.videos)
        every = [event for some in found.values() for event in some]
        kinds.append(
            {
                "kind": kind,
                "videos": len(found),
                "events": len(every),
                "seconds": round(sum(e.end_seconds - e.start_seconds for e in every), 3),
                "not_looked_at": missing,
                "made_by": maker,
            }
        )
    return kinds


def _list(cache: FeatureCache) -> None:
    kinds = _kinds(cache)
    if not kinds:
        click.echo("no events; find some with --scenes or --speech, or --import your own")
        return
    print_table(
        ("kind", "videos", "events", "lasting", "not looked at", "made by"),
        [
            (
                one["kind"],
                one["videos"],
                one["events"],
                duration_text(one["seconds"]),
                one["not_looked_at"],
                _maker_text(one["made_by"]),
            )
            for one in kinds
        ],
    )


def _maker_text(maker: Mapping[str, Any]) -> str:
    version = maker.get("version") or maker.get("model_sha256", "")[:8]
    return f"{maker.get('by', 'unknown')} {version}".rstrip()


class _Shown:
    """How far a detector is: a line on a terminal that changes, else one now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._on_terminal = quiet, sys.stderr.isatty()
        self._pace = Pace()
        self._said = time.monotonic()

    def __call__(self, kind: str, done: float, total: float) -> None:
        now = time.monotonic()
        self._pace.update(round(1000 * done), now=now)
        every = 0.2 if self._on_terminal else LINE_SECONDS
        if self._quiet or now - self._said < every:
            return
        self._said = now
        left = self._pace.left_seconds(round(1000 * (total - done)), now=now)
        words = f"{kind}: {duration_text(done)} of {duration_text(total)} of video"
        words += "" if left is None else f", {duration_text(left)} left"
        if self._on_terminal:
            click.echo(f"\r{words:78}", err=True, nl=False)
        else:
            click.echo(words, err=True)

    def close(self) -> None:
        if self._on_terminal and not self._quiet:
            click.echo("\r" + " " * 78 + "\r", err=True, nl=False)
