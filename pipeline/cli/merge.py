"""`pipeline merge`."""

from __future__ import annotations

import contextlib
import time

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

EPILOG = """\b
Examples:
  pipeline merge monday/ tuesday/ both/
  pipeline merge day1/ day2/ s3://bucket/day3 all/ --dry-run
  pipeline merge here/ there/ all/ --link

The caches must have one fingerprint. A clip that several have is taken from the first. Tars are
copied byte for byte, and their digests checked; those of which clips are left out are written anew.
With --link a tar that stays as it is is a hard link, where all lie on one local disk: it takes no
space and no time, and damage to one of the two is damage to both."""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("paths", nargs=-1, metavar="CACHE CACHE... OUT")
@click.option("--link", is_flag=True, help="Link tars that stay as they are, where that can be.")
@click.option("--check", is_flag=True, help="Check the digests of all tars that are read, first.")
@click.option("--dry-run", is_flag=True, help="Say what would be merged; write nothing.")
@common_options
def merge(
    *,
    paths: tuple[str, ...],
    link: bool,
    check: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Make OUT, one cache of the clips of several CACHEs.

    Called again after an interruption it goes on.
    """
    set_verbosity(quiet=quiet, loud=loud)
    if len(paths) < 3:
        raise UsageError("name two caches or more and, as the last argument, the new one")
    from pipeline.cache import open_cache
    from pipeline.layout import CacheLayout
    from pipeline.merging import plan_merge, write_merge
    from pipeline.places import to_place
    from pipeline.repacking import bytes_of_tars, check_target, check_tars

    began = time.monotonic()
    *places, out = map(cache_path, paths)
    layout = CacheLayout(to_place(out))
    with contextlib.ExitStack() as stack:
        caches = [stack.enter_context(open_cache(place)) for place in places]
        check_target(layout)
        plan = plan_merge(caches)
        num_links = 0
        if check:
            size = bytes_of_tars(plan.shards)
            with counted(size, "checked", quiet=quiet) as progress:
                check_tars(plan.shards, progress=progress)
        if not dry_run:
            with counted(plan.num_bytes, "copied", quiet=quiet) as progress:
                num_links = write_merge(plan, layout, link=link, progress=progress)
        seconds = time.monotonic() - began
        num_shards = sum(1 for shard in plan.shards if shard.num_bytes)
        if as_json:
            print_json(
                {
                    "cache": str(layout.root),
                    "fingerprint": caches[0].fingerprint,
                    "videos": len(plan.video_ids),
                    "clips": plan.num_clips,
                    "shards": num_shards,
                    "bytes": plan.num_bytes,
                    "shared_clips": plan.num_shared,
                    "linked_shards": num_links,
                    "seconds": round(seconds, 3),
                }
            )
            return
        linked = f", {num_links:,} of them linked" if link and not dry_run else ""
        shared = f"; {plan.num_shared:,} that were in two are taken once" if plan.num_shared else ""
        print_facts(
            [
                ("cache", "none is written (--dry-run)" if dry_run else str(layout.root)),
                ("videos", f"{len(plan.video_ids):,}"),
                ("clips", f"{plan.num_clips:,}{shared}"),
                (
                    "bytes",
                    f"{size_text(plan.num_bytes)} in {count_text(num_shards, 'shard')}{linked}",
                ),
                ("time", duration_text(seconds)),
            ]
        )
