"""`pipeline rejects`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import click

from pipeline.cli.show import common_options, count_text, print_json, print_table, set_verbosity
from schemas.errors import UsageError
from schemas.reject import REASONS

EPILOG = """\b
Examples:
  pipeline rejects cache/
  pipeline rejects cache/ --reason timed_out --json
  pipeline rejects cache/ --retryable --as-sources > again.jsonl"""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.option(
    "--reason",
    type=click.Choice(sorted(REASONS)),
    metavar="REASON",
    help="Only this reason; docs/format.md lists them.",
)
@click.option(
    "--retryable/--permanent",
    "retryable",
    default=None,
    help="Only those that may succeed later although their file is the same, or only the others.",
)
@click.option(
    "--as-sources",
    is_flag=True,
    help="Print the sources as a list (jsonl) that `pipeline run` takes, with all their columns.",
)
@common_options
def rejects(
    *,
    cache: str,
    reason: str | None,
    retryable: bool | None,
    as_sources: bool,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """List the sources of CACHE that could not be used, and why."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.cache import read_info
    from pipeline.layout import CacheLayout
    from pipeline.places import list_sizes, to_place
    from pipeline.storage import read_table

    if as_json and as_sources:
        raise UsageError("--as-sources prints a list of its own form: leave out --json")
    layout = CacheLayout(to_place(cache))
    if layout.rejects.name not in list_sizes(layout.rejects.parent):
        read_info(layout)  # says what is wrong with the folder
    rows = [
        row
        for row in read_table(layout.rejects).to_pylist()
        if reason in (None, row["reason"]) and retryable in (None, row["retryable"])
    ]
    if as_sources:
        _print_sources(layout, rows)
    elif as_json:
        print_json(rows)
    elif not rows:
        click.echo("no rejects")
    else:
        _print_table(rows)
        _print_reasons(rows, cache)


def _print_sources(layout: Any, rows: Sequence[dict[str, Any]]) -> None:
    from pipeline.probing import read_probes
    from pipeline.rejected import as_line, rejected_sources

    for source, _ in rejected_sources(read_probes(layout), rows):
        click.echo(as_line(source))


def _print_table(rows: list[dict[str, Any]]) -> None:
    rows.sort(key=lambda row: (not row["retryable"], row["reason"], row["uri"]))
    print_table(
        ("reason", "stage", "source", "detail"),
        [(row["reason"], row["stage"], row["uri"], row["detail"]) for row in rows],
    )


def _print_reasons(rows: Sequence[dict[str, Any]], cache: str) -> None:
    titles = {True: "may succeed later", False: "permanent, unless the source changes"}
    for retryable, title in titles.items():
        part = [row["reason"] for row in rows if row["retryable"] is retryable]
        if part:
            click.echo(f"\n{title}: {count_text(len(part), 'source')}")
        for name in sorted(set(part)):
            click.echo(f"  {name}: {count_text(part.count(name), 'source')}: {REASONS[name][0]}")
        if part and retryable:
            click.echo(f"  again: pipeline run --retry-rejects {shlex.quote(cache)}")
