"""`trainer train` and `trainer resume`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.show import common_options, print_json, set_verbosity
from trainer.config import TrainConfig

if TYPE_CHECKING:
    from trainer.training import Told

TRAIN_EPILOG = """\b
Examples:
  trainer train cache/ --config train.toml
  trainer train cache/ --config train.toml --out runs/b --set run.seed=1"""

set_option = click.option(
    "--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Change a field of the config."
)


@click.command(epilog=TRAIN_EPILOG, no_args_is_help=True)
@click.argument("cache")
@click.option("--config", "config_path", required=True, help="A TOML file; docs/training.md.")
@click.option("--out", help="Where the run writes; instead of run.out.")
@set_option
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@common_options
def train(
    *,
    cache: str,
    config_path: str,
    out: str | None,
    overrides: tuple[str, ...],
    device: str,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Train from CACHE, as a TOML file says."""
    set_verbosity(quiet=quiet, loud=loud)
    chosen = (*overrides, *([f"run.out={out}"] if out else []))
    config = TrainConfig.load(config_path, overrides=chosen)
    from encoders.devices import choose_device
    from pipeline.cache import open_cache
    from trainer.training import TrainingRun, as_mapping

    with open_cache(cache) as opened:
        run = TrainingRun(config, cache=opened, device=choose_device(device))
        result = run.train(progress=lambda told: None if quiet else _say(told))
    if as_json:
        print_json(as_mapping(result))


def _say(told: Told) -> None:
    click.echo(
        f"{told.step:,}/{told.num_steps:,} {told.stage}: loss {told.loss:.4f},"
        f" {told.tokens_per_second:,.0f} tokens/s, {told.seconds_left:.0f} s left",
        err=True,
    )


@click.command(no_args_is_help=True)
@click.argument("run", type=click.Path(path_type=Path))
def resume(*, run: Path) -> None:
    """Go on with RUN from its last checkpoint."""
    click.echo(str(run))
