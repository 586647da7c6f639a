"""`pipeline search`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.counted import counted
from pipeline.cli.show import (
    common_options,
    count_text,
    device_option,
    print_json,
    print_table,
    set_verbosity,
    weights_option,
)
from schemas.errors import StorageError, UsageError, WeightsError

if TYPE_CHECKING:
    from pipeline.cache import FeatureCache
    from pipeline.clip_vectors import Vectors
    from pipeline.cutting import Cut
    from pipeline.pooling import Pool
    from pipeline.search_index import SearchIndex, Space
    from pipeline.searching import FoundSpan

EPILOG = """\b
Examples:
  pipeline search cache/ --like v0123456789abcdef_000003
  pipeline search cache/ --image beach.jpg --top 5 --previews strips/
  pipeline search cache/ "a dog that runs" --weights siglip=FOLDER --export clips/

Looks in what `pipeline index` has made; shards that are newer are added first. A score is a
cosine, 1 for the same; of a sentence and a picture it is seldom above 0.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    text: str | None
    like: str | None
    image: Path | None
    weights: Sequence[str]
    tokenizer: Path | None
    device: str


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.argument("text", required=False)
@click.option("--like", metavar="KEY", help="Look for what is like a clip of the cache.")
@click.option(
    "--image",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Look for what is like a picture.",
)
@click.option("--stream", help="Whose features; by default the first stream's.")
@click.option(
    "--space",
    type=click.Choice(["features", "text"]),
    help="Where to look; text for a sentence, else features by default.",
)
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many.")
@click.option("--clips", is_flag=True, help="Single clips, not spans of clips side by side.")
@click.option("--elsewhere", is_flag=True, help="With --like: only in other videos.")
@click.option("--as-is", is_flag=True, help="Do not add shards that are new.")
@click.option(
    "--previews", type=click.Path(path_type=Path, file_okay=False), help="Write strips there."
)
@click.option(
    "--export", type=click.Path(path_type=Path, file_okay=False), help="Cut the spans into it."
)
@weights_option
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of the text tower's tokenizer; by default that of the weights.",
)
@device_option
@common_options
def search(
    *,
    cache: str,
    text: str | None,
    like: str | None,
    image: Path | None,
    stream: str | None,
    space: Any,
    top: int,
    clips: bool,
    elsewhere: bool,
    as_is: bool,
    previews: Path | None,
    export: Path | None,
    weights: tuple[str, ...],
    tokenizer: Path | None,
    device: str,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Find the spans of CACHE that are nearest to TEXT, to a clip or to a picture."""
    set_verbosity(quiet=quiet, loud=loud)
    query = _Query(
        text=text, like=like, image=image, weights=weights, tokenizer=tokenizer, device=device
    )
    space = _check(query, space, elsewhere=elsewhere)
    from pipeline.cache import open_cache
    from pipeline.searching import find_spans, write_previews
    from pipeline.stream_encoder import choose_stream

    with open_cache(cache) as opened:
        stream = choose_stream(opened, stream, text=space == "text")
        leave_out = _leave_out(opened, like, elsewhere=elsewhere)
        index = _open_index(opened, stream, space, query, as_is=as_is, quiet=quiet)
        vector = _vector(opened, query, stream=stream, space=space)
        found = find_spans(opened, index, vector, top=top, merge=not clips, leave_out=leave_out)
        strips = write_previews(opened, found, previews) if previews else {}
        cuts = _export(opened, found, export, quiet=quiet) if export else {}
    if as_json:
        print_json([_document(span, strips, cuts) for span in found])
    else:
        _print(found, quiet=quiet)
    if cuts and all(cut.path is None for cut in cuts.values()):
        raise UsageError(
            "no span could be cut out: the sources are not what was cached any more",
            hint="put the files back where they were",
        )


def _check(query: _Query, space: str | None, *, elsewhere: bool) -> str:
    asked = [name for name in ("text", "like", "image") if getattr(query, name) is not None]
    if len(asked) != 1:
        raise UsageError(
            f"one thing is looked for at a time, not {len(asked)}",
            hint='give "TEXT", --like KEY or --image FILE',
        )
    if query.text is not None and not any(char.isalnum() for char in query.text):
        raise UsageError(f"TEXT has no word in it: {query.text!r}")
    if query.text is not None and space == "features":
        raise UsageError("a sentence is looked for in the text space", hint="leave --space out")
    if elsewhere and query.like is None:
        raise UsageError("--elsewhere is of a clip's own video", hint="use it with --like KEY")
    return space or ("features" if query.text is None else "text")


def _leave_out(cache: FeatureCache, like: str | None, *, elsewhere: bool) -> set[str]:
    if like is None:
        return set()
    row = cache.row(like)
    return set(cache.videos[row.video_id]) if elsewhere else {like}


def _open_index(
    cache: FeatureCache, stream: str, space: Space, query: _Query, *, as_is: bool, quiet: bool
) -> SearchIndex:
    from pipeline.indexing import find_lack, frames_of, update_index
    from pipeline.pooling import mean_of_grids
    from pipeline.search_index import no_index, read_index_info, read_search_index
    from pipeline.stream_encoder import lazy_pool

    info = read_index_info(cache, stream=stream, space=space)
    if info is None:
        raise no_index(cache.layout, stream=stream, space=space)
    lack = find_lack(cache, info)
    if lack.num_clips and not as_is:
        pool: Pool = mean_of_grids
        if space == "text":
            pool = lazy_pool(cache, stream, weights=query.weights, device=query.device)
        try:
            with counted(lack.num_clips, "pooled", unit="clip", quiet=quiet) as progress:
                frames = frames_of(
                    cache, stream=stream, space=space, pool=pool, on_samples=progress
                )
                made = update_index(cache, stream=stream, space=space, frames=frames)
            info = made.info
            again = f" (made anew: {made.why_anew})" if made.why_anew else ""
            _say(f"{count_text(made.num_added, 'clip')} added to the index{again}", quiet=quiet)
        except (WeightsError, StorageError) as error:
            if query.text is not None and isinstance(error, WeightsError):
                raise  # what comes next takes them, too
            _say(f"the index is older than the cache: {error.message}", quiet=quiet)
    elif lack.num_clips:
        _say(f"{count_text(lack.num_clips, 'clip')} of the cache not looked at", quiet=quiet)
    return read_search_index(cache, info)


def _vector(cache: FeatureCache, query: _Query, *, stream: str, space: Space) -> Vectors:
    from encoders.devices import choose_device
    from pipeline.pooling import mean_of_grids
    from pipeline.search_index import index_name
    from pipeline.searching import vector_of_clip
    from pipeline.stream_encoder import encode_picture, encode_text, lazy_pool, stream_recipe

    if query.like is not None:
        pool: Pool = mean_of_grids
        if space == "text":
            pool = lazy_pool(cache, stream, weights=query.weights, device=query.device)
        return vector_of_clip(
            cache, query.like, stream=stream, kept_as=index_name(stream, space), pool=pool
        )
    device = choose_device(query.device)
    recipe = stream_recipe(cache, stream, weights=query.weights, device=device)
    if query.text is not None:
        return encode_text(query.text, recipe=recipe, tokenizer=query.tokenizer, device=device)
    assert query.image is not None
    return encode_picture(query.image, cache, recipe=recipe, device=device, text=space == "text")


def _export(
    cache: FeatureCache, found: list[FoundSpan], folder: Path, *, quiet: bool
) -> dict[int, Cut]:
    from pipeline.cutting import cut_spans

    cuts: dict[int, Cut] = {}
    with counted(len(found), "cut", unit="span", quiet=quiet) as progress:
        for cut in cut_spans(cache, found, folder):
            cuts[cut.span.rank] = cut
            progress(1)
    failed = [cut for cut in cuts.values() if cut.path is None]
    for cut in failed:
        _say(f"not cut: {cut.span.rank}, {cut.span.source}: {cut.why_not}", quiet=quiet)
    if len(failed) < len(cuts):
        _say(f"{count_text(len(cuts) - len(failed), 'span')} cut into {folder}", quiet=quiet)
    return cuts


def _document(span: FoundSpan, strips: dict[int, Path], cuts: dict[int, Cut]) -> dict[str, Any]:
    cut, strip = cuts.get(span.rank), strips.get(span.rank)
    return {
        "rank": span.rank,
        "score": round(span.score, 6),
        "video_id": span.video_id,
        "source": span.source,
        "start_seconds": span.start_seconds,
        "end_seconds": span.end_seconds,
        "key": span.key,
        "clips": len(span.keys),
        "preview": None if strip is None else str(strip),
        "cut": None if cut is None or cut.path is None else str(cut.path),
    }


def _print(found: list[FoundSpan], *, quiet: bool) -> None:
    if not found:
        _say("nothing found", quiet=quiet)
        return
    rows = [
        (
            span.rank,
            span.score,
            span.start_seconds,
            span.end_seconds,
            len(span.keys),
            PurePath(span.source).name,
            span.key,
        )
        for span in found
    ]
    print_table(("rank", "score", "start", "end", "clips", "video", "key"), rows)


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        click.echo(text, err=True)
