"""`pipeline recipes`."""

from __future__ import annotations

from typing import Any

import click

from pipeline.cli.show import (
    common_options,
    print_json,
    print_table,
    set_verbosity,
    weights_option,
)
from schemas.recipe import Recipe, list_recipes

EPILOG = """\b
Examples:
  pipeline recipes list
  pipeline recipes show tiny --set sampling.fps=1
  pipeline recipes check my-recipe.toml"""

WITHOUT_WEIGHTS = "known with --weights"
"""What is shown for a fingerprint where weights are not named."""


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
@weights_option
@common_options
def show(
    *,
    name: str,
    overrides: tuple[str, ...],
    weights: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Show every field of a recipe, by name or path, and its fingerprint."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.encoding import with_weights

    recipe = with_weights(Recipe.load(name, overrides=overrides), weights)
    stamps, fingerprint = _identify(recipe)
    if as_json:
        print_json({"recipe": recipe.to_mapping(), "stamps": stamps, "fingerprint": fingerprint})
        return
    rows = _leaves(recipe.to_mapping())
    rows += _leaves(stamps, path="stamp.")
    print_table(("field", "value"), [*rows, ("fingerprint", fingerprint or WITHOUT_WEIGHTS)])


@recipes.command(epilog="\b\nExample:\n  pipeline recipes check my.toml", no_args_is_help=True)
@click.argument("name")
@weights_option
@common_options
def check(*, name: str, weights: tuple[str, ...], as_json: bool, quiet: bool, loud: bool) -> None:
    """Check a recipe, by name or path: its fields, its encoders."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.encoding import with_weights

    recipe = with_weights(Recipe.load(name), weights)
    _, fingerprint = _identify(recipe)
    if as_json:
        print_json({"ok": True, "name": recipe.name, "fingerprint": fingerprint})
    else:
        told = fingerprint[:8] if fingerprint else WITHOUT_WEIGHTS
        click.echo(f"ok: {recipe.name} (fingerprint {told})")


def _identify(recipe: Recipe) -> tuple[dict[str, dict[str, Any]], str | None]:
    # Stamps, and the fingerprint if all weights are known.
    from pipeline.encoding import all_specs

    specs = all_specs(recipe)
    stamps = {name: spec.stamp() for name, spec in specs.items()}
    if any(spec.weights_hint and not spec.weights_sha256 for spec in specs.values()):
        return stamps, None
    return stamps, recipe.fingerprint(stamps)


def _leaves(value: object, *, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [leaf for key, one in value.items() for leaf in _leaves(one, path=f"{path}{key}.")]
    return [(path.removesuffix("."), str(value))]
