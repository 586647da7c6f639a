"""`pipeline verify`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.show import (
    common_options,
    count_text,
    device_option,
    print_json,
    print_table,
    set_verbosity,
    size_text,
    weights_option,
)
from schemas.errors import CacheError, ReelcacheError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.reencoding import Reencoding

EPILOG = """\b
Examples:
  pipeline verify cache/
  pipeline verify cache/ --deep --json
  pipeline verify cache/ --deep --clips 100 --weights siglip=model.safetensors

Reads every byte. --deep also looks at every value and preview, and encodes some clips again from
their sources, where these and the weights are still there. Exit code 1 on findings."""


REMEDY = (
    "To mend: delete the tar and the sidecar (.json) of a shard named above, if any, and run again:"
    " pipeline run writes anew what is missing."
)


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.option("--deep", is_flag=True, help="Also check every value and picture, and encode again.")
@click.option(
    "--clips",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="How many clips --deep encodes again.",
)
@weights_option
@device_option
@common_options
def verify(
    *,
    cache: str,
    deep: bool,
    clips: int,
    weights: tuple[str, ...],
    device: str,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> int:
    """Check digests, counts, shapes, times, index and fingerprint of CACHE."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.verifying import verify_cache

    shows = sys.stderr.isatty() and not quiet
    done = 0

    def show(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if shows:
            click.echo(f"\r{size_text(done)} checked ", err=True, nl=False)

    result = verify_cache(cache, deep=deep, progress=show)
    if shows:
        click.echo("\r" + " " * 40 + "\r", err=True, nl=False)
    again, why_not = None, ""
    if deep and clips and result.ok:
        again, why_not = _reencode(cache, clips, weights, device=device, shows=shows)
        if again is not None:
            for finding in again.findings:
                result.add(*finding)
    if as_json:
        document: dict[str, Any] = {
            "ok": result.ok,
            "findings": [asdict(finding) for finding in result.findings],
            "samples": result.num_samples,
            "shards": result.num_shards,
        }
        if deep:
            document["encoded_again"] = _as_json(again, why_not)
        print_json(document)
        return 0 if result.ok else 1
    what = f"{count_text(result.num_samples, 'sample')} in"
    what += f" {count_text(result.num_shards, 'shard')}, {size_text(done)}"
    if result.ok:
        click.echo(f"ok: {what}")
    else:
        rows = [(f.kind, f.where, f.detail) for f in result.findings]
        print_table(("finding", "where", "detail"), rows)
        click.echo(f"{count_text(len(rows), 'finding')}: {what}")
        click.echo(REMEDY)
    if again is not None:
        _print_differences(again)
    elif why_not:
        click.echo(f"not encoded again: {why_not}")
    return 0 if result.ok else 1


def _reencode(
    path: str, num_clips: int, weights: Sequence[str], *, device: str, shows: bool
) -> tuple[Reencoding | None, str]:
    # What came of it, or why it could not be done.
    from encoders import Runtime
    from encoders.devices import choose_device
    from pipeline.cache import open_cache
    from pipeline.encoding import with_weights
    from pipeline.reencoding import reencode_sample

    done = 0

    def show(count: int) -> None:
        nonlocal done
        done += count
        if shows:
            click.echo(f"\r{done} of {num_clips} clips encoded again ", err=True, nl=False)

    with open_cache(path) as cache:
        cache.recipe = with_weights(cache.recipe, weights)
        runtime = Runtime(device=choose_device(device))
        try:
            return reencode_sample(cache, num_clips=num_clips, runtime=runtime, progress=show), ""
        except (UsageError, CacheError) as error:
            if weights:  # what was asked for by name was not done
                raise
            return None, _sentence(error)
        finally:
            if shows:
                click.echo("\r" + " " * 40 + "\r", err=True, nl=False)


def _sentence(error: ReelcacheError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _as_json(again: Reencoding | None, why_not: str) -> dict[str, Any]:
    if again is None:
        return {"clips": 0, "why_not": why_not}
    return {
        "clips": again.num_clips,
        "not_encoded": again.not_encoded,
        "streams": {one.stream: asdict(one) for one in again.streams},
    }


def _print_differences(again: Reencoding) -> None:
    click.echo(f"{count_text(again.num_clips, 'clip')} encoded again from the sources")
    for reason, count in again.not_encoded.items():
        click.echo(f"{count_text(count, 'clip')} could not be: {reason}")
    if again.streams:
        print_table(
            ("stream", "1 - cosine", "worst clip", "channel error", "worst channel"),
            [
                (
                    one.stream,
                    f"{max(0.0, 1 - one.cosine_mean):.1e}",
                    f"{max(0.0, 1 - one.cosine_min):.1e}",
                    f"{one.channel_error_median:.3%}",
                    f"{one.channel_error_max:.3%}",
                )
                for one in again.streams
            ],
        )
