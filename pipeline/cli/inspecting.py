"""`pipeline inspect`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any

import click

from pipeline.cli.show import (
    common_options,
    count_text,
    duration_text,
    print_facts,
    print_json,
    print_table,
    set_verbosity,
    size_text,
)
from schemas.errors import CacheDamaged, UsageError

if TYPE_CHECKING:
    from pipeline.cache import FeatureCache
    from pipeline.places import Place

EPILOG = """\b
Examples:
  pipeline inspect cache/
  pipeline inspect cache/shards/train-000000-3fa9c1d2.tar
  pipeline inspect cache/::v0123456789abcdef
  pipeline inspect cache/::v0123456789abcdef_000000 --json
  pipeline inspect s3://bucket/cache"""

SHOWN = 20
MOTION_WIDTH = 16
"""Characters of a line of small bars, one or more clips each."""


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("target", metavar="CACHE|SHARD.tar|CACHE::VIDEO|CACHE::KEY")
@click.option("--all", "show_all", is_flag=True, help=f"All rows, not the first {SHOWN}.")
@common_options
def inspect(*, target: str, show_all: bool, as_json: bool, quiet: bool, loud: bool) -> None:
    """Look into a cache, a shard, a video or one sample: shapes, dtypes, bytes, times.

    VIDEO is an id, one that was given, or a uri.
    """
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.places import is_file, to_place

    cache, separator, key = target.partition("::")
    if separator:
        _inspect_part(cache, key, show_all=show_all, as_json=as_json)
    elif target.endswith(".tar") or is_file(to_place(target)):
        _inspect_shard(to_place(target), show_all=show_all, as_json=as_json)
    else:
        _inspect_cache(target, show_all=show_all, as_json=as_json)


def _inspect_cache(path: str, *, show_all: bool, as_json: bool) -> None:
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
        shown = videos if show_all else videos[:SHOWN]
        _print_videos(cache, shown)
        _say_rest(len(videos) - len(shown), "video")


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
    sources = {video_id: uri for uri, video_id in cache.aliases.items() if "/" in uri}
    for video_id, keys in cache.videos.items():
        rows = [numbers[key] for key in keys]
        kinds = ("truncated", "corrupt")
        yield {
            "video_id": video_id,
            "source": sources.get(video_id, ""),
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
        yield f"{name}.npy", stream.encoder, _shape(shape), stream.dtype
        if stream.dtype == "int8":
            yield f"{name}{SCALE_MEMBER}", "", _shape((stamp["dim"],)), "float32"
    audio = cache.recipe.audio
    if audio is not None:
        windows = windows_per_clip(fps=cache.recipe.sampling.fps, frames_per_clip=num_frames)
        tokens = (windows, audio.tokens_per_window, cache.info.stamps[AUDIO]["dim"])
        yield AUDIO_MEMBER, audio.encoder, _shape(tokens), audio.dtype
        yield AUDIO_MASK_MEMBER, "", _shape((windows,)), "bool"
    yield "time.npy", "", _shape((num_frames, 2)), "float64"
    yield "mask.npy", "", _shape((num_frames,)), "bool"


def _inspect_shard(path: Place, *, show_all: bool, as_json: bool) -> None:
    from pipeline.places import open_file, size_of

    samples: dict[str, list[dict[str, Any]]] = {}
    try:
        num_bytes = size_of(path)
        with open_file(path) as file:
            for name, member in _read_members(file, where=str(path)):
                samples.setdefault(name, []).append(member)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise CacheDamaged(f"{path}: cannot be read: {error.strerror or error}") from error
    if as_json:
        listed = [{"key": key, "members": members} for key, members in samples.items()]
        print_json({"shard": str(path), "bytes": num_bytes, "samples": listed})
        return
    print_facts(
        [
            ("shard", str(path)),
            ("samples", f"{len(samples):,}"),
            ("bytes", size_text(num_bytes)),
        ]
    )
    click.echo()
    keys = list(samples) if show_all else list(samples)[:SHOWN]
    rows = []
    for key in keys:
        for number, member in enumerate(samples[key]):
            rows.append(("" if number else key, *_member_cells(member)))
    print_table(("key", "member", "shape", "dtype", "bytes"), rows)
    _say_rest(len(samples) - len(keys), "sample")


def _read_members(shard: IO[bytes], *, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import tarfile

    try:
        with tarfile.open(fileobj=shard, mode="r:") as archive:
            for entry in archive:
                file = archive.extractfile(entry)
                if file is None:
                    continue
                key, _, name = entry.name.partition(".")
                head = file.read(256) if name.endswith(".npy") else b""
                yield key, _describe_member(name, head, entry.size)
    except tarfile.TarError as error:
        raise CacheDamaged(f"{where}: not a shard: {error}") from error


def _describe_member(name: str, head: bytes, num_bytes: int) -> dict[str, Any]:
    import io

    import numpy as np

    shape: list[int] | None = None
    dtype: str | None = None
    if name.endswith(".npy"):
        stream = io.BytesIO(head)
        try:
            np.lib.format.read_magic(stream)
            header = np.lib.format.read_array_header_1_0(stream)
        except ValueError as error:
            raise CacheDamaged(f"member {name}: {error}") from error
        shape, dtype = list(header[0]), str(header[2])
    return {"name": name, "dtype": dtype, "shape": shape, "bytes": num_bytes}


def _inspect_part(path: str, name: str, *, show_all: bool, as_json: bool) -> None:
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
        video_id = cache.find_video(name)
        if video_id is None:
            cache.row(name)  # says what is like it
        else:
            most_rows = None if show_all else SHOWN
            inspect_video(cache, video_id, most_rows=most_rows, as_json=as_json)
            if not as_json and most_rows is not None:
                _say_rest(len(cache.videos[video_id]) - most_rows, "clip")


def _inspect_sample(cache: FeatureCache, key: str, *, as_json: bool) -> None:
    from pipeline.cli.inspecting_video import clip_table

    row, sample = cache.row(key), cache[key]
    members = []
    for name, data in sample.to_members():
        head = b"".join(bytes(part[:256]) for part in data)[:256]
        members.append(_describe_member(name, head, row.members[name][1]))
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
        [(*_member_cells(m), bar(m["bytes"], largest=largest, width=24)) for m in members],
    )


def _member_cells(member: dict[str, Any]) -> tuple[Any, ...]:
    shape = "" if member["shape"] is None else _shape(tuple(member["shape"]))
    return member["name"], shape, member["dtype"] or "", member["bytes"]


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


def _say_rest(count: int, noun: str) -> None:
    if count > 0:
        click.echo(f"and {count_text(count, noun)} more (--all)")
