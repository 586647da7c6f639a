"""`pipeline encoders`."""

from __future__ import annotations

import click

from encoders import check_encoder, encoder_spec, list_encoders, load_encoder
from pipeline.cli.show import common_options, print_facts, print_json, print_table, set_verbosity

EPILOG = """\b
Examples:
  pipeline encoders list
  pipeline encoders show random-image
  pipeline encoders check random-image"""


@click.group(epilog=EPILOG, no_args_is_help=True)
def encoders() -> None:
    """List, show or check encoders: frames in, features out."""


@encoders.command("list", epilog="\b\nExample:\n  pipeline encoders list")
@common_options
def list_command(*, as_json: bool, quiet: bool, loud: bool) -> None:
    """List the encoders, built in and plugged in."""
    set_verbosity(quiet=quiet, loud=loud)
    specs = [encoder_spec(name) for name in list_encoders()]
    if as_json:
        print_json([spec.stamp() for spec in specs])
        return
    print_table(
        ("encoder", "input", "grid", "dim"),
        [(s.name, f"{s.width} x {s.height}", f"{s.grid[0]} x {s.grid[1]}", s.dim) for s in specs],
    )


@encoders.command(
    epilog="\b\nExample:\n  pipeline encoders show random-image", no_args_is_help=True
)
@click.argument("name")
@common_options
def show(*, name: str, as_json: bool, quiet: bool, loud: bool) -> None:
    """Show what an encoder is: its part of a cache's fingerprint."""
    set_verbosity(quiet=quiet, loud=loud)
    stamp = encoder_spec(name).stamp()
    if as_json:
        print_json(stamp)
    else:
        print_facts([(field, str(value) or "-") for field, value in stamp.items()])


@encoders.command(
    epilog="\b\nExample:\n  pipeline encoders check random-image", no_args_is_help=True
)
@click.argument("name")
@common_options
def check(*, name: str, as_json: bool, quiet: bool, loud: bool) -> int:
    """Run the contract test of encoders on one; exit 1 if it fails."""
    set_verbosity(quiet=quiet, loud=loud)
    problems = check_encoder(load_encoder(name))
    if as_json:
        print_json({"ok": not problems, "name": name, "problems": problems})
    else:
        for problem in problems:
            click.echo(f"{name}: {problem}")
        if not problems:
            click.echo(f"ok: {name}")
    return 1 if problems else 0
