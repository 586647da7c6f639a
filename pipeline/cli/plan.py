"""`pipeline plan`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from pipeline.cli.run import DEFAULT_RECIPE, choose_recipe
from pipeline.cli.show import common_options, print_json, set_verbosity, weights_option
from pipeline.cli.splitting import split_arguments
from pipeline.layout import CacheLayout
from pipeline.places import to_place
from schemas.errors import UsageError
from schemas.recipe import Recipe

EPILOG = """\b
Examples:
  pipeline plan videos/ --recipe apollo
  pipeline plan videos/ cache/
  pipeline plan list.csv --compare apollo,apollo-compact
  pipeline plan videos/ --recipe apollo --card A100 --frames-per-second 210
  pipeline plan cache/

SOURCES are as of `pipeline run`. The last argument is the CACHE if it is one already, is an empty
folder, or does not exist; anything else is a source. A CACHE alone stands for all sources that it
knows. Sources that it has not seen are looked at, so that every number is what a run would find;
nothing is decoded and nothing is written. Weights need not be there.

GPU-hours are arithmetic from the encoders' operations, not a measurement: docs/costs.md."""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("paths", nargs=-1, required=True, metavar="SOURCES... [CACHE]")
@click.option(
    "--recipe",
    help=f"A name of `pipeline recipes` or a TOML file. [default: the cache's own, else"
    f" {DEFAULT_RECIPE}]",
)
@click.option(
    "--compare",
    metavar="A,B",
    help="Recipes side by side, after that of --recipe if there is one.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change one field of every recipe; repeatable.",
)
@weights_option
@click.option("--card", default="", metavar="NAME", help="What GPU-hours and costs are of.")
@click.option(
    "--usd-per-hour",
    type=click.FloatRange(min=0, min_open=True),
    help="What you pay for this card.",
)
@click.option(
    "--frames-per-second",
    "speeds",
    multiple=True,
    metavar="[STREAM=]X",
    help="Sampled frames a second that you measured on this card, of one stream or of all"
    " together; repeatable.",
)
@click.option(
    "--cards",
    "cards_path",
    metavar="FILE",
    help="Your own table of cards, prices and rates, as schemas/cards.toml.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Take the first N sources only.")
@common_options
def plan(
    *,
    paths: tuple[str, ...],
    recipe: str | None,
    compare: str | None,
    overrides: tuple[str, ...],
    weights: tuple[str, ...],
    card: str,
    usd_per_hour: float | None,
    speeds: tuple[str, ...],
    cards_path: str | None,
    limit: int | None,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Say what a run on SOURCES would do, keep and cost, and write nothing."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.cli.forecasts import print_comparison, print_forecast
    from pipeline.cli.progress import probing_shown
    from pipeline.forecasting import forecast_recipes
    from pipeline.sources import read_sources
    from schemas.card import read_cards

    table = read_cards(Path(cards_path) if cards_path is not None else None)
    if usd_per_hour is not None:
        table = table.with_price(card or table.default_card, usd_per_hour=usd_per_hour)
    measured = _read_speeds(speeds)
    arguments, cache = split_arguments(paths)
    layout = None if cache is None else CacheLayout(to_place(cache))
    recipes = _choose_recipes(layout, recipe, compare=compare, overrides=overrides, weights=weights)
    found = read_sources(arguments, limit=limit) if arguments else None
    with probing_shown(quiet=quiet) as on_begin:
        forecasts = forecast_recipes(
            None if found is None else found.sources,
            recipes,
            layout=layout,
            table=table,
            card=card,
            speeds=measured,
            on_begin=on_begin,
        )
    if as_json:
        told = forecasts[0].to_json() | {"cache": cache}
        if compare is not None:
            told["recipes"] = [one.to_json() for one in forecasts]
        print_json(told)
        return
    num_ignored = 0 if found is None else found.num_ignored
    if compare is None:
        print_forecast(forecasts[0], cache=cache, num_ignored=num_ignored)
    else:
        print_comparison(forecasts, cache=cache, num_ignored=num_ignored)


def _choose_recipes(
    layout: CacheLayout | None,
    name: str | None,
    *,
    compare: str | None,
    overrides: Sequence[str],
    weights: Sequence[str],
) -> list[Recipe]:
    # Weights are for the first one, which may be that of the cache.
    others = [one.strip() for one in (compare or "").split(",") if one.strip()]
    if compare is not None and not others:
        raise UsageError("--compare names no recipe", hint="as in --compare apollo,apollo-compact")
    if name is None and others:
        name, *others = others
    if layout is None:
        from pipeline.encoding import with_weights

        first = Recipe.load(name or DEFAULT_RECIPE, overrides=overrides)
        first = with_weights(first, weights)
    else:
        first = choose_recipe(layout, name, overrides=overrides, weights=weights)
    return [first, *(Recipe.load(one, overrides=overrides) for one in others)]


def _read_speeds(texts: Sequence[str]) -> dict[str, float]:
    speeds: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            speeds[name] = float(number)
        except ValueError:
            speeds[name] = 0.0
        if not 0 < speeds[name] < float("inf"):
            raise UsageError(
                f"--frames-per-second {text}: must be a number above 0, or STREAM= and one"
            )
    return speeds
