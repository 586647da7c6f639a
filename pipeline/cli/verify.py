"""`pipeline verify`."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from pipeline.cli.show import (
    common_options,
    count_text,
    print_json,
    print_table,
    set_verbosity,
    size_text,
)

EPILOG = """\b
Examples:
  pipeline verify cache/
  pipeline verify cache/ --deep --json

Reads every byte. --deep also looks at every value and preview. Exit code 1 on findings."""


REMEDY = (
    "To mend: delete the tar and the sidecar (.json) of a shard named above, if any, and run again:"
    " pipeline run writes anew what is missing."
)


@click.command(epilog=EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.option("--deep", is_flag=True, help="Also check every value and preview picture.")
@common_options
def verify(*, cache: str, deep: bool, as_json: bool, quiet: bool, loud: bool) -> int:
    """Check digests, counts, shapes, times, index and fingerprint of CACHE."""
    set_verbosity(quiet=quiet, loud=loud)
    from pipeline.verifying import verify_cache

    done = 0

    def show(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if sys.stderr.isatty() and not quiet:
            click.echo(f"\r{size_text(done)} checked ", err=True, nl=False)

    result = verify_cache(cache, deep=deep, progress=show)
    if sys.stderr.isatty() and not quiet:
        click.echo("\r" + " " * 40 + "\r", err=True, nl=False)
    if as_json:
        print_json(
            {
                "ok": result.ok,
                "findings": [asdict(finding) for finding in result.findings],
                "samples": result.num_samples,
                "shards": result.num_shards,
            }
        )
    else:
        what = f"{count_text(result.num_samples, 'sample')} in"
        what += f" {count_text(result.num_shards, 'shard')}, {size_text(done)}"
        if result.ok:
            click.echo(f"ok: {what}")
        else:
            rows = [(f.kind, f.where, f.detail) for f in result.findings]
            print_table(("finding", "where", "detail"), rows)
            click.echo(f"{count_text(len(rows), 'finding')}: {what}")
            click.echo(REMEDY)
    return 0 if result.ok else 1
