"""What Beam is told of a run: its own options, and ours, so that a job's page shows them."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.engines import (
    CPU_MACHINE,
    DATAFLOW_DEFAULTS,
    GPU_MACHINE,
    Engine,
    Stage,
    find_engine,
)
from pipeline.options import RunOptions
from schemas.errors import UsageError

_LOG = "apache_beam.options.pipeline_options"
_FLAGS = {
    "decoders": "num_decoders",
    "encoder_device": "device",
    "encoder_batch": "max_batch",
    "encoder_compile": "compile",
    "fetch_bytes": "fetch_bytes",
    "max_reject_rate": "max_reject_rate",
    "encoder_accelerator": "accelerator",
    "encoder_min_ram": "min_ram",
    "encoder_min_cpus": "min_cpus",
}
"""Flag -> field of RunOptions."""


class CacheOptions(PipelineOptions):  # type: ignore[misc]
    """Fields of RunOptions that workers need, as a job's page shows them; they travel by pickle."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        default = RunOptions()
        parser.add_argument("--decoders", type=int, default=None)
        parser.add_argument("--encoder_device", default=default.device)
        parser.add_argument("--encoder_batch", type=int, default=None)
        parser.add_argument("--encoder_compile", action="store_true", default=default.compile)
        parser.add_argument("--fetch_bytes", type=int, default=default.fetch_bytes)
        parser.add_argument("--max_reject_rate", type=float, default=default.max_reject_rate)
        parser.add_argument("--encoder_accelerator", default=default.accelerator)
        parser.add_argument("--encoder_min_ram", default=default.min_ram)
        parser.add_argument("--encoder_min_cpus", type=int, default=None)


def beam_arguments(options: RunOptions, *, stage: Stage, run_id: str) -> list[str]:
    """What Beam is told for one stage: our defaults first, so that the user's own win."""
    engine = find_engine(options.runner)
    told: dict[str, str] = {}
    if engine.name == "dataflow":
        has_gpu = stage == "build" and bool(options.accelerator_hint)
        told = DATAFLOW_DEFAULTS | {
            "job_name": f"reelcache-{stage}-{run_id.rpartition('-')[2][:12]}",
            "machine_type": GPU_MACHINE if has_gpu else CPU_MACHINE,
            "max_num_workers": str(options.num_workers),
        }
        if options.container:
            told["sdk_container_image"] = options.container
    else:
        if engine.name == "flink":
            told["parallelism"] = str(options.num_workers)
        if options.container:
            told |= {"environment_type": "DOCKER", "environment_config": options.container}
    arguments = [f"--{name}={value}" for name, value in told.items()]
    if stage == "build":
        # For the whole graph and not for a step of it: another environment would be another
        # container on every worker, or another pool of workers.
        hints = options.resource_hints().items()
        arguments += [f"--resource_hint={name}={value}" for name, value in hints]
    if engine.name == "dataflow":
        arguments.append("--no_save_main_session")
    return [*arguments, *options.beam_arguments]


def to_flags(options: RunOptions) -> list[str]:
    """What CacheOptions reads; what is as by default is left out."""
    default = RunOptions()
    flags = []
    for flag, field in _FLAGS.items():
        value = getattr(options, field)
        if value is True:
            flags.append(f"--{flag}")
        elif value != getattr(default, field):
            flags.append(f"--{flag}={value}")
    return flags


def parse_options(arguments: Sequence[str], *, engine: Engine | None = None) -> Any:
    """PipelineOptions. UsageError: Beam refuses one, or nobody knows it, or one is lacking."""
    said = io.StringIO()
    log = logging.getLogger(_LOG)
    listener = logging.StreamHandler(said)
    log.addHandler(listener)
    before = (log.level, log.propagate)
    log.setLevel(logging.WARNING)  # whatever a command has silenced
    log.propagate = False
    try:
        with contextlib.redirect_stderr(said):
            options = PipelineOptions(list(arguments))
            # Options are parsed when they are looked at; unknown ones are only logged.
            known = options.get_all_options(drop_default=True)
    except SystemExit as error:
        lines = said.getvalue().strip().splitlines() or [""]
        raise UsageError(f"options for Beam: {lines[-1].partition('error: ')[2]}") from error
    finally:
        log.removeHandler(listener)
        log.setLevel(before[0])
        log.propagate = before[1]
    if "runner" in known:
        raise UsageError(f"options for Beam: --runner={known['runner']} is chosen before the --")
    unknown = [line for line in said.getvalue().splitlines() if "unparseable" in line]
    if unknown and (engine is None or engine.knows_all_options):
        raise UsageError(f"options for Beam: unknown{unknown[0].partition('args')[2]}")
    if engine is not None:
        _check_needs(engine, known)
    return options


def _check_needs(engine: Engine, known: Mapping[str, Any]) -> None:
    lacking = {name: example for name, example in engine.needs.items() if not known.get(name)}
    if lacking:
        example = " ".join(f"--{name}={example}" for name, example in lacking.items())
        raise UsageError(
            f"--runner {engine.name} needs {', '.join(f'--{name}' for name in lacking)}",
            hint=f"add at the end, such as: -- {example}",
        )
    if engine.needs_one and not any(known.get(name) for name in engine.needs_one):
        examples = [f"-- --{name}={example}" for name, example in engine.needs_one.items()]
        raise UsageError(
            f"--runner {engine.name} needs {' or '.join(f'--{n}' for n in engine.needs_one)}",
            hint=f"add at the end, such as: {' or '.join(examples)}",
        )
