"""`pipeline run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.reporting import print_report
from pipeline.cli.retrying import RetryCommand, chosen_reasons, retry_option
from pipeline.cli.show import common_options, print_json, set_verbosity, weights_option
from pipeline.layout import CacheLayout
from pipeline.places import to_place
from pipeline.source_files import is_remote, to_path
from schemas.errors import NothingUsable, UsageError
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pipeline.options import RunOptions
    from pipeline.report import RunReport
    from schemas.video import Source

DEFAULT_RECIPE = "tiny"
LOOK_FIRST = ""
"""Of --skip-duplicates without a value."""
BARE_LAST = "without WHERE, --skip-duplicates comes last or before another option"

EPILOG = """\b
Examples:
  pipeline run videos/ cache/
  pipeline run list.csv cache/ --workers 8 --max-reject-rate 0.02
  pipeline run 'day1/*.mp4' clip.mov cache/ --set sampling.fps=1
  pipeline run s3://bucket/videos/ gs://bucket/cache
  pipeline run list.csv gs://bucket/cache --runner dataflow --workers 20 -- --region us-central1 ...
  pipeline run --retry-rejects timed_out cache/

SOURCES are files, folders, globs, or lists of sources: txt, csv, tsv, jsonl, parquet with the
column uri and, if you like, id, start and end in seconds; paths in a list are relative to it.
"-" reads paths from stdin. CACHE is the last argument. Both may be URLs, such as s3:// and gs://.
What follows "--" goes to Beam."""


@click.command(cls=RetryCommand, epilog=EPILOG, no_args_is_help=True)
@click.argument("paths", nargs=-1, metavar="SOURCES... CACHE")
@click.option(
    "--recipe",
    help=f"A name of `pipeline recipes` or a TOML file. [default: the cache's own, else"
    f" {DEFAULT_RECIPE}]",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change one field of the recipe; repeatable.",
)
@weights_option
@click.option(
    "--runner",
    default="local",
    show_default=True,
    metavar="NAME",
    help="Where the work is done: local, dataflow, flink, spark, prism, or beam:NAME; see"
    " docs/engines.md.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes that encode, each with its own encoders and decoders; on an engine at most.",
)
@click.option(
    "--decoders",
    type=click.IntRange(min=1),
    help="Decoder processes of each worker. [default: the cores there are, divided by workers]",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="Where encoders compute: cpu, cuda, cuda:1; auto takes a GPU if there is one.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    help="Clips that an encoder is given at once. [default: 16 on a GPU, 1 on a CPU]",
)
@click.option(
    "--fetch-bytes",
    type=click.FloatRange(min=0),
    default=8e9,
    show_default=True,
    help="Remote videos are fetched ahead into so many bytes of each worker's disk.",
)
@click.option("--compile", is_flag=True, help="Let torch.compile specialise the encoders.")
@click.option(
    "--max-reject-rate",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Stop as soon as a larger part of all SOURCES is rejected; what is built is kept.",
)
@click.option(
    "--container", default="", metavar="IMAGE", help="What an engine's workers run; see deploy/."
)
@click.option(
    "--accelerator",
    default="",
    metavar="TYPE",
    help="What an engine's workers need, or none. [default: on dataflow"
    " type:nvidia-l4;count:1;install-nvidia-driver]",
)
@click.option(
    "--min-ram", default="", metavar="SIZE", help="Memory of an engine's workers, such as 16GB."
)
@click.option("--min-cpus", type=click.IntRange(min=1), help="Cores of an engine's workers.")
@click.option(
    "--metrics",
    multiple=True,
    metavar="FILE",
    help="Write how the run is getting on every few seconds: JSON lines, added to FILE; a FILE.prom"
    " holds the latest in Prometheus' text format. Repeatable.",
)
@retry_option
@click.option("--limit", type=click.IntRange(min=1), help="Take the first N sources only.")
@click.option(
    "--skip-duplicates",
    is_flag=False,
    flag_value=LOOK_FIRST,
    metavar="[WHERE]",
    help="Leave out copies of other SOURCES, which are looked for first, in a small cache inside of"
    " CACHE; or those that `pipeline dedup` found in a cache WHERE, or in its clusters.parquet."
    " Without WHERE it comes last or before another option.",
)
@common_options
@click.pass_obj
def run(
    beam_arguments: tuple[str, ...],
    *,
    paths: tuple[str, ...],
    recipe: str | None,
    overrides: tuple[str, ...],
    runner: str,
    workers: int,
    decoders: int | None,
    weights: tuple[str, ...],
    device: str,
    batch: int | None,
    fetch_bytes: float,
    compile: bool,  # noqa: A002 - the option's name
    max_reject_rate: float,
    container: str,
    accelerator: str,
    min_ram: str,
    min_cpus: int | None,
    metrics: tuple[str, ...],
    retry_rejects: tuple[str, ...],
    limit: int | None,
    skip_duplicates: str | None,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Cache the features of videos in CACHE.

    Run it again to go on after an interruption, or with more SOURCES to add them: what is done is
    not done twice.
    """
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.options import RunOptions
    from pipeline.sources import read_sources

    retry = chosen_reasons(retry_rejects)
    if len(paths) < (1 if retry else 2):
        raise UsageError(
            "name SOURCES and, as the last argument, the CACHE folder",
            hint=f"{skip_duplicates} was taken for WHERE: {BARE_LAST}" if skip_duplicates else "",
        )
    *sources, cache = paths
    if skip_duplicates is not None and not sources:
        raise UsageError("--skip-duplicates without SOURCES: there is nothing to leave out")
    cache = cache_path(cache)
    chosen = choose_recipe(
        CacheLayout(to_place(cache)), recipe, overrides=overrides, weights=weights
    )
    if not quiet:
        warn_of_random(chosen)
    found = read_sources(sources, limit=limit) if sources else None
    chosen_sources = found.sources if found else None
    options = RunOptions(
        runner=runner,
        num_workers=workers,
        num_decoders=decoders,
        device=device,
        compile=compile,
        max_batch=batch,
        fetch_bytes=int(fetch_bytes),
        max_reject_rate=max_reject_rate,
        accelerator=accelerator,
        min_ram=min_ram,
        min_cpus=min_cpus,
        container=container,
        beam_arguments=beam_arguments,
    )
    num_skipped = 0
    if skip_duplicates is not None and chosen_sources:
        from pipeline.skipping import skip_duplicates as leave_out

        layout = CacheLayout(to_place(cache))
        if skip_duplicates == LOOK_FIRST:
            skip_duplicates = look_for_duplicates(
                chosen_sources, layout, options=options, retry=retry, quiet=quiet, loud=loud
            )
        if skip_duplicates:
            chosen_sources, num_skipped = leave_out(
                chosen_sources, where=skip_duplicates, layout=layout
            )
    report = execute(
        chosen_sources,
        chosen,
        cache=cache,
        options=options,
        metrics=metrics,
        retry=retry,
        quiet=quiet,
        loud=loud,
    ).with_skipped(num_skipped)
    if loud and not quiet:
        for reject in report.rejects:
            click.echo(f"{reject.uri}: {reject.reason}: {reject.detail}", err=True)
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report, num_ignored=found.num_ignored if found else 0)


def look_for_duplicates(
    sources: Sequence[Source],
    layout: CacheLayout,
    *,
    options: RunOptions,
    retry: Collection[str],
    quiet: bool,
    loud: bool,
) -> str | None:
    """Cache the sources cheaply inside of the cache, and compare them there: where that is.

    None: none of them can be looked at, which the run itself has to say.
    """
    from pipeline.cache import open_cache
    from pipeline.cli.counted import counted
    from pipeline.deduplicating import find_duplicates
    from pipeline.duplicate_tables import write_duplicates
    from pipeline.locking import check_folder
    from pipeline.skipping import are_there

    check_folder(layout)
    where = str(layout.look)
    if not quiet:
        click.echo(f"Looking for duplicates first, in {where}", err=True)
    cheap, recipe = replace(options, max_reject_rate=1.0), Recipe.load(DEFAULT_RECIPE)
    try:
        execute(sources, recipe, cache=where, options=cheap, retry=retry, quiet=quiet, loud=loud)
    except NothingUsable:
        return None
    with open_cache(where) as cache:
        found = find_duplicates(
            cache,
            stream=cache.streams[0],
            among=are_there(sources, layout=layout),
            counting=lambda total, unit, verb: counted(total, verb, unit=unit, quiet=quiet),
        )
        write_duplicates(cache.layout, found)
    return where


def warn_of_random(recipe: Recipe) -> None:
    """Say on stderr which of its encoders have random weights."""
    from encoders.weights import RANDOM

    names = [name for name, one in recipe.settings().items() if one.weights == RANDOM]
    if names:
        click.echo(f"Random weights in {', '.join(names)}: the features mean nothing.", err=True)


def cache_path(text: str) -> str:
    """The folder or URL that the user named. UsageError: empty."""
    if not text:
        raise UsageError("CACHE is empty: it must be a folder or the URL of one")
    return text.rstrip("/") if is_remote(text) else str(to_path(text).expanduser())


def choose_recipe(
    layout: CacheLayout,
    name: str | None,
    *,
    overrides: Sequence[str] = (),
    weights: Sequence[str] = (),
) -> Recipe:
    """The recipe asked for, else the cache's own, else the default one."""
    from pipeline.encoding import with_weights
    from pipeline.planning import read_made_by

    made_by = None if name else read_made_by(layout)
    if made_by is None:
        recipe = Recipe.load(name or DEFAULT_RECIPE, overrides=overrides)
    else:
        recipe = Recipe.from_mapping(made_by.recipe.to_mapping(), overrides=overrides)
    return with_weights(recipe, weights)


def execute(
    sources: Sequence[Source] | None,
    recipe: Recipe,
    *,
    cache: str,
    options: RunOptions,
    metrics: Sequence[str] = (),
    retry: Collection[str] = (),
    quiet: bool = False,
    loud: bool = False,
) -> RunReport:
    """`beam_runner.run` with progress on stderr and in files of metrics."""
    import beam_runner
    from pipeline.cli.following import Follower
    from pipeline.metrics_file import MetricsFile

    files = [MetricsFile(Path(path)) for path in metrics]
    with Follower(cache=cache, files=files, quiet=quiet, loud=loud) as follower:
        report = beam_runner.run(
            sources,
            recipe,
            cache_path=cache,
            options=options,
            retry=retry,
            watch=follower.watch,
        )
        follower.result = report.to_metrics()
        return report
