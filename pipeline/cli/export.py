"""`pipeline export`."""

from __future__ import annotations

import time
from typing import Any, Literal

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
  pipeline export cache/ table/ --to parquet
  pipeline export cache/ vectors/ --to npy --stream siglip --pooled
  pipeline export cache/ out/ --to safetensors --where 'static < 0.9'
  pipeline export cache/ out/ --to lance --decode

parquet: SHARD.parquet, a row a clip; arrays are lists of fixed length, their shapes in the fields'
metadata. lance: the same columns in out/clips.lance. safetensors: SHARD.safetensors with tensors
KEY.NAME. npy: NAME.npy of all clips. The last two come with index.parquet, a row a clip."""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.argument("out")
@click.option(
    "--to",
    required=True,
    type=click.Choice(["parquet", "lance", "safetensors", "npy"]),
    help="The format.",
)
@click.option(
    "--stream",
    "streams",
    multiple=True,
    metavar="S",
    help="A stream, or audio; repeatable. [default: all]",
)
@click.option("--where", metavar="EXPR", help="Only clips for which this holds; see slice.")
@click.option("--pooled", is_flag=True, help="The mean of each grid: (T, D) for (T, H, W, D).")
@click.option("--decode", is_flag=True, help="int8 as float16, without scales.")
@click.option(
    "--compression",
    type=click.Choice(["none", "zstd"]),
    default="none",
    show_default=True,
    help="Of Parquet.",
)
@common_options
def export(
    *,
    cache: str,
    out: str,
    to: Literal["parquet", "lance", "safetensors", "npy"],
    streams: tuple[str, ...],
    where: str | None,
    pooled: bool,
    decode: bool,
    compression: Literal["none", "zstd"],
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Write the clips of CACHE into OUT in another format: features, times, masks, what is known.

    _export.json, written last, says what OUT is.
    """
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.cache import open_cache
    from pipeline.choosing import choose_clips
    from pipeline.exporting import ExportOptions, export_cache
    from pipeline.places import to_place
    from schemas.recipe import AUDIO

    if compression != "none" and to != "parquet":
        raise UsageError(f"--compression is of parquet, not of {to}")
    began = time.monotonic()
    root = to_place(cache_path(out))
    with open_cache(cache_path(cache)) as opened:
        choice = choose_clips(opened, where=where)
        if choice.num_null and not quiet:
            clips = count_text(choice.num_null, "clip")
            click.echo(f"{clips} left out: a value that is compared is null.", err=True)
        everything = opened.streams + ((AUDIO,) if opened.recipe.audio is not None else ())
        options = ExportOptions(
            streams=tuple(dict.fromkeys(streams)) or everything,
            pooled=pooled,
            decode=decode,
            compression=compression,
        )
        total = int(choice.rows.sum())
        with counted(total, "written", unit="clip", quiet=quiet) as progress:
            written = export_cache(
                opened, root, to=to, options=options, rows=choice.rows, progress=progress
            )
    seconds = time.monotonic() - began
    document: dict[str, Any] = {
        "out": str(root),
        "format": to,
        "clips": written.num_clips,
        "files": list(written.names),
        "bytes": written.num_bytes,
        "seconds": round(seconds, 3),
    }
    if as_json:
        print_json(document)
        return
    names = written.names
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
    print_facts(
        [
            ("out", f"{root}: {shown}"),
            ("clips", f"{written.num_clips:,}"),
            ("bytes", size_text(written.num_bytes)),
            ("time", duration_text(seconds)),
        ]
    )
