"""`pipeline plan`."""

from __future__ import annotations

import glob
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click

from pipeline.cli.run import DEFAULT_RECIPE, cache_path, choose_recipe
from pipeline.cli.show import common_options, print_json, set_verbosity, weights_option
from pipeline.layout import CacheLayout
from pipeline.places import to_place
from pipeline.signing import to_public
from pipeline.source_files import is_remote, to_path
from schemas.errors import FingerprintMismatch, StorageError, UsageError
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from pipeline.forecast import Forecast
    from schemas.card import CardTable
    from schemas.video import Probe, Source

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
    from pipeline.sources import read_sources
    from schemas.card import read_cards

    table = read_cards(Path(cards_path) if cards_path is not None else None)
    table = _with_price(table, card=card, usd_per_hour=usd_per_hour)
    measured = _read_speeds(speeds)
    arguments, cache = split_arguments(paths)
    layout = None if cache is None else CacheLayout(to_place(cache))
    recipes = _choose_recipes(layout, recipe, compare=compare, overrides=overrides, weights=weights)
    found = read_sources(arguments, limit=limit) if arguments else None
    forecasts = forecast_all(
        None if found is None else found.sources,
        recipes,
        layout=layout,
        table=table,
        card=card,
        speeds=measured,
        quiet=quiet,
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


def split_arguments(paths: Sequence[str]) -> tuple[list[str], str | None]:
    """(SOURCES, CACHE), as the help says; no source: what the cache knows.

    UsageError: a last path that is not there but has the name of a video or a list. StorageError:
    it cannot be told what is there.
    """
    *sources, last = paths
    if last and last != "-" and _is_cache(last, is_alone=not sources):
        return sources, cache_path(last)
    return [*sources, last], None


def _is_cache(text: str, *, is_alone: bool) -> bool:
    if text.startswith(("http://", "https://")) or to_public(text) != text:
        return False  # no run can write there
    layout = CacheLayout(to_place(cache_path(text)))
    try:
        if _is_made(layout):
            return True
        if is_alone or glob.has_magic(text):
            return False
        is_there, is_empty = _look(text)
    except ValueError:
        return False  # not a path: whoever reads sources says so
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StorageError(f"{text}: cannot be read: {reason}", hint="who may read it?") from error
    from pipeline.sources import LIST_EXTENSIONS, MEDIA_EXTENSIONS

    ending = PurePath(text).suffix.lower()
    if not is_there and (ending.removeprefix(".") in MEDIA_EXTENSIONS or ending in LIST_EXTENSIONS):
        raise UsageError(
            f"{text}: no such file", hint="a CACHE is a folder, SOURCES come before it"
        )
    return is_empty or not is_there


def _look(text: str) -> tuple[bool, bool]:
    # Whether there is something, and whether it is a folder with nothing in it that shows.
    if is_remote(text):
        from pipeline.listing import look_up

        return bool(look_up(text)), False
    path = to_path(text).expanduser()
    shown = path.is_dir() and any(not one.name.startswith(".") for one in path.iterdir())
    return path.exists(), path.is_dir() and not shown


def _is_made(layout: CacheLayout) -> bool:
    from pipeline.places import is_file

    if is_file(layout.info):
        return True
    return bool(layout.extensions(layout.plan) or layout.extensions(layout.probes))


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


def _with_price(table: CardTable, *, card: str, usd_per_hour: float | None) -> CardTable:
    from dataclasses import replace

    chosen = table.card(card or table.default_card)
    if usd_per_hour is None:
        return table
    mine = replace(chosen, usd_per_hour=usd_per_hour, usd_low=usd_per_hour, usd_high=usd_per_hour)
    return replace(table, cards=tuple(mine if one is chosen else one for one in table.cards))


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


def forecast_all(
    sources: Sequence[Source] | None,
    recipes: Sequence[Recipe],
    *,
    layout: CacheLayout | None,
    table: CardTable,
    card: str = "",
    speeds: dict[str, float] | None = None,
    quiet: bool = False,
) -> list[Forecast]:
    """A forecast for each recipe; sources are looked at once, within the first one's limits.

    FingerprintMismatch: the cache is of another recipe than the only one. Of several those that it
    is not of are told as for a new cache.
    """
    from pipeline.encoding import all_specs
    from pipeline.forecasting import forecast
    from pipeline.surveying import check_same, survey

    specs = [all_specs(recipe) for recipe in recipes]
    is_of_cache = [layout is not None for _ in recipes]
    if layout is not None:
        for number, recipe in enumerate(recipes):
            try:
                check_same(layout, recipe, specs[number])
            except FingerprintMismatch:
                if len(recipes) == 1:
                    raise
                is_of_cache[number] = False
    with _Progress(quiet=quiet) as progress:
        found = survey(sources, layout=layout, limits=recipes[0].limits, on_begin=progress.begin)
    return [
        forecast(
            found if is_of_cache[number] else found.without_cache(),
            recipe,
            specs=specs[number],
            table=table,
            card=card,
            speeds=speeds,
            is_new=not (is_of_cache[number] and (found.planned or found.sidecars)),
        )
        for number, recipe in enumerate(recipes)
    ]


class _Progress:
    """How far looking at the sources is, on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._counts: Counter[str] = Counter()
        self._display: object = None
        self._done = threading.Event()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        from pipeline.cli.progress import Display
        from pipeline.measuring import Measured

        if self._display is not None:
            display: Display = self._display  # type: ignore[assignment]
            if kind is None:
                display.show(Measured(counts=self._counts), last=True)
            display.close()

    def begin(self, total: int) -> Callable[[Probe], None]:
        """What is called with each probe."""
        if self._quiet:
            return lambda _: None
        from pipeline.cli.progress import open_display
        from pipeline.measuring import Measured

        display = self._display = open_display("probe", total)
        self._counts["probers"] = 1

        def tell(_: Probe) -> None:
            self._counts["probed"] += 1
            display.show(Measured(counts=self._counts))

        return tell
