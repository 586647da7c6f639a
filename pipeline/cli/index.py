"""`pipeline index`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.counted import counted
from pipeline.cli.show import (
    common_options,
    count_text,
    device_option,
    duration_text,
    print_facts,
    print_json,
    set_verbosity,
    size_text,
    weights_option,
)

if TYPE_CHECKING:
    from pipeline.indexing import Indexing
    from pipeline.pooling import Pool

EPILOG = """\b
Examples:
  pipeline index cache/
  pipeline index cache/ --space text --weights siglip=FOLDER

Again, it adds the shards that are new. It lies in cache/search/ and may be deleted. What it reads
of the shards is kept in cache/vectors/, so that no shard is read twice."""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.option("--stream", help="Whose features; by default the first stream's.")
@click.option(
    "--space",
    type=click.Choice(["features", "text"]),
    default="features",
    show_default=True,
    help="text: where sentences can be looked for; takes SigLIP and its weights.",
)
@click.option(
    "--kind",
    type=click.Choice(["flat", "hnsw", "ivf"]),
    help="How vectors are looked up; by default by their number.",
)
@click.option("--rebuild", is_flag=True, help="Make it anew.")
@weights_option
@device_option
@common_options
def index(
    *,
    cache: str,
    stream: str | None,
    space: Any,
    kind: Any,
    rebuild: bool,
    weights: tuple[str, ...],
    device: str,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Make what `pipeline search` looks in: a vector for each clip of CACHE."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.cache import open_cache
    from pipeline.indexing import frames_of, update_index
    from pipeline.pooling import mean_of_grids
    from pipeline.stream_encoder import choose_stream, lazy_pool

    began = time.monotonic()
    with open_cache(cache) as opened:
        stream = choose_stream(opened, stream, text=space == "text")
        pool: Pool = mean_of_grids
        if space == "text":
            pool = lazy_pool(opened, stream, weights=weights, device=device)
        with counted(len(opened), "pooled", unit="clip", quiet=quiet) as progress:
            made = update_index(
                opened,
                stream=stream,
                space=space,
                frames=frames_of(
                    opened, stream=stream, space=space, pool=pool, on_samples=progress
                ),
                kind=kind,
                rebuild=rebuild,
            )
    seconds = time.monotonic() - began
    if as_json:
        print_json(_document(cache, made, seconds=seconds))
        return
    _print(cache, made, seconds=seconds)


def _document(cache: str, made: Indexing, *, seconds: float) -> dict[str, Any]:
    info = made.info
    return {
        "cache": cache,
        "stream": info.stream,
        "space": info.space,
        "kind": info.kind,
        "vectors": info.num_vectors,
        "dim": info.dim,
        "added": made.num_added,
        "rebuilt": made.why_anew,
        "recall_at_10": info.recall_at_10,
        "recall_queries": info.recall_queries,
        "file": f"search/{info.file}",
        "bytes": info.file_bytes,
        "fingerprint": info.fingerprint,
        "seconds": round(seconds, 3),
    }


def _print(cache: str, made: Indexing, *, seconds: float) -> None:
    from pipeline.indexing import NONE_YET

    info = made.info
    what = f"{count_text(info.num_vectors, 'clip')} of {info.stream}, {info.dim} numbers each"
    if info.space == "text":
        what += ", in its text space"
    if made.why_anew == NONE_YET:
        done = "made"
    elif made.why_anew:
        done = f"made anew, {made.why_anew},"
    elif made.num_added:
        done = f"{count_text(made.num_added, 'clip')} added"
    else:
        done = "nothing was new"
    exact = "exact" if info.kind == "flat" else f"recall {info.recall_at_10:.4f} of the ten nearest"
    measured = f", by {info.recall_queries} of its own vectors" if info.recall_queries else ""
    print_facts(
        [
            ("index", what),
            ("done", f"{done} in {duration_text(seconds)}"),
            ("kind", f"{info.kind}: {exact}{measured}"),
            ("file", f"search/{info.file}, {size_text(info.file_bytes)}"),
            ("next", _next(cache, text=info.space == "text")),
        ]
    )


def _next(cache: str, *, text: bool) -> str:
    import shlex

    query = '"a dog that runs"' if text else "--like KEY"
    return f"pipeline search {shlex.quote(cache)} {query}"
