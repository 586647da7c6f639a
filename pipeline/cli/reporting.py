"""Tell people what a run did: what is cached, what was rejected, what to do next."""

from __future__ import annotations

import shlex
from collections import defaultdict
from typing import TYPE_CHECKING

import click

from pipeline.cli.show import count_text, duration_text, print_facts, printable, size_text
from schemas.account import commonest_reasons, outlook

if TYPE_CHECKING:
    from pipeline.report import RunReport

SAMPLE_REJECTS = 3
"""Shown of each reason."""


def print_report(report: RunReport, *, num_ignored: int) -> None:
    """The account of a run for people."""
    facts = []
    if report.videos or report.clips:
        facts.append(
            (
                "cached",
                f"{count_text(report.videos, 'video')}: {count_text(report.clips, 'clip')},"
                f" {count_text(report.frames, 'frame')}, {count_text(report.shards, 'shard')},"
                f" {size_text(report.bytes)}",
            )
        )
    else:
        facts.append(("cached", "nothing new: all that can be cached is cached"))
    if report.skipped:
        facts.append(("skipped", f"{count_text(report.skipped, 'source')} cached before or copies"))
    if report.missing:
        facts.append(("missing", f"{count_text(report.missing, 'clip')} of cached videos"))
    if report.rejected:
        reasons = commonest_reasons(report.rejects)
        facts.append(("rejected", f"{report.rejected} of {report.sources} sources ({reasons})"))
        facts.append(("", outlook(report.rejects)))
    if num_ignored:
        facts.append(("ignored", f"{count_text(num_ignored, 'file')}, not media by extension"))
    facts.append(("time", duration_text(report.seconds)))
    if report.bottleneck is not None:
        facts.append(("bound", report.bottleneck.text))
    facts.append(("cache", f"{report.cache} (fingerprint {report.fingerprint[:8]})"))
    facts.append(("look", f"pipeline inspect {shlex.quote(report.cache)}"))
    if report.retryable:
        again = f"pipeline run --retry-rejects {shlex.quote(report.cache)}"
        facts.append(("again", again))
    print_facts(facts)
    if report.rejected:
        print_rejects(report)


def print_rejects(report: RunReport) -> None:
    """The first few rejects of each reason, and how to see them all."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for reject in report.rejects:
        by_reason[reject.reason].append(printable(f"{reject.uri}: {reject.detail}"))
    click.echo("\nrejects")
    for reason, lines in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        for line in lines[:SAMPLE_REJECTS]:
            click.echo(f"  {reason}  {line}")
        more = len(lines) - SAMPLE_REJECTS
        if more > 0:
            command = f"pipeline rejects {shlex.quote(report.cache)} --reason {reason}"
            click.echo(f"  {reason}  and {more:,} more: {command}")
    click.echo(f"  all: pipeline rejects {shlex.quote(report.cache)}")
