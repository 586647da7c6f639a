"""`pipeline recipes`."""

from __future__ import annotations

import click

from pipeline.cli.show import common_options, print_json, print_table, set_verbosity
from schemas.recipe import Recipe, list_recipes

EPILOG = """\b
Examples:
  pipeline recipes list
  pipeline recipes show tiny --set sampling.fps=1
  pipeline recipes check my-recipe.toml"""


@click.group(epilog=EPILOG, no_args_is_help=True)
def recipes() -> None:
    """List, show or check recipes: what the bytes of a cache are."""


@recipes.command("list", epilog="\b\nExample:\n  pipeline recipes list")
@common_options
def list_command(*, as_json: bool, quiet: bool, loud: bool) -> None:
    """List the shipped recipes."""
    set_verbosity(quiet=quiet, loud=loud)
    loaded = [Recipe.load(name) for name in list_recipes()]
    if as_json:
        print_json([{"name": r.name, "description": r.description} for r in loaded])
    else:
        print_table(("recipe", "what"), [(r.name, r.description) for r in loaded])


@recipes.command(
    epilog="\b\nExample:\n  pipeline recipes show tiny --set sampling.fps=1", no_args_is_help=True
)
@click.argument("name")
@click.option("--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Change a field.")
@common_options
def show(*, name: str, overrides: tuple[str, ...], as_json: bool, quiet: bool, loud: bool) -> None:
    """Show every field of a recipe, by name or path, and its fingerprint."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.encoding import stamp_streams

    recipe = Recipe.load(name, overrides=overrides)
    stamps = stamp_streams(recipe)
    if as_json:
        print_json(
            {
                "recipe": recipe.to_mapping(),
                "stamps": stamps,
                "fingerprint": recipe.fingerprint(stamps),
            }
        )
        return
    rows = _leaves(recipe.to_mapping())
    rows += _leaves(stamps, path="stamp.")
    print_table(("field", "value"), [*rows, ("fingerprint", recipe.fingerprint(stamps))])


@recipes.command(epilog="\b\nExample:\n  pipeline recipes check my.toml", no_args_is_help=True)
@click.argument("name")
@common_options
def check(*, name: str, as_json: bool, quiet: bool, loud: bool) -> None:
    """Check a recipe, by name or path: its fields, its encoders."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.encoding import stamp_streams

    recipe = Recipe.load(name)
    fingerprint = recipe.fingerprint(stamp_streams(recipe))
    if as_json:
        print_json({"ok": True, "name": recipe.name, "fingerprint": fingerprint})
    else:
        click.echo(f"ok: {recipe.name} (fingerprint {fingerprint[:8]})")


def _leaves(value: object, *, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [leaf for key, one in value.items() for leaf in _leaves(one, path=f"{path}{key}.")]
    return [(path.removesuffix("."), str(value))]
