"""`pipeline report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.counted import counted
from pipeline.cli.show import (
    common_options,
    count_text,
    duration_text,
    print_facts,
    print_json,
    set_verbosity,
    size_text,
)

EPILOG = """\b
Examples:
  pipeline report cache/ -o report/
  pipeline report s3://bucket/cache -o report/ --clips 16
  pipeline report cache/ -o report/ --limit 500 --json

Open report/index.html in any browser: it needs no server and no network. Made again, the folder is
replaced whole; a folder that is no report never is."""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.option(
    "-o",
    "--out",
    default="report",
    show_default=True,
    metavar="FOLDER",
    help="The folder to write, on this machine.",
)
@click.option(
    "--clips",
    type=click.IntRange(min=1, max=256),
    metavar="N",
    help="Clips of a video that have pictures, chosen evenly.  [default: as many as have 192"
    " frames: 48 of 4]",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only the first N videos can be opened; all are in the table.",
)
@common_options
def report(
    *,
    cache: str,
    out: str,
    clips: int | None,
    limit: int | None,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Write a page to look at CACHE with: totals, distributions, every video on its time line."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.cache import open_cache
    from pipeline.report_folder import check_folder, write_report

    folder = _local_folder(out)
    check_folder(folder)
    with open_cache(cache) as opened:
        total = len(opened.videos) if limit is None else min(limit, len(opened.videos))
        with counted(total, "drawn", unit="video", quiet=quiet) as progress:
            written = write_report(
                opened,
                folder,
                most_clips=clips,
                most_portraits=limit,
                on_video=lambda: progress(1),
            )
    if as_json:
        numbers: dict[str, Any] = {
            "report": str(written.path),
            "videos": written.num_videos,
            "portraits": written.num_portraits,
            "files": written.num_files,
            "bytes": written.num_bytes,
            "page_bytes": written.page_bytes,
            "seconds": round(written.seconds, 3),
        }
        print_json(numbers)
        return
    page = size_text(written.page_bytes)
    if written.num_portraits:
        each = (written.num_bytes - written.page_bytes) / written.num_portraits
        page += f", and {size_text(each)} for each video"
    print_facts(
        [
            ("videos", f"{written.num_videos:,}, of which {written.num_portraits:,} can be opened"),
            ("page", page),
            ("bytes", f"{size_text(written.num_bytes)} in {count_text(written.num_files, 'file')}"),
            ("time", duration_text(written.seconds)),
            ("open", str(written.path)),
        ]
    )


def _local_folder(text: str) -> Path:
    from pipeline.source_files import is_remote, to_path
    from schemas.errors import UsageError

    if is_remote(text):
        raise UsageError(
            f"{text}: a report is written to a folder of this machine",
            hint="write it here, then copy the folder with the store's own tools",
        )
    return to_path(text)
