"""Show forecasts to people: one in full, or several side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pipeline.cli.show import (
    count_text,
    duration_text,
    print_facts,
    print_table,
    printable,
    size_text,
)

if TYPE_CHECKING:
    from pipeline.forecast import CardForecast, Forecast

SAMPLE_REJECTS = 3
"""Shown of each reason."""


def print_forecast(told: Forecast, *, cache: str | None, num_ignored: int) -> None:
    """What a run of one recipe would do."""
    work = told.work
    facts = [("recipe", f"{told.recipe}: {told.description}".removesuffix(": "))]
    facts += _source_facts(told, num_ignored=num_ignored)
    facts += _cache_facts(told, cache=cache)
    print_facts(facts)
    if not work.clips:
        why = "all that can be cached is cached" if told.done_clips else "no source can be used"
        click.echo(f"\nNothing to do: {why}.")
    else:
        parts = ", ".join(f"{name} {size_text(size)}" for name, size in told.member_bytes.items())
        click.echo("\nA run would")
        print_facts(
            [
                (
                    "  decode",
                    f"{count_text(work.videos, 'video')}, {_hours_text(work.seconds)} of video",
                ),
                (
                    "  sample",
                    f"{count_text(work.frames, 'frame')} at {told.fps:g} a second, in"
                    f" {count_text(work.clips, 'clip')} of {told.frames_per_clip}",
                ),
                ("  write", f"{count_text(work.shards, 'shard')}, {size_text(work.bytes)}"),
                ("", f"{size_text(told.bytes_per_clip)} a clip: {parts}"),
                ("  encode", _encode_text(told)),
                ("  need", _cores_text(told)),
            ]
        )
    if told.kept_bytes:
        click.echo("\nAfterwards" if work.clips else "\nThe cache")
        price = f"${told.usd_per_gb_month:g} a GB ({told.figures_date})"
        month = f"{usd_text(told.usd_per_month)} a month at {price}"
        print_facts(
            [
                ("  storage", f"{size_text(told.kept_bytes)}, {month}"),
                ("  training", f"reads {size_text(told.trained_bytes)} an epoch"),
            ]
        )
    if told.chosen.gpu_hours:
        click.echo(f"\nCards, with prices of {told.figures_date}:")
        _print_cards(told.cards)
    if work.clips:
        _print_oddities(told)
    _print_rejects(told)


def print_comparison(told: Sequence[Forecast], *, cache: str | None, num_ignored: int) -> None:
    """What runs of several recipes would do, a column each."""
    facts = _source_facts(told[0], num_ignored=num_ignored)
    for one in told:
        if not one.is_new:
            facts += _cache_facts(one, cache=cache)
    print_facts(facts)
    lines = {
        "of video": [_hours_text(one.work.seconds) for one in told],
        "frames": [f"{one.work.frames:,}" for one in told],
        "clips": [f"{one.work.clips:,}" for one in told],
        "shards": [f"{one.work.shards:,}" for one in told],
        "bytes": [size_text(one.work.bytes) for one in told],
        "bytes a clip": [size_text(one.bytes_per_clip) for one in told],
        "clips done": [f"{one.done_clips:,}" for one in told],
        f"GPU-hours, {told[0].card}": [number_text(one.chosen.gpu_hours) for one in told],
        "cost": [usd_text(one.chosen.usd) for one in told],
        "decoding, core-hours": [number_text(one.work.decode_seconds / 3600) for one in told],
        "cores a card": [_cores(one.chosen) for one in told],
        "storage a month": [usd_text(one.usd_per_month) for one in told],
        "training reads an epoch": [size_text(one.trained_bytes) for one in told],
    }
    columns = [
        _right([one.recipe for one in told][i : i + 1] + [v[i] for v in lines.values()])
        for i in range(len(told))
    ]
    click.echo()
    print_table(
        ["", *(column[0] for column in columns)],
        [
            [name, *(column[number] for column in columns)]
            for number, name in enumerate(lines, start=1)
        ],
    )
    click.echo(f"\nGPU-hours {_basis_text(told[0])}; prices are of {told[0].figures_date}.")
    for one in told:
        if one.unknown_streams:
            click.echo(f"{one.recipe}: {_unknown_text(one)}")
    _print_oddities(told[0])
    _print_rejects(told[0])


def _source_facts(told: Forecast, *, num_ignored: int) -> list[tuple[str, str]]:
    one = told.sources
    parts = [f"{one.to_do:,} to do"]
    if one.cached:
        parts.append(f"{one.cached:,} cached before")
    if one.copies:
        parts.append(f"{one.copies:,} {'copy' if one.copies == 1 else 'copies'} of others")
    if one.rejected:
        parts.append(f"{one.rejected:,} cannot be used, see below")
    facts = [("sources", f"{one.named:,}: {', '.join(parts)}")]
    if num_ignored:
        facts.append(("ignored", f"{count_text(num_ignored, 'file')}, not media by extension"))
    return facts


def _cache_facts(told: Forecast, *, cache: str | None) -> list[tuple[str, str]]:
    if cache is None:
        return [("cache", "none is named; nothing is taken as done")]
    if told.is_new:
        return [("cache", f"{cache}, which is still to be made")]
    done = f"{count_text(told.done_clips, 'clip')} of these sources done"
    return [("cache", f"{cache}: {done}, {size_text(told.done_bytes)}")]


def _hours_text(seconds: float) -> str:
    return duration_text(seconds) if seconds < 36000 else f"{seconds / 3600:,.0f} hours"


def number_text(value: float) -> str:
    """Such as 1,204, 12.3, 0.04: three digits, and never 0 for what is more."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 0.001 or not value:
        return f"{value:.3g}"
    return "<0.001"


def usd_text(value: float) -> str:
    """Such as $1,204, $12.30, under $0.01."""
    if value >= 100:
        return f"${value:,.0f}"
    return f"${value:.2f}" if value >= 0.01 or not value else "under $0.01"


def _encode_text(told: Forecast) -> str:
    if not told.chosen.gpu_hours:
        if told.unknown_streams:
            return _unknown_text(told)
        return "on the CPU: no encoder of this recipe needs a GPU"
    text = (
        f"{number_text(told.chosen.gpu_hours)} GPU-hours on {told.card},"
        f" {usd_text(told.chosen.usd)}; {_basis_text(told)}"
    )
    return f"{text}\n{'':10}{_unknown_text(told)}" if told.unknown_streams else text


def _basis_text(told: Forecast) -> str:
    if told.speed == "measured":
        return "by the frames a second that you measured"
    return f"by arithmetic, at {told.utilisation:.0%} of the card's peak"


def _unknown_text(told: Forecast) -> str:
    names = ", ".join(told.unknown_streams)
    return f"without {names}: not known; give --frames-per-second {told.unknown_streams[0]}=X"


def _cores_text(told: Forecast) -> str:
    hours = told.work.decode_seconds / 3600
    text = f"{number_text(hours)} core-hours of decoding"
    if told.chosen.cores is None:
        return text
    num_cores = max(1, round(told.chosen.cores))
    verb = "keeps" if num_cores == 1 else "keep"
    return f"{text}: {count_text(num_cores, 'core')} {verb} one {told.card} busy"


def _cores(card: CardForecast) -> str:
    return "-" if card.cores is None else f"{max(1, round(card.cores)):,}"


def _print_cards(cards: Sequence[CardForecast]) -> None:
    header = ["card", "GPU-hours", "cost", "from", "to", "cores to keep it busy"]
    columns = [
        [card.name for card in cards],
        _right([header[1], *(number_text(card.gpu_hours) for card in cards)])[1:],
        _right([header[2], *(usd_text(card.usd) for card in cards)])[1:],
        _right([header[3], *(usd_text(card.usd_low) for card in cards)])[1:],
        _right([header[4], *(usd_text(card.usd_high) for card in cards)])[1:],
        _right([header[5], *(_cores(card) for card in cards)])[1:],
    ]
    widths = [max(map(len, column)) for column in columns]
    told = [name.rjust(width) for name, width in zip(header, widths, strict=True)]
    print_table(
        ["  card", *told[1:]], [[f"  {row[0]}", *row[1:]] for row in zip(*columns, strict=True)]
    )


def _print_oddities(told: Forecast) -> None:
    if not told.oddities:
        return
    click.echo("\nWorth a look")
    for oddity in told.oddities:
        click.echo(f"  {count_text(oddity.num_videos, 'video')}: {oddity.meaning}")
        for probe in oddity.examples:
            facts = f"{duration_text(probe.duration_seconds)}, {probe.width} x {probe.height}"
            click.echo(f"    {printable(probe.source.uri)}  {facts}")


def _print_rejects(told: Forecast) -> None:
    if not told.sources.rejects:
        return
    by_reason: dict[str, list[str]] = defaultdict(list)
    for reject in told.sources.rejects:
        by_reason[reject.reason].append(printable(f"{reject.uri}: {reject.detail}"))
    click.echo("\nCannot be used")
    for reason, lines in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        for line in lines[:SAMPLE_REJECTS]:
            click.echo(f"  {reason}  {line}")
        more = len(lines) - SAMPLE_REJECTS
        if more > 0:
            click.echo(f"  {reason}  and {more:,} more")


def _right(cells: Sequence[str]) -> list[str]:
    width = max(map(len, cells))
    return [cell.rjust(width) for cell in cells]
