"""What the commands of this distribution have in common: lazy groups, and how a call ends."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import click

from pipeline.cli.show import printable
from pipeline.signing import redact
from schemas.errors import ReelcacheError
from schemas.settings import nearest

Commands = Mapping[str, tuple[str, str]]
"""Name -> (module:function, one line of help)."""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def lazy_group(commands: Commands) -> type[click.Group]:
    """A group whose commands are imported when they are called."""

    class LazyGroup(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
            return list(commands)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
            if cmd_name not in commands:
                return None
            module, _, attribute = commands[cmd_name][0].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command

        def resolve_command(
            self, ctx: click.Context, args: list[str]
        ) -> tuple[str | None, click.Command | None, list[str]]:
            if args and args[0] not in commands:
                raise click.UsageError(f"no command {args[0]!r}{nearest(args[0], commands)}", ctx)
            return super().resolve_command(ctx, args)

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
            with formatter.section("Commands"):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()])

    return LazyGroup


def _printable(text: str) -> str:
    # Names of anyone's files are in it; only the newlines are ours.
    return "\n".join(map(printable, text.split("\n")))


def exit_code(run: Callable[[], Any], *, interrupted: str) -> int:
    """Run one command line: its exit code. What went wrong is said on stderr in a sentence."""
    try:
        result = run()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except ReelcacheError as error:
        click.echo(f"Error: {_printable(error.message)}", err=True)
        if error.hint:
            click.echo(f"Hint: {_printable(error.hint)}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo(interrupted, err=True)
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
