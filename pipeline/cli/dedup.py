"""`pipeline dedup`."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.counted import counted
from pipeline.cli.show import (
    common_options,
    count_text,
    print_facts,
    print_json,
    print_table,
    printable,
    set_verbosity,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.deduplicating import Duplicates
    from pipeline.duplicate import Copy, Pair

EPILOG = """\b
Examples:
  pipeline dedup cache/
  pipeline dedup cache/ -o keep.csv
  pipeline run videos/ other-cache/ --skip-duplicates cache/

Nothing is deleted. Tables lie in cache/duplicates/, for `pipeline report` and --skip-duplicates.
docs/duplicates.md says what cannot be found."""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.option("--stream", help="Whose features; by default the first stream's.")
@click.option(
    "--least-score",
    type=click.FloatRange(0, 1),
    help="Score from which a pair counts. [default: 0.5; 0.55 with random weights]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a csv list of the sources to keep, for `pipeline run`.",
)
@common_options
def dedup(
    *,
    cache: str,
    stream: str | None,
    least_score: float | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Find videos of CACHE that are copies or parts of others, and say which ones to keep."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.cache import open_cache
    from pipeline.deduplicating import find_duplicates
    from pipeline.duplicate_tables import write_duplicates
    from schemas.errors import UsageError

    if output is not None and output.suffix.lower() != ".csv":
        raise UsageError(
            f"{output}: the list of sources is a csv, which is known by its name",
            hint=f"name it {output.with_suffix('.csv').name}",
        )
    with open_cache(cache) as opened:
        found = find_duplicates(
            opened,
            stream=stream or opened.streams[0],
            least_score=least_score,
            counting=lambda total, unit, verb: counted(total, verb, unit=unit, quiet=quiet),
        )
        write_duplicates(opened.layout, found)
    if output is not None:
        _write_list(output, found.kept)
    if as_json:
        print_json(_document(found))
    else:
        _print(found, output)


def _document(found: Duplicates) -> dict[str, Any]:
    return {
        "videos": found.num_videos,
        "sources": len(found.sources),
        "kept": len(found.kept),
        "not_cached": found.num_left,
        "least_score": found.least_score,
        "clusters": [
            {
                "keep": cluster.keep.uri,
                "copies": [
                    {
                        "uri": member.copy.uri,
                        "video_id": member.copy.video_id,
                        "kind": member.kind,
                        "score": round(member.score, 4),
                        "spans": None if member.pair is None else _spans(member.pair),
                    }
                    for member in cluster.copies
                ],
            }
            for cluster in found.clusters
        ],
        "pairs": [
            {"kind": pair.kind, "score": round(pair.score, 4), "spans": _spans(pair)}
            for pair in found.pairs
        ],
    }


def _spans(pair: Pair) -> dict[str, list[float]]:
    """video_id -> [start, end) in seconds."""
    return {
        pair.video_b: [round(pair.start_b_seconds, 3), round(pair.end_b_seconds, 3)],
        pair.video_a: [round(pair.start_a_seconds, 3), round(pair.end_a_seconds, 3)],
    }


def _print(found: Duplicates, output: Path | None) -> None:
    name_of = _naming(found.sources)
    # Of a video whose probe is gone its id is all that is known.
    names = {name: name for pair in found.pairs for name in (pair.video_a, pair.video_b)}
    for copy in reversed(found.sources):  # of a video the best one's
        names[copy.video_id] = name_of(copy)
    for cluster in found.clusters:
        keep = cluster.keep
        click.echo(
            f"keep {name_of(keep)}  {keep.width}x{keep.height}, {keep.duration_seconds:.1f} s"
        )
        rows = []
        for member in cluster.copies:
            pair = member.pair
            own = of = like = "-"
            if pair is not None:
                own = f"{pair.start_b_seconds:.1f}-{pair.end_b_seconds:.1f}"
                of = f"{pair.start_a_seconds:.1f}-{pair.end_a_seconds:.1f}"
                like = names[pair.video_a]
            rows.append(("", name_of(member.copy), member.kind, member.score, own, of, like))
        print_table(("", "copy", "kind", "score", "seconds", "are", "of"), rows)
        click.echo()
    told = {member.copy.video_id for cluster in found.clusters for member in cluster.copies}
    parts = [pair for pair in found.pairs if not {pair.video_a, pair.video_b} & told]
    if parts:
        click.echo("in part the same, both kept")
        print_table(
            ("", "video", "seconds", "other", "seconds", "score"),
            [
                (
                    "",
                    names[pair.video_a],
                    f"{pair.start_a_seconds:.1f}-{pair.end_a_seconds:.1f}",
                    names[pair.video_b],
                    f"{pair.start_b_seconds:.1f}-{pair.end_b_seconds:.1f}",
                    pair.score,
                )
                for pair in parts
            ],
        )
        click.echo()
    num_copies = len(found.sources) - len(found.kept)
    facts = [
        (
            "looked at",
            f"{count_text(len(found.sources), 'source')}, {count_text(found.num_videos, 'video')}",
        ),
        (
            "found",
            f"{count_text(num_copies, 'source')} superfluous,"
            f" {count_text(len(found.clusters), 'cluster')}",
        ),
    ]
    if output is not None:
        facts.append(("keep", f"{count_text(len(found.kept), 'source')}: {output}"))
        if found.num_left:
            facts.append(("", f"without {count_text(found.num_left, 'source')} not cached here"))
    print_facts(facts)


def _naming(sources: Sequence[Copy]) -> Callable[[Copy], str]:
    """What a source is called: its file's name, with folders where two files have one name."""
    uris = {copy.uri for copy in sources}
    common = os.path.commonprefix(list(uris))  # noqa: RUF071 - of URLs too, and cut at a slash
    shared = common.rfind("/") + 1
    seen = Counter(PurePath(uri).name for uri in uris)

    def name_of(copy: Copy) -> str:
        # Of a span of a file with what it spans.
        ends = (
            "" if second is None else f"{second:g}"
            for second in (copy.start_seconds, copy.end_seconds)
        )
        span = "-".join(ends)
        name = PurePath(copy.uri).name
        name = name if seen[name] < 2 else copy.uri[shared:]
        return printable(name) + ("" if span == "-" else f" {span} s")

    return name_of


def _write_list(path: Path, kept: Sequence[Copy]) -> None:
    import csv

    from schemas.errors import UsageError

    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("uri", "id", "start", "end"))
            for copy in sorted(kept, key=lambda copy: (copy.uri, copy.start_seconds or 0.0)):
                writer.writerow((copy.uri, copy.user_id, copy.start_seconds, copy.end_seconds))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
