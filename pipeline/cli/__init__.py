"""The command `pipeline`. Knows the commands by name and imports one only when it is called."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from pipeline.cli.calling import CONTEXT, Commands, exit_code, lazy_group
from pipeline.cli.interrupting import end_when_told

COMMANDS: Commands = {
    "run": ("pipeline.cli.run:run", "Cache the features of videos; again to go on or to add."),
    "plan": ("pipeline.cli.plan:plan", "What a run would do and cost; writes nothing."),
    "watch": ("pipeline.cli.watch:watch", "Cache new videos as they arrive, pass after pass."),
    "demo": ("pipeline.cli.demo:demo", "See it work: on generated clips or on a folder of yours."),
    "inspect": (
        "pipeline.cli.inspecting:inspect",
        "Look into a cache, a shard, a video or a sample.",
    ),
    "verify": ("pipeline.cli.verify:verify", "Check every byte of a cache; exit 1 on findings."),
    "stats": ("pipeline.cli.stats:stats", "Totals and distributions of a cache."),
    "report": ("pipeline.cli.report:report", "Write a page to look at a cache with, in a browser."),
    "slice": ("pipeline.cli.slice:slice_", "A cache of some clips of another one."),
    "merge": ("pipeline.cli.merge:merge", "One cache of the clips of several."),
    "export": (
        "pipeline.cli.export:export",
        "Write a cache as Parquet, Lance, safetensors or npy.",
    ),
    "diff": ("pipeline.cli.diff:diff", "What differs between two caches; exit 1 if anything does."),
    "rejects": ("pipeline.cli.rejects:rejects", "Which sources could not be used, and why."),
    "events": (
        "pipeline.cli.events:events",
        "Scenes, speech, what is said: find, list, import.",
    ),
    "index": ("pipeline.cli.index:index", "Make what search looks in, or add what is new."),
    "search": ("pipeline.cli.search:search", "Find clips by a sentence, a clip or a picture."),
    "dedup": ("pipeline.cli.dedup:dedup", "Find videos that are copies or parts of others."),
    "recipes": ("pipeline.cli.recipes:recipes", "List, show or check recipes."),
    "encoders": ("pipeline.cli.encoders:encoders", "List, show or check encoders."),
    "doctor": ("pipeline.cli.doctor:doctor", "Check this installation and machine."),
}
GOES_ON = ("run", "watch", "demo", "slice", "merge")
"""Commands that are ended at once when they are told to, and go on when they are called again."""

EPILOG = """\b
Examples:
  pipeline demo
  pipeline run videos/ cache/
  pipeline inspect cache/

Exit codes: 0 fine, 1 verify or diff found something, 2 wrong use, recipe or place, 3 too many
rejects or nothing usable, 4 cache damaged or incompatible, 70 a bug, 130 and 143 interrupted."""


@click.group(cls=lazy_group(COMMANDS), epilog=EPILOG, context_settings=CONTEXT)
@click.version_option(package_name="reelcache", message="%(package)s %(version)s")
def cli() -> None:
    """Encode video once, train on the features many times."""


def main() -> None:
    """The console script: runs a command and ends with the documented exit code."""
    # Before numpy is imported. Its threads would take the cores from the decoder processes, for
    # products so small that on two cores they cost a fifth more CPU seconds and no less time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """Run one command line: its exit code. What went wrong is said on stderr in a sentence."""
    # What follows "--" is for the engine; click would take it for more arguments.
    stop = arguments.index("--") if "--" in arguments else len(arguments)
    own, passed_on = arguments[:stop], tuple(arguments[stop + 1 :])
    ending = end_when_told() if own[:1] and own[0] in GOES_ON else contextlib.nullcontext()

    def run() -> object:
        with ending:
            return cli.main(args=own, prog_name="pipeline", standalone_mode=False, obj=passed_on)

    return exit_code(
        run, interrupted="Interrupted. What is committed is kept: run the same command again."
    )
