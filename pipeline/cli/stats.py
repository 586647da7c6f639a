"""`pipeline stats`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.bars import print_bars
from pipeline.cli.show import (
    common_options,
    duration_text,
    print_facts,
    print_json,
    set_verbosity,
    size_text,
)

if TYPE_CHECKING:
    from pipeline.places import Place

EPILOG = """\b
Examples:
  pipeline stats cache/
  pipeline stats cache/ --json"""

_DURATIONS = (0.0, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, float("inf"))


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@common_options
def stats(*, cache: str, as_json: bool, quiet: bool, loud: bool) -> None:
    """Show totals and distributions of CACHE: durations, sizes, rates, codecs, sound, damage."""
    set_verbosity(quiet=quiet, loud=loud)
    numbers = _collect(cache)
    if as_json:
        print_json(numbers)
        return
    hours = numbers["seconds"] / 3600
    print_facts(
        [
            ("videos", f"{numbers['videos']:,}"),
            ("duration", duration_text(numbers["seconds"])),
            ("clips", f"{numbers['samples']:,}, {numbers['fill_rate']:.1%} of frames are fill"),
            (
                "bytes",
                f"{size_text(numbers['bytes'])}, {size_text(numbers['bytes'] / hours)}"
                " an hour of video",
            ),
            *((f"  {name}", size_text(size)) for name, size in numbers["member_bytes"].items()),
            ("sound", f"{numbers['audio_rate']:.1%} of videos have a track"),
            ("damage", f"{numbers['truncated']} truncated, {numbers['corrupt']} corrupt videos"),
        ]
    )
    for title in ("duration", "frame rate", "picture", "codec", "container", "rejects"):
        histogram = numbers["histograms"][title]
        if histogram:
            click.echo(f"\n{title}")
            print_bars(histogram)


def _collect(path: str) -> dict[str, Any]:
    from pipeline.cache import open_cache
    from pipeline.probing import read_probes

    with open_cache(path) as cache:
        table = cache.index.to_pydict()
        probes = {
            probe.video_id: probe
            for probe in read_probes(cache.layout)
            if probe.video_id in cache.videos
        }
        member_bytes: Counter[str] = Counter()
        for names, sizes in zip(table["member_names"], table["member_bytes"], strict=True):
            member_bytes.update(dict(zip(names, sizes, strict=True)))
        damaged = {
            kind: len({v for v, bad in zip(table["video_id"], table[kind], strict=True) if bad})
            for kind in ("truncated", "corrupt")
        }
        frames = sum(table["num_frames"])
        places = len(cache) * cache.recipe.sampling.frames_per_clip
        spans = zip(table["start_seconds"], table["end_seconds"], strict=True)
        return {
            "videos": len(cache.videos),
            "samples": len(cache),
            "frames": frames,
            "seconds": round(sum(end - start for start, end in spans), 6),
            "bytes": cache.info.counts["bytes"],
            "fill_rate": 1 - frames / places,
            "member_bytes": dict(sorted(member_bytes.items())),
            "audio_rate": sum(p.has_audio for p in probes.values()) / max(1, len(probes)),
            **damaged,
            "histograms": _histograms(list(probes.values()), _reject_reasons(cache.layout.root)),
        }


def _reject_reasons(root: Place) -> list[str]:
    from pipeline.layout import CacheLayout
    from pipeline.storage import read_table

    reasons: list[str] = read_table(CacheLayout(root).rejects).column("reason").to_pylist()
    return reasons


def _histograms(probes: list[Any], reasons: list[str]) -> dict[str, dict[str, int]]:
    durations = dict.fromkeys(map(_bin_name, range(len(_DURATIONS) - 1)), 0)
    for probe in probes:
        number = sum(probe.duration_seconds >= edge for edge in _DURATIONS[1:])
        durations[_bin_name(number)] += 1
    return {
        "duration": {name: count for name, count in durations.items() if count},
        "frame rate": _most_common(_rate_text(probe) for probe in probes),
        "picture": _most_common(f"{probe.width} x {probe.height}" for probe in probes),
        "codec": _most_common(probe.codec for probe in probes),
        "container": _most_common(probe.container for probe in probes),
        "rejects": _most_common(reasons),
    }


def _rate_text(probe: Any) -> str:
    from pipeline.overview import frame_rate

    fps = frame_rate(probe)
    return f"{fps:.5g} fps" if fps else "unknown"


def _bin_name(number: int) -> str:
    low, high = _DURATIONS[number], _DURATIONS[number + 1]
    return f"{low:g} s and more" if high == float("inf") else f"{low:g} to {high:g} s"


def _most_common(values: Any, *, limit: int = 8) -> dict[str, int]:
    counts = Counter(values)
    shown = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit])
    rest = counts.total() - sum(shown.values())
    return shown | ({"other": rest} if rest else {})
