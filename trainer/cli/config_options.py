"""Options of commands that read a config, and the config that they make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar

import click

from schemas.errors import UsageError
from trainer.config import TrainConfig

F = TypeVar("F", bound=Callable[..., Any])

set_option = click.option(
    "--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Change a field of the config."
)
log_option = click.option(
    "--log",
    "log",
    multiple=True,
    type=click.Choice(["jsonl", "tensorboard", "wandb"]),
    help="Where figures go besides metrics.jsonl; instead of run.log; repeatable.",
)


def config_options(command: F) -> F:
    """CACHE, --config, --data, --on-missing and --set, as `read_config` takes them."""
    for option in (
        set_option,
        click.option(
            "--on-missing",
            type=click.Choice(["error", "skip"]),
            help="What becomes of rows whose video is not cached; instead of data.on_missing.",
        ),
        click.option(
            "--data",
            multiple=True,
            metavar="FILE",
            help="Annotations, besides those of the config.",
        ),
        click.option(
            "--config",
            "config_path",
            required=True,
            help="A TOML file, or the name of a shipped one; docs/training.md.",
        ),
        click.argument("cache", required=False),
    ):
        command = option(command)
    return command


def read_config(
    config_path: str,
    *,
    cache: str | None,
    data: tuple[str, ...],
    on_missing: Literal["error", "skip"] | None,
    overrides: tuple[str, ...],
) -> tuple[TrainConfig, str]:
    """The config, and the place of the cache. ConfigError. UsageError: no cache is named."""
    config = TrainConfig.load(config_path, overrides=overrides, data=data)
    if on_missing is not None:
        files = tuple(replace(one, on_missing=on_missing) for one in config.data)
        config = replace(config, data=files)
    path = cache or config.cache.path
    if not path:
        name = click.get_current_context().info_name
        raise UsageError(
            "no cache is named", hint=f"trainer {name} CACHE, or cache.path in the TOML"
        )
    return config, path


def with_log(config: TrainConfig, log: tuple[str, ...]) -> TrainConfig:
    """The config as `log_option` changes it."""
    return replace(config, run=replace(config.run, log=log)) if log else config
