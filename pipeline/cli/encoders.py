"""`pipeline encoders`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from encoders import (
    EncoderSpec,
    Runtime,
    SoundSpec,
    check_encoder,
    check_sound_encoder,
    encoder_spec,
    list_encoders,
    list_sound_encoders,
    load_encoder,
    load_sound_encoder,
    sound_spec,
)
from pipeline.cli.show import (
    common_options,
    count_text,
    print_facts,
    print_json,
    print_table,
    set_verbosity,
    size_text,
)
from schemas.recipe import EncoderSettings

if TYPE_CHECKING:
    from encoders.tensors import LoadReport

F = TypeVar("F", bound=Callable[..., Any])

EPILOG = """\b
Examples:
  pipeline encoders list
  pipeline encoders show random-image
  pipeline encoders check internvideo2-s14 --weights random
  pipeline encoders convert internvideo2-s14 pytorch_model.bin s14.safetensors"""


@click.group(epilog=EPILOG, no_args_is_help=True)
def encoders() -> None:
    """List, show, check or convert encoders: frames or sound in, features out."""


def _weights_option(command: F) -> F:
    return click.option(
        "--weights",
        metavar="WHERE",
        default="",
        help="A file, a folder, 'hub' to download them, or 'random' for a trial.",
    )(command)


def _device_option(default: str) -> Callable[[F], F]:
    return click.option(
        "--device", default=default, show_default=True, help="auto, cpu, cuda or cuda:N."
    )


@encoders.command("list", epilog="\b\nExample:\n  pipeline encoders list")
@common_options
def list_command(*, as_json: bool, quiet: bool, loud: bool) -> None:
    """List the encoders, built in and plugged in."""
    set_verbosity(quiet=quiet, loud=loud)
    specs: list[EncoderSpec | SoundSpec] = [encoder_spec(name) for name in list_encoders()]
    specs += [sound_spec(name) for name in list_sound_encoders()]
    if as_json:
        print_json([_document(spec) for spec in specs])
        return
    print_table(
        ("encoder", "input", "grid", "dim", "weights"),
        [(s.name, _input_text(s), _grid_text(s), s.dim, _weights_text(s)) for s in specs],
    )


def _weights_text(spec: EncoderSpec | SoundSpec) -> str:
    if not spec.weights_hint:
        return "none"
    return "found" if spec.weights_sha256 else "needed"


@encoders.command(
    epilog="\b\nExamples:\n  pipeline encoders show random-image\n"
    "  pipeline encoders show internvideo2-1b --weights my-weights/",
    no_args_is_help=True,
)
@click.argument("name")
@_weights_option
@_device_option("cpu")
@common_options
def show(*, name: str, weights: str, device: str, as_json: bool, quiet: bool, loud: bool) -> None:
    """Show what an encoder is: its part of a cache's fingerprint."""
    set_verbosity(quiet=quiet, loud=loud)
    spec = _spec(EncoderSettings(encoder=name, weights=weights), device=_choose(device))
    if as_json:
        print_json(_document(spec))
    else:
        print_facts(_facts(spec))


@encoders.command(
    epilog="\b\nExamples:\n  pipeline encoders check random-image\n"
    "  pipeline encoders check internvideo2-s14 --weights random",
    no_args_is_help=True,
)
@click.argument("name")
@_weights_option
@_device_option("auto")
@common_options
def check(*, name: str, weights: str, device: str, as_json: bool, quiet: bool, loud: bool) -> int:
    """Load an encoder and run the contract test; exit 1 if it fails.

    Says what the encoder is and what became of every key of its weights.
    """
    set_verbosity(quiet=quiet, loud=loud)
    settings = EncoderSettings(encoder=name, weights=weights)
    runtime = Runtime(device=_choose(device))
    encoder: Any
    if name in list_sound_encoders():
        encoder = load_sound_encoder(settings, runtime=runtime)
        problems = check_sound_encoder(encoder)
    else:
        encoder = load_encoder(settings, runtime=runtime)
        problems = check_encoder(encoder)
    report: LoadReport | None = getattr(encoder, "report", None)
    if as_json:
        print_json(
            {
                "ok": not problems,
                "name": name,
                "problems": problems,
                "device": runtime.device,
                "spec": _document(encoder.spec),
                "report": None if report is None else asdict(report),
            }
        )
        return 1 if problems else 0
    print_facts([*_facts(encoder.spec), ("device", runtime.device), *_report_facts(report)])
    for problem in problems:
        click.echo(f"{name}: {problem}")
    if not problems:
        click.echo(f"ok: {name}")
    return 1 if problems else 0


@encoders.command(
    epilog="\b\nExample:\n"
    "  pipeline encoders convert internvideo2-s14 pytorch_model.bin s14.safetensors",
    no_args_is_help=True,
)
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT.safetensors", type=click.Path(path_type=Path))
@common_options
def convert(*, name: str, file: Path, out: Path, as_json: bool, quiet: bool, loud: bool) -> None:
    """Write what features need of a published FILE as safetensors.

    The features stay the same to the bit; the fingerprint of a cache does not, since it names the
    file's own sha256.
    """
    set_verbosity(quiet=quiet, loud=loud)
    from encoders.converting import convert_weights

    done = convert_weights(name, file, out)
    if as_json:
        print_json(asdict(done))
        return
    print_facts(
        [
            ("encoder", done.encoder),
            ("from", f"{done.source} (sha256 {done.source_sha256})"),
            ("kept", _kept_text(done.num_tensors, done.num_parameters)),
            ("left out", _families_text(done.ignored)),
            ("written", f"{done.target}, {size_text(done.num_bytes)}"),
            ("sha256", done.target_sha256),
        ]
    )


def _choose(device: str) -> str:
    from encoders.devices import choose_device

    return choose_device(device)


def _spec(settings: EncoderSettings, *, device: str) -> EncoderSpec | SoundSpec:
    if settings.encoder in list_sound_encoders():
        return sound_spec(settings, device=device)
    return encoder_spec(settings, device=device)


def _document(spec: EncoderSpec | SoundSpec) -> dict[str, Any]:
    return spec.stamp() | {
        "kind": "sound" if isinstance(spec, SoundSpec) else "picture",
        "needs_weights": bool(spec.weights_hint),
        "libraries": list(spec.libraries),
    }


def _facts(spec: EncoderSpec | SoundSpec) -> list[tuple[str, str]]:
    facts = [(field, str(value) or "-") for field, value in spec.stamp().items()]
    if isinstance(spec, EncoderSpec):
        how = f"{spec.resize.library}, {spec.resize.filter}, {spec.resize.fit}"
        facts = [fact for fact in facts if fact[0] != "resize"] + [("resize", how)]
    if spec.libraries:
        facts.append(("libraries", ", ".join(spec.libraries)))
    if spec.weights_hint and not spec.weights_sha256:
        facts.append(("weights", f"needed: {spec.weights_hint}"))
    return facts


def _report_facts(report: LoadReport | None) -> list[tuple[str, str]]:
    if report is None:
        return []
    facts = [
        ("loaded", _kept_text(len(report.loaded), report.num_parameters)),
        ("ignored", _families_text(report.ignored)),
    ]
    return [*facts, ("note", report.note)] if report.note else facts


def _input_text(spec: EncoderSpec | SoundSpec) -> str:
    if isinstance(spec, SoundSpec):
        return f"{spec.num_windows} s of sound"
    frames = f"{spec.frames_per_clip} x " if spec.frames_per_clip else ""
    return f"{frames}{spec.width} x {spec.height}"


def _grid_text(spec: EncoderSpec | SoundSpec) -> str:
    if isinstance(spec, SoundSpec):
        return f"{spec.tokens_per_window} a second"
    return f"{spec.grid[0]} x {spec.grid[1]}"


def _kept_text(num_keys: int, num_parameters: int) -> str:
    return f"{count_text(num_keys, 'key')}, {count_text(num_parameters, 'parameter')}"


def _families_text(families: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in families.items()) or "nothing"
