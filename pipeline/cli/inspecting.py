"""`pipeline inspect`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.inspecting_shard import (
    describe_member,
    inspect_shard,
    member_cells,
    say_rest,
    shape_text,
)
from pipeline.cli.show import (
    common_options,
    count_text,
    duration_text,
    print_facts,
    print_json,
    print_table,
    printable,
    set_verbosity,
    size_text,
)
from schemas.errors import UsageError

if TYPE_CHECKING:
    from pipeline.cache import FeatureCache

EPILOG = """\b
Examples:
  pipeline inspect cache/
  pipeline inspect cache/shards/train-000000-3fa9c1d2.tar
  pipeline inspect cache/::v0123456789abcdef
  pipeline inspect cache/::v0123456789abcdef_000000 --json
  pipeline inspect s3://bucket/cache"""

SHOWN = 20
MOST_NAMED = 5
MOTION_WIDTH = 16
"""Characters of a line of small bars, one or more clips each."""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("target", metavar="CACHE|SHARD.tar|CACHE::VIDEO|CACHE::KEY")
@click.option("--all", "show_all", is_flag=True, help=f"All rows, not the first {SHOWN}.")
@common_options
def inspect(*, target: str, show_all: bool, as_json: bool, quiet: bool, loud: bool) -> None:
    """Look into a cache, a shard, a video or one sample: shapes, dtypes, bytes, times.

    VIDEO is an id, one that was given, a uri, or the name of its file.
    """
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.places import is_file, to_place

    most_rows = None if show_all else SHOWN
    cache, separator, key = target.partition("::")
    if separator:
        _inspect_part(cache, key, most_rows=most_rows, as_json=as_json)
    elif target.endswith(".tar") or is_file(to_place(target)):
        inspect_shard(to_place(target), most_rows=most_rows, as_json=as_json)
    else:
        _inspect_cache(target, most_rows=most_rows, as_json=as_json)


def _inspect_cache(path: str, *, most_rows: int | None, as_json: bool) -> None:
    from pipeline.cache import open_cache

    with open_cache(path) as cache:
        info = cache.info
        videos = list(_video_rows(cache))
        if as_json:
            print_json(
                {
                    "cache": path,
                    "format_version": info.format_version,
                    "fingerprint": info.fingerprint,
                    "recipe": info.recipe,
                    "stamps": info.stamps,
                    "counts": info.counts,
                    "shards": [
                        {
                            "name": entry.name,
                            "samples": entry.num_samples,
                            "bytes": entry.tar_bytes,
                            "sha256": entry.sha256,
                        }
                        for entry in info.shards
                    ],
                    "videos": videos,
                }
            )
            return
        counts, sampling = info.counts, cache.recipe.sampling
        seconds = sum(video["end_seconds"] - video["start_seconds"] for video in videos)
        print_facts(
            [
                ("cache", path),
                ("recipe", f"{cache.recipe.name} (fingerprint {info.fingerprint[:8]})"),
                ("sampling", f"{sampling.fps:g} fps, {sampling.frames_per_clip} frames a clip"),
                (
                    "sources",
                    f"{counts['sources']:,}: {counts['cached']:,} cached,"
                    f" {counts['rejected']:,} rejected",
                ),
                ("videos", f"{counts['videos']:,}, {duration_text(seconds)} in all"),
                (
                    "samples",
                    f"{count_text(counts['samples'], 'clip')} ({counts['missing']} missing),"
                    f" {count_text(counts['frames'], 'frame')}",
                ),
                ("shards", f"{counts['shards']:,}, {size_text(counts['bytes'])}"),
            ]
        )
        click.echo()
        print_table(("member", "encoder", "shape", "dtype"), list(_stream_rows(cache)))
        click.echo()
        _print_sizes(cache)
        click.echo()
        shown = videos[:most_rows]
        _print_videos(cache, shown)
        say_rest(len(videos) - len(shown), "video")


def _print_sizes(cache: FeatureCache) -> None:
    from collections import Counter

    from pipeline.cli.bars import bar

    sizes: Counter[str] = Counter()
    extents = cache.extents
    for name, size in zip(extents.name_codes.tolist(), extents.member_bytes.tolist(), strict=True):
        sizes[extents.names[name]] += size
    largest = max(sizes.values(), default=0)
    print_table(
        ("member", "in all", ""),
        [(name, size_text(size), bar(size, largest=largest)) for name, size in sizes.most_common()],
    )


def _print_videos(cache: FeatureCache, videos: list[dict[str, Any]]) -> None:
    from pipeline.cli.bars import sparkline
    from pipeline.cli.inspecting_video import motion_of

    motions = [
        [motion_of(cache.row(key).quality) for key in cache.videos[video["video_id"]]]
        for video in videos
    ]
    judged = any(value is not None for values in motions for value in values)
    header = ("first key", "clips", "start", "end", "damage", *(["motion"] * judged), "source")
    print_table(
        header,
        [
            (
                video["first_key"],
                video["clips"],
                video["start_seconds"],
                video["end_seconds"],
                video["damage"] or "-",
                *([sparkline(values, low=0, high=1, width=MOTION_WIDTH)] * judged),
                PurePath(video["source"]).name,
            )
            for video, values in zip(videos, motions, strict=True)
        ],
    )


def _video_rows(cache: Any) -> Iterator[dict[str, Any]]:
    table = cache.index.to_pydict()
    numbers = {key: number for number, key in enumerate(table["key"])}
    for video_id, keys in cache.videos.items():
        rows = [numbers[key] for key in keys]
        kinds = ("truncated", "corrupt")
        yield {
            "video_id": video_id,
            "source": next(iter(cache.uris.get(video_id, ())), ""),
            "clips": len(keys),
            "frames": sum(table["num_frames"][row] for row in rows),
            "start_seconds": table["start_seconds"][rows[0]],
            "end_seconds": table["end_seconds"][rows[-1]],
            "first_key": keys[0],
            "damage": ", ".join(kind for kind in kinds if any(table[kind][row] for row in rows)),
        }


def _stream_rows(cache: Any) -> Iterator[tuple[str, ...]]:
    from schemas.compact import stored_shape
    from schemas.recipe import AUDIO
    from schemas.sample import AUDIO_MASK_MEMBER, AUDIO_MEMBER, SCALE_MEMBER
    from schemas.timeline import windows_per_clip

    num_frames = cache.recipe.sampling.frames_per_clip
    for name, stream in cache.recipe.streams.items():
        stamp = cache.info.stamps[name]
        shape = stored_shape(stream, stamp, num_frames=num_frames)
        yield f"{name}.npy", stream.encoder, shape_text(shape), stream.dtype
        if stream.dtype == "int8":
            yield f"{name}{SCALE_MEMBER}", "", shape_text((stamp["dim"],)), "float32"
    audio = cache.recipe.audio
    if audio is not None:
        windows = windows_per_clip(fps=cache.recipe.sampling.fps, frames_per_clip=num_frames)
        tokens = (windows, audio.tokens_per_window, cache.info.stamps[AUDIO]["dim"])
        yield AUDIO_MEMBER, audio.encoder, shape_text(tokens), audio.dtype
        yield AUDIO_MASK_MEMBER, "", shape_text((windows,)), "bool"
    yield "time.npy", "", shape_text((num_frames, 2)), "float64"
    yield "mask.npy", "", shape_text((num_frames,)), "bool"


def _inspect_part(path: str, name: str, *, most_rows: int | None, as_json: bool) -> None:
    from pipeline.cache import open_cache
    from pipeline.cli.inspecting_video import inspect_video

    if not name:
        raise UsageError(
            f"{path}:: names no key", hint=f"see: pipeline inspect {shlex.quote(str(path))}"
        )
    with open_cache(path) as cache:
        if name in cache:
            _inspect_sample(cache, name, as_json=as_json)
            return
        video_id = _find_video(cache, name)
        inspect_video(cache, video_id, most_rows=most_rows, as_json=as_json)
        if not as_json and most_rows is not None:
            say_rest(len(cache.videos[video_id]) - most_rows, "clip")


def _find_video(cache: FeatureCache, name: str) -> str:
    # A uri or a file's name may stand for several videos: spans of one file, or other folders.
    from pipeline.signing import to_public
    from schemas.settings import nearest

    public = to_public(name)
    found = [
        video_id
        for video_id, uris in cache.uris.items()
        if any(public in (uri, uri.rpartition("/")[2]) for uri in uris)
    ]
    if len(found) > 1:
        listed = ", ".join(map(printable, found[:MOST_NAMED])) + (
            ", ..." if len(found) > MOST_NAMED else ""
        )
        raise UsageError(
            f"{name!r} may be one of {len(found)} videos", hint=f"name it by its id: {listed}"
        )
    one = found[0] if found else cache.find_video(name)
    if one is None:
        known = {*cache.videos, *cache.aliases}
        raise UsageError(
            f"no video or sample {name!r} in {cache.layout.root}{nearest(name, known)}",
            hint=f"see: pipeline inspect {shlex.quote(str(cache.layout.root))}",
        )
    return one


def _inspect_sample(cache: FeatureCache, key: str, *, as_json: bool) -> None:
    from pipeline.cli.inspecting_video import clip_table

    row, sample = cache.row(key), cache[key]
    members = []
    for name, data in sample.to_members():
        head = b"".join(bytes(part[:256]) for part in data)[:256]
        members.append(describe_member(name, head, row.members[name][1]))
    if as_json:
        print_json(
            {
                "key": key,
                "shard": row.shard,
                "members": members,
                "json": sample.info,
                "times": sample.times.tolist(),
                "mask": sample.mask.tolist(),
            }
            | ({} if sample.audio_mask is None else {"audio_mask": sample.audio_mask.tolist()})
        )
        return
    print_facts([("key", key), ("shard", str(cache.layout.tar(row.shard)))])
    click.echo()
    _print_members(members)
    click.echo()
    header, cells = clip_table([row])
    print_table(header[:-1], [line[:-1] for line in cells])
    click.echo()
    print_table(
        ("frame", "start", "end", "filled"),
        [
            (number, float(start), float(end), "" if real else "yes")
            for number, ((start, end), real) in enumerate(
                zip(sample.times, sample.mask, strict=True)
            )
        ],
    )
    click.echo()
    facts = sorted(sample.info.items())
    print_facts([(name, json.dumps(value, ensure_ascii=False)) for name, value in facts])


def _print_members(members: list[dict[str, Any]]) -> None:
    from pipeline.cli.bars import bar

    largest = max(member["bytes"] for member in members)
    print_table(
        ("member", "shape", "dtype", "bytes", ""),
        [(*member_cells(m), bar(m["bytes"], largest=largest, width=24)) for m in members],
    )
