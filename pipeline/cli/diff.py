"""`pipeline diff`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.counted import counted
from pipeline.cli.run import cache_path
from pipeline.cli.show import (
    common_options,
    count_text,
    print_facts,
    print_json,
    print_table,
    set_verbosity,
)

if TYPE_CHECKING:
    from pipeline.cache import FeatureCache
    from pipeline.clip_comparison import StreamDiff
    from pipeline.diffing import CacheDiff, VideoDifference

EPILOG = """\b
Examples:
  pipeline diff before/ after/
  pipeline diff cache/ s3://bucket/cache --videos-only
  pipeline diff float16/ int8/ --sample 500 --json

Videos are matched by id, else by content; clips by number, streams by name; features are compared
where both caches have a clip at the same times. A channel's error is the root mean square of what
differs over that of B's features; cosines are between features of one token. Where one cache's grid
divides the other's, the finer one is averaged. Exit code 1 when anything differs."""

SHOWN = 20


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("a")
@click.argument("b")
@click.option("--videos-only", is_flag=True, help="Compare recipes and videos, not features.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compare the features of N clips, the same ones each time. [default: all]",
)
@click.option("--all", "show_all", is_flag=True, help=f"All videos, not the first {SHOWN}.")
@common_options
def diff(
    *,
    a: str,
    b: str,
    videos_only: bool,
    sample: int | None,
    show_all: bool,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> int:
    """Compare two caches: their recipes, their videos, and the features of the clips of both."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.cache import open_cache
    from pipeline.diffing import diff_caches

    with open_cache(cache_path(a)) as first, open_cache(cache_path(b)) as second:
        total = min(len(first), len(second), sample or len(first))
        with counted(total, "compared", unit="clip", quiet=quiet) as progress:
            found = diff_caches(
                first, second, videos_only=videos_only, max_clips=sample, progress=progress
            )
        if as_json:
            print_json({"same": found.is_same} | asdict(found))
        else:
            _print(found, first, second, videos_only=videos_only, show_all=show_all)
    return 0 if found.is_same else 1


def _print(
    found: CacheDiff, a: FeatureCache, b: FeatureCache, *, videos_only: bool, show_all: bool
) -> None:
    recipes = f"the same, {a.recipe.name} (fingerprint {a.fingerprint[:8]})"
    if found.fields or a.fingerprint != b.fingerprint:
        recipes = " and ".join(f"{one.recipe.name} ({one.fingerprint[:8]})" for one in (a, b))
    changed = f", {len(found.videos):,} in both that differ" if found.videos else ""
    facts = [
        ("recipe", recipes),
        (
            "videos",
            f"{found.num_same_videos:,} the same, {len(found.only_a):,} only in A,"
            f" {len(found.only_b):,} only in B{changed}",
        ),
    ]
    if not videos_only:
        facts.append(
            (
                "clips",
                f"{found.num_common:,} in both at the same times, {found.num_compared:,} compared,"
                f" {found.num_equal:,} equal to the byte",
            )
        )
    print_facts(facts)
    for line in found.fields:
        click.echo(f"  {line}")
    _print_videos(found, a, b, show_all=show_all)
    if found.num_equal < found.num_compared:
        _print_clips(found)


def _print_videos(found: CacheDiff, a: FeatureCache, b: FeatureCache, *, show_all: bool) -> None:
    rows = [
        (video_id, "differs", _words(one)) for one in found.videos for video_id in [one.video_id]
    ]
    for where, cache, ids in (("A", a, found.only_a), ("B", b, found.only_b)):
        rows += [
            (one, f"only in {where}", count_text(len(cache.videos[one]), "clip")) for one in ids
        ]
    if not rows:
        return
    click.echo()
    uris = _uris(a) | _uris(b)
    shown = rows if show_all else rows[:SHOWN]
    print_table(
        ("video", "", "clips", "source"),
        [(video_id, what, words, uris.get(video_id, "")) for video_id, what, words in shown],
    )
    if len(rows) > len(shown):
        click.echo(f"and {count_text(len(rows) - len(shown), 'more video')} (--all)")


def _uris(cache: FeatureCache) -> dict[str, str]:
    # Of a video with several, the first.
    return {video_id: uris[0].rpartition("/")[2] for video_id, uris in cache.uris.items()}


def _words(one: VideoDifference) -> str:
    told = [
        (one.only_a, "only in A"),
        (one.only_b, "only in B"),
        (one.other_times, "at other times"),
        (one.other_frames, "of other numbers of frames"),
    ]
    words = [f"{count:,} {what}" for count, what in told if count]
    return ", ".join(words + [f"called {one.other_id} in B"] * bool(one.other_id))


def _print_clips(found: CacheDiff) -> None:
    click.echo()
    rows = [(name, count) for name, count in found.members.items()]
    print_table(("member", "clips in which it differs"), rows)
    if found.info:
        told = ", ".join(f"{name} in {count:,}" for name, count in found.info.items())
        click.echo(f"json: {told}")
    streams: Sequence[StreamDiff] = [one for one in found.streams if one.difference]
    if streams:
        click.echo()
        header = ("stream", "1 - cosine", "worst clip", "channel error", "worst channel", "")
        print_table(header, [_stream_cells(one) for one in streams])
    for one in found.streams:
        if one.not_comparable:
            click.echo(f"{one.name}: not compared, {one.not_comparable}")
        if one.num_not_finite:
            clips = count_text(one.num_not_finite, "clip")
            click.echo(f"{one.name}: {clips} with NaN or infinity left out of the numbers")


def _stream_cells(one: StreamDiff) -> tuple[Any, ...]:
    assert one.difference is not None
    told = one.difference
    return (
        one.name,
        f"{max(0.0, 1 - told.cosine_mean):.1e}",
        f"{max(0.0, 1 - told.cosine_min):.1e}",
        f"{told.channel_error_median:.3%}",
        f"{told.channel_error_max:.3%}",
        f"{one.worst_key} is worst" + (f"; on {one.compared_at} cells" if one.compared_at else ""),
    )
