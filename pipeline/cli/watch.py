"""`pipeline watch`."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.run import cache_path, choose_recipe, execute, run, warn_of_random
from pipeline.cli.show import count_text, duration_text, set_verbosity, size_text
from pipeline.layout import CacheLayout
from pipeline.places import to_place
from schemas.account import outlook
from schemas.errors import ReelcacheError, UsageError

if TYPE_CHECKING:
    from pipeline.watching import PassReport

SHARED = (
    "recipe",
    "overrides",
    "weights",
    "workers",
    "decoders",
    "device",
    "batch",
    "fetch_bytes",
    "compile",
    "max_reject_rate",
)
"""Options that are those of `pipeline run`."""

EPILOG = """\b
Examples:
  pipeline watch inbox/ cache/
  pipeline watch inbox/ cache/ --interval 5 --settle 60 --json
  pipeline watch list.csv cache/ --once

SOURCES are those of `pipeline run`; a list may be rewritten. Stop it with Ctrl-C or SIGTERM, or
in any other way: what is committed is kept, and the same command goes on. --max-reject-rate is over
all sources that have settled, and ends the watch."""


@click.command(
    epilog=EPILOG,
    no_args_is_help=True,
    params=[param for param in run.params if param.name in SHARED],
)
@click.argument("paths", nargs=-1, metavar="SOURCES... CACHE")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.01),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Pause between two passes; longer after an error.",
)
@click.option(
    "--settle",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Take a file once it has not changed for so long. [default: the interval]",
)
@click.option("--passes", type=click.IntRange(min=1), help="End after so many passes.")
@click.option("--once", is_flag=True, help="End when all that is there is done.")
@click.option(
    "--limit", type=click.IntRange(min=1), help="Take at most N new sources a pass, first come."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON a pass.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
@click.option("-v", "--verbose", "loud", is_flag=True, help="Say more on stderr.")
@click.pass_obj
def watch(
    beam_arguments: tuple[str, ...],
    *,
    paths: tuple[str, ...],
    recipe: str | None,
    overrides: tuple[str, ...],
    weights: tuple[str, ...],
    workers: int,
    decoders: int | None,
    device: str,
    batch: int | None,
    fetch_bytes: float,
    compile: bool,  # noqa: A002 - the option's name
    max_reject_rate: float,
    interval: float,
    settle: float | None,
    passes: int | None,
    once: bool,
    limit: int | None,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> int:
    """Cache videos in CACHE as they arrive: look, take what is new and whole, commit, pause."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline import watching
    from pipeline.options import RunOptions

    if len(paths) < 2:
        raise UsageError("name SOURCES and, as the last argument, the CACHE folder")
    *sources, cache = paths
    if "-" in sources:
        raise UsageError("stdin cannot be watched: name a folder, a glob or a list")
    cache = cache_path(cache)
    layout = CacheLayout(to_place(cache))
    chosen = choose_recipe(layout, recipe, overrides=overrides, weights=weights)
    if not quiet:
        warn_of_random(chosen)
    options = RunOptions(
        num_workers=workers,
        num_decoders=decoders,
        device=device,
        compile=compile,
        max_batch=batch,
        fetch_bytes=int(fetch_bytes),
        max_reject_rate=max_reject_rate,
        keep_encoders=workers == 1,
        beam_arguments=beam_arguments,
    )
    teller = _Teller(as_json=as_json, quiet=quiet, loud=loud)
    last = watching.watch(
        sources,
        layout=layout,
        run=lambda found: execute(found, chosen, cache=cache, options=options, quiet=quiet),
        settings=watching.WatchSettings(
            interval_seconds=interval,
            settle_seconds=interval if settle is None else settle,
            num_passes=passes,
            once=once,
            limit=limit,
        ),
        tell=teller,
    )
    return last.error.exit_code if last.error else 0


class _Teller:
    """Says what each pass did: people are told only what is news."""

    def __init__(self, *, as_json: bool, quiet: bool, loud: bool) -> None:
        self._as_json, self._quiet, self._loud = as_json, quiet, loud
        self._said: Any = None

    def __call__(self, report: PassReport) -> None:
        if self._as_json:
            click.echo(json.dumps(report.to_json(), ensure_ascii=False))
        problems: list[ReelcacheError] = [*report.complaints]
        problems += [report.error] if report.error else []
        news = (report.seen, report.waiting, report.absent, [error.message for error in problems])
        if not (report.new or self._loud) and news == self._said:
            return
        self._said = news
        for error in problems:
            click.echo(f"Error: {error.message}", err=True)
            if error.hint:
                click.echo(f"Hint: {error.hint}", err=True)
        if not self._quiet:
            click.echo(_line(report), err=True)


def _line(report: PassReport) -> str:
    others = {
        "still being written": report.waiting,
        "not there": report.absent,
        "left for the next pass": report.left,
    }
    told = [f"{count} {what}" for what, count in others.items() if count]
    aside = f" ({', '.join(told)})" if told else ""
    parts = [
        f"pass {report.number}: {report.new or 'nothing'} new of"
        f" {count_text(report.seen, 'source')}{aside}"
    ]
    done = report.run
    if done is not None:
        parts.append(
            f"cached {count_text(done.videos, 'video')}, {count_text(done.clips, 'clip')},"
            f" {size_text(done.bytes)}"
        )
        if done.rejects:
            parts.append(f"rejected so far: {outlook(done.rejects)}")
    if report.latencies_seconds:
        median = statistics.median(report.latencies_seconds)
        worst = max(report.latencies_seconds)
        parts.append(f"{median:.1f} s from arrival to cache (at most {worst:.1f} s)")
    if report.clips_left is None or report.clips_left > 0:
        left = "an unknown number of" if report.clips_left is None else f"{report.clips_left:,}"
        parts.append(f"{left} clips left")
    if report.new:
        parts.append(f"took {duration_text(report.seconds)}")
    if report.error and report.next_seconds is not None:
        parts.append(f"again in {duration_text(report.next_seconds)}")
    return "; ".join(parts)
