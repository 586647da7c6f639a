"""`pipeline rejects`."""

from __future__ import annotations

import click

from pipeline.cli.show import common_options, count_text, print_json, print_table, set_verbosity
from schemas.reject import REASONS

EPILOG = """\b
Examples:
  pipeline rejects cache/
  pipeline rejects cache/ --reason timed_out --json"""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.option("--reason", type=click.Choice(sorted(REASONS)), help="Only this reason.")
@common_options
def rejects(*, cache: str, reason: str | None, as_json: bool, quiet: bool, loud: bool) -> None:
    """List the sources of CACHE that could not be used, and why."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.cache import read_info
    from pipeline.layout import CacheLayout
    from pipeline.places import list_sizes, to_place
    from pipeline.storage import read_table

    layout = CacheLayout(to_place(cache))
    if layout.rejects.name not in list_sizes(layout.rejects.parent):
        read_info(layout)  # says what is wrong with the folder
    rows = read_table(layout.rejects).to_pylist()
    rows = [row for row in rows if reason is None or row["reason"] == reason]
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("no rejects")
        return
    rows.sort(key=lambda row: (row["reason"], row["uri"]))
    print_table(
        ("reason", "stage", "source", "detail"),
        [(row["reason"], row["stage"], row["uri"], row["detail"]) for row in rows],
    )
    click.echo()
    for name in sorted({row["reason"] for row in rows}):
        count = sum(1 for row in rows if row["reason"] == name)
        meaning, retryable = REASONS[name]
        again = "; may succeed later" if retryable else ""
        click.echo(f"{name}: {count_text(count, 'source')}: {meaning}{again}")
