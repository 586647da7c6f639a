"""The command `trainer`. Knows the commands by name and imports one only when it is called."""

from __future__ import annotations

import os
import sys

import click

from pipeline.cli.calling import CONTEXT, Commands, exit_code, lazy_group

COMMANDS: Commands = {
    "train": ("trainer.cli.train:train", "Train from a cache, as a TOML file says."),
    "resume": ("trainer.cli.train:resume", "Go on with a run from its last checkpoint."),
    "plan": ("trainer.cli.plan:plan", "Say what a run would do, hold and take."),
    "export": ("trainer.cli.export:export", "Write a run's model as a folder that can be asked."),
    "generate": ("trainer.cli.generate:generate", "Answer a question about a video."),
    "evaluate": ("trainer.cli.evaluate:evaluate", "Score a model's answers to annotations."),
}

EPILOG = """\b
Examples:
  trainer train cache/ --config train.toml
  trainer resume runs/train
  trainer export runs/train -o model/
  trainer generate model/ talk.mp4 "What happens?"

Exit codes: 0 fine, 2 wrong use or config, 4 cache, checkpoint or model damaged or of another
fingerprint, 70 a bug, 130 and 143 interrupted."""


@click.group(cls=lazy_group(COMMANDS), epilog=EPILOG, context_settings=CONTEXT)
@click.version_option(package_name="reelcache", message="%(package)s %(version)s")
def cli() -> None:
    """Train a video language model from a cache of features, and ask it about videos."""


def main() -> None:
    """The console script: runs a command and ends with the documented exit code."""
    # Libraries draw bars of their own beside ours.
    os.environ.setdefault("TQDM_DISABLE", "1")
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    """Run one command line: its exit code. What went wrong is said on stderr in a sentence."""
    return exit_code(
        lambda: cli.main(args=arguments, prog_name="trainer", standalone_mode=False),
        interrupted="Interrupted.",
    )
