"""`pipeline slice`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.counted import counted
from pipeline.cli.run import cache_path
from pipeline.cli.show import (
    common_options,
    count_text,
    duration_text,
    print_facts,
    print_json,
    set_verbosity,
    size_text,
)
from schemas.errors import UsageError

if TYPE_CHECKING:
    from pipeline.cache import FeatureCache
    from pipeline.choosing import Choice
    from pipeline.slicing import Slice

EPILOG = """\b
Examples:
  pipeline slice cache/ few/ --video holiday.mp4 --video v0123456789abcdef
  pipeline slice cache/ train/ --manifest train.csv
  pipeline slice cache/ lively/ --where 'static < 0.9 and brightness > 0.1'
  pipeline slice cache/ nowhere/ --where 'duration_seconds > 60' --dry-run

A manifest is a list as `pipeline run` takes it, of uris or ids; with start and end in seconds, the
clips that overlap are taken. --where compares columns of the index and of the probes with < <= >
>= == != in, `is null`, and, or, not, + - * / and parentheses; docs/caches.md lists them.
Nothing is decoded or encoded: OUT holds the same bytes of the same clips, and `pipeline run` adds
to it as to any cache."""


@click.command(name="slice", epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.argument("out")
@click.option(
    "--manifest", metavar="FILE", help="A list of videos, or of spans of them; - is stdin."
)
@click.option("--where", metavar="EXPR", help="Take only clips for which this holds.")
@click.option(
    "--video", "videos", multiple=True, metavar="ID", help="A video by id or uri; repeatable."
)
@click.option(
    "--skip-missing", is_flag=True, help="Leave out rows of the manifest that match nothing."
)
@click.option("--check", is_flag=True, help="Check the digests of all tars that are read, first.")
@click.option("--dry-run", is_flag=True, help="Say what would be taken; write nothing.")
@common_options
def slice_(
    *,
    cache: str,
    out: str,
    manifest: str | None,
    where: str | None,
    videos: tuple[str, ...],
    skip_missing: bool,
    check: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Make OUT, a cache of some of the clips of CACHE.

    It is a cache as any other, with the same recipe. Called again after an interruption it goes on.
    """
    set_verbosity(quiet=quiet, loud=loud)
    if manifest is None and where is None and not videos:
        raise UsageError(
            "nothing says which clips to take", hint="name them by --manifest, --video or --where"
        )
    from pipeline.cache import open_cache
    from pipeline.choosing import choose_clips
    from pipeline.layout import CacheLayout
    from pipeline.manifest import read_manifest
    from pipeline.places import to_place
    from pipeline.repacking import bytes_of_tars, check_target, check_tars
    from pipeline.slicing import plan_slice, write_slice

    began = time.monotonic()
    layout = CacheLayout(to_place(cache_path(out)))
    with open_cache(cache_path(cache)) as opened:
        check_target(layout)
        choice = choose_clips(
            opened,
            manifest=None if manifest is None else read_manifest(manifest),
            videos=videos,
            where=where,
            skip_missing=skip_missing,
        )
        if not quiet:
            _tell_of(choice, loud=loud)
        plan = plan_slice(opened, choice)
        if check:
            size = bytes_of_tars(plan.shards)
            with counted(size, "checked", quiet=quiet) as progress:
                check_tars(plan.shards, progress=progress)
        if not dry_run:
            with counted(plan.num_bytes, "copied", quiet=quiet) as progress:
                write_slice(plan, layout, progress=progress)
        seconds = time.monotonic() - began
        if as_json:
            print_json(_as_json(plan, opened, choice, out=str(layout.root), seconds=seconds))
            return
        _print(plan, opened, where=None if dry_run else str(layout.root), seconds=seconds)


def _tell_of(choice: Choice, *, loud: bool) -> None:
    if choice.num_null:
        clips = count_text(choice.num_null, "clip")
        click.echo(f"{clips} left out: a value that is compared is null.", err=True)
    if choice.skipped:
        rows = count_text(len(choice.skipped), "row")
        click.echo(f"{rows} of the manifest matched nothing{'' if loud else ' (-v)'}.", err=True)
        for line in choice.skipped if loud else ():
            click.echo(f"  {line}", err=True)
    if choice.rejected:
        sources = count_text(len(choice.rejected), "rejected source")
        click.echo(f"{sources} of those named: rejected in the slice too.", err=True)


def _as_json(
    plan: Slice, cache: FeatureCache, choice: Choice, *, out: str, seconds: float
) -> dict[str, Any]:
    return {
        "cache": out,
        "fingerprint": cache.fingerprint,
        "videos": len(plan.video_ids),
        "clips": plan.num_clips,
        "shards": sum(1 for shard in plan.shards if shard.num_bytes),
        "bytes": plan.num_bytes,
        "of_videos": len(cache.videos),
        "of_clips": len(cache),
        "null_clips": choice.num_null,
        "skipped_rows": len(choice.skipped),
        "rejected": len(choice.rejected),
        "seconds": round(seconds, 3),
    }


def _print(plan: Slice, cache: FeatureCache, *, where: str | None, seconds: float) -> None:
    shards = count_text(sum(1 for shard in plan.shards if shard.num_bytes), "shard")
    print_facts(
        [
            ("cache", where or "none is written (--dry-run)"),
            ("videos", f"{len(plan.video_ids):,} of {len(cache.videos):,}"),
            ("clips", f"{plan.num_clips:,} of {len(cache):,}"),
            ("bytes", f"{size_text(plan.num_bytes)} in {shards}"),
            ("time", duration_text(seconds)),
        ]
    )
