"""The command `pipeline`. Knows the commands by name and imports one only when it is called."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from typing import Any

import click

from pipeline.cli.interrupting import end_when_told
from pipeline.signing import redact
from schemas.errors import ReelcacheError
from schemas.settings import nearest

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module:function, one line of help)
    "run": ("pipeline.cli.run:run", "Cache the features of videos; again to go on or to add."),
    "watch": ("pipeline.cli.watch:watch", "Cache new videos as they arrive, pass after pass."),
    "demo": ("pipeline.cli.demo:demo", "See it work: on generated clips or on a folder of yours."),
    "inspect": ("pipeline.cli.inspecting:inspect", "Look into a cache, a shard or a sample."),
    "verify": ("pipeline.cli.verify:verify", "Check every byte of a cache; exit 1 on findings."),
    "stats": ("pipeline.cli.stats:stats", "Totals and distributions of a cache."),
    "rejects": ("pipeline.cli.rejects:rejects", "Which sources could not be used, and why."),
    "recipes": ("pipeline.cli.recipes:recipes", "List, show or check recipes."),
    "encoders": ("pipeline.cli.encoders:encoders", "List, show or check encoders."),
    "doctor": ("pipeline.cli.doctor:doctor", "Check this installation and machine."),
}
GOES_ON = ("run", "watch", "demo")
"""Commands that are ended at once when they are told to, and go on when they are called again."""

EPILOG = """\b
Examples:
  pipeline demo
  pipeline run videos/ cache/
  pipeline inspect cache/

Exit codes: 0 fine, 1 verify found something, 2 wrong use, recipe or place, 3 too many rejects or
nothing usable, 4 cache damaged or incompatible, 70 a bug, 130 and 143 interrupted."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            raise click.UsageError(f"no command {args[0]!r}{nearest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
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
    try:
        with ending:
            result: Any = cli.main(
                args=own, prog_name="pipeline", standalone_mode=False, obj=passed_on
            )
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except ReelcacheError as error:
        click.echo(f"Error: {error.message}", err=True)
        if error.hint:
            click.echo(f"Hint: {error.hint}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted. What is committed is kept: run the same command again.", err=True)
        return 130
    except SystemExit:
        # Only click does so: the reader of a pipe (head, less) is gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the last line of defence: a bug, said as one
        text = redact(str(error))
        click.echo(f"Error: this is a bug: {type(error).__name__}: {text}", err=True)
        if os.environ.get("REELCACHE_TRACEBACK"):
            traceback.print_exc()
        else:
            click.echo("Hint: REELCACHE_TRACEBACK=1 shows where; please report it", err=True)
        return 70
