"""The option --retry-rejects, whose value may be left out: which reasons a run tries again."""

from __future__ import annotations

from typing import Any

import click

from schemas.reject import REASONS, RETRYABLE

NAME = "--retry-rejects"
ALL_RETRYABLE = "retryable"
_VALUES = (ALL_RETRYABLE, *sorted(REASONS))

retry_option = click.option(
    NAME,
    multiple=True,
    type=click.Choice(_VALUES),
    metavar="[REASON]",
    help="Try sources again that were rejected for REASON, though their file is the same; without a"
    " value, for any that may succeed later. Repeatable. SOURCES may be left out: then all of the"
    " cache's.",
)


class RetryCommand(click.Command):
    """A command with `retry_option`: what follows it is its value only if it is a reason.

    click would take the CACHE for it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give the option the value that was left out."""
        return super().parse_args(ctx, with_values(args))


def with_values(args: list[str]) -> list[str]:
    """The arguments, with `retryable` after each --retry-rejects that has no reason."""
    found: list[Any] = []
    for arg, after in zip(args, [*args[1:], ""], strict=True):
        found.append(arg)
        if arg == NAME and after not in _VALUES:
            found.append(ALL_RETRYABLE)
    return found


def chosen_reasons(values: tuple[str, ...]) -> frozenset[str]:
    """The reasons that the option's values stand for."""
    named = frozenset(values)
    return named - {ALL_RETRYABLE} | (RETRYABLE if ALL_RETRYABLE in named else frozenset())
