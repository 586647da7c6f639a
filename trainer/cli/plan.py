"""`trainer plan`."""

from __future__ import annotations

from typing import Literal

import click

from pipeline.cli.show import (
    common_options,
    print_facts,
    print_json,
    print_table,
    set_verbosity,
    size_text,
)
from trainer.cli.config_options import config_options, read_config

EPILOG = """\b
Examples:
  trainer plan cache/ --config train.toml
  trainer plan cache/ --config smollm2 --data questions.jsonl --on-missing skip
  trainer plan cache/ --config train.toml --ranks 8 --set batch.tokens_per_pack=16384

Nothing is trained, and no weights are read: the language model's tokenizer and config.json do."""


@click.command(epilog=EPILOG, no_args_is_help=True)
@config_options
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True, help="GPUs.")
@common_options
def plan(
    *,
    cache: str | None,
    config_path: str,
    data: tuple[str, ...],
    on_missing: Literal["error", "skip"] | None,
    overrides: tuple[str, ...],
    ranks: int,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> None:
    """Say what training from CACHE would do, hold and take."""
    set_verbosity(quiet=quiet, loud=loud)
    config, path = read_config(
        config_path, cache=cache, data=data, on_missing=on_missing, overrides=overrides
    )
    from pipeline.cache import open_cache
    from trainer.learning.forecasting import forecast
    from trainer.learning.summary import count_text

    with open_cache(path) as opened:
        told = forecast(config, cache=opened, ranks=ranks)
    if as_json:
        print_json(told.to_mapping())
        return
    for line in told.lines:
        click.echo(line)
    click.echo()
    print_facts([(f"parameters of {n}", count_text(c)) for n, c in told.parameters.items()])
    click.echo()
    print_table(
        ["stage", "trains", "items", "packs", "fill", "steps", "epochs", "tokens", "read an epoch"],
        [
            [
                one.name,
                "+".join(one.trains),
                one.items,
                one.packs_per_epoch,
                one.fill,
                one.steps,
                one.epochs,
                count_text(one.tokens),
                f"{one.clips_per_epoch:,} clips, {size_text(one.bytes_per_epoch)}",
            ]
            for one in told.stages
        ],
    )
    memory = told.memory
    click.echo()
    print_facts(
        [
            ("on each GPU", size_text(memory.on_device)),
            ("  weights", size_text(memory.weights)),
            ("  gradients", size_text(memory.gradients)),
            ("  moments", size_text(memory.moments)),
            ("  activations", size_text(memory.activations)),
            ("read ahead, in RAM", size_text(memory.read_ahead)),
        ]
    )
    click.echo(f"\nHours on {ranks} at {told.utilisation:.0%} of the peak ({told.cards_date}):")
    print_table(
        ["card", "TFLOPS", "hours", "fits"],
        [[c.name, c.tflops, c.hours, "yes" if c.fits else "no"] for c in told.cards],
    )
