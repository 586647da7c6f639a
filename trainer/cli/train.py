"""`trainer train` and `trainer resume`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from pipeline.cli.show import common_options, print_json, set_verbosity
from schemas.errors import DeviceError, UsageError
from trainer.cli.config_options import (
    config_options,
    log_option,
    read_config,
    set_option,
    with_log,
)
from trainer.config import TrainConfig
from trainer.learning.run_folder import (
    absolute,
    begin_run,
    has_checkpoints,
    read_run,
    with_absolute_paths,
)

if TYPE_CHECKING:
    from trainer.learning.reporting import TrainResult

TRAIN_EPILOG = """\b
Examples:
  trainer train cache/ --config train.toml
  trainer train cache/ --config smollm2 --data questions.jsonl
  trainer train cache/ --config train.toml --out runs/b --set run.seed=1 --log tensorboard
  torchrun --nproc-per-node 8 -m trainer train cache/ --config train.toml

A run that is interrupted (Ctrl-C, SIGTERM) ends its step, saves, and can be resumed."""
RESUME_EPILOG = """\b
Examples:
  trainer resume runs/a
  trainer resume runs/a --cache /elsewhere/cache --set batch.readers=4
  torchrun --nproc-per-node 2 -m trainer resume runs/a"""

device_option = click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ..."
)


@click.command(epilog=TRAIN_EPILOG, no_args_is_help=True)
@config_options
@click.option("--out", help="Where the run writes; instead of run.out.")
@log_option
@device_option
@common_options
def train(
    *,
    cache: str | None,
    config_path: str,
    data: tuple[str, ...],
    on_missing: Literal["error", "skip"] | None,
    out: str | None,
    log: tuple[str, ...],
    overrides: tuple[str, ...],
    device: str,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> int:
    """Train from CACHE, as a TOML file says; without CACHE from cache.path in it."""
    set_verbosity(quiet=quiet, loud=loud)
    config, path = read_config(
        config_path, cache=cache, data=data, on_missing=on_missing, overrides=overrides
    )
    config = with_log(with_absolute_paths(config), log)
    if out:
        config = replace(config, run=replace(config.run, out=out))
    folder = Path(config.run.out)
    if has_checkpoints(folder):
        raise UsageError(
            f"{folder} has checkpoints of a run",
            hint=f"go on with it: trainer resume {folder}; or choose another folder: --out FOLDER",
        )
    return _run(
        config, cache=absolute(path), device=device, is_new=True, as_json=as_json, quiet=quiet
    )


@click.command(epilog=RESUME_EPILOG, no_args_is_help=True)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--cache", help="Where the cache is now, if it was moved.")
@set_option
@log_option
@device_option
@common_options
def resume(
    *,
    run: Path,
    cache: str | None,
    overrides: tuple[str, ...],
    log: tuple[str, ...],
    device: str,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> int:
    """Go on with RUN from its newest checkpoint, on any number of ranks."""
    set_verbosity(quiet=quiet, loud=loud)
    begun = read_run(run)
    config = TrainConfig.from_mapping(begun.config, overrides=overrides)
    config = with_log(replace(config, run=replace(config.run, out=str(run))), log)
    return _run(
        config,
        cache=absolute(cache) if cache else begun.cache,
        device=device,
        is_new=False,
        as_json=as_json,
        quiet=quiet,
    )


def _run(
    config: TrainConfig, *, cache: str, device: str, is_new: bool, as_json: bool, quiet: bool
) -> int:
    """Train: the exit code."""
    from encoders.devices import choose_device
    from pipeline.cache import open_cache
    from trainer.cli.progress import open_display
    from trainer.learning.distributed import join_ranks
    from trainer.learning.interrupting import listening
    from trainer.learning.summary import summary_lines
    from trainer.learning.training import TrainingRun

    with (
        join_ranks(choose_device(device)) as ranks,
        _saying_where(),
        _in_memory(device),
        open_cache(cache) as opened,
        open_display(quiet=quiet or not ranks.is_first) as display,
    ):
        run = TrainingRun(config, cache=opened, ranks=ranks, say=display.say)
        if not is_new:
            run.resume()
        if ranks.is_first:
            begin_run(config, cache=cache)  # with what was changed, for the next time
        for line in summary_lines(run):
            display.say(line)
        with listening() as told:
            result = run.train(show=display.show, told=told)
        is_first = ranks.is_first
    if is_first and as_json:
        print_json(result.to_mapping())
    if is_first and not quiet:
        click.echo(_last_words(result), err=True)
    return 128 + result.signal if result.signal else 0


def _last_words(result: TrainResult) -> str:
    if result.signal:
        return (
            f"Interrupted after step {result.step:,} of {result.num_steps:,}, which is saved:"
            f" trainer resume {result.out}"
        )
    return f"{result.step:,} steps done: {result.checkpoint}"


@contextlib.contextmanager
def _in_memory(device: str) -> Iterator[None]:
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        of_cpu = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
        if not of_cpu and not isinstance(error, torch.OutOfMemoryError):
            raise
        raise DeviceError(
            f"the memory of {'this machine' if of_cpu else device} is too small for this run",
            hint="lower batch.tokens_per_pack or the model's sizes, or set"
            " parallel.activation_checkpointing; trainer plan says what a run takes",
        ) from error


@contextlib.contextmanager
def _saying_where() -> Iterator[None]:
    # With several ranks the last line of a traceback does not say whose it is.
    try:
        yield
    except BaseException as error:
        for note in getattr(error, "__notes__", ()):
            click.echo(f"{type(error).__name__} at {note}", err=True)
        raise
