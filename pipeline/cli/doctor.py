"""`pipeline doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import click

from pipeline.cli.show import common_options, print_json, print_table, set_verbosity
from schemas.errors import VideoError, WorkerDied

EPILOG = """\b
Examples:
  pipeline doctor
  pipeline doctor cache/ --json

Exit code 1 if something is wrong."""

OUR_NAMES = ("schemas", "encoders", "pipeline", "trainer", "beam_runner")
REPORT = "please report it"
LIBRARIES = ("apache-beam", "torch", "av", "numpy", "pyarrow", "pillow", "webdataset")


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    hint: str


def _good(name: str, detail: str) -> Check:
    return Check(name=name, ok=True, detail=detail, hint="")


def _bad(name: str, detail: str, hint: str) -> Check:
    return Check(name=name, ok=False, detail=detail, hint=hint)


@click.command(epilog=EPILOG)
@click.argument("folder", default=".")
@common_options
def doctor(*, folder: str, as_json: bool, quiet: bool, loud: bool) -> int:
    """Check versions, import names, ffmpeg, decoding, the GPU, and that FOLDER can be written."""
    set_verbosity(quiet=quiet, loud=loud)
    checks: list[Check] = []
    steps: list[Callable[[], Iterator[Check]]] = [
        _check_versions,
        _check_import_names,
        _check_ffmpeg,
        _check_decoding,
        _check_gpu,
        lambda: _check_folder(Path(folder)),
    ]
    for step in steps:
        checks += step()
    ok = all(check.ok for check in checks)
    if as_json:
        print_json({"ok": ok, "checks": [check._asdict() for check in checks]})
    else:
        print_table(
            ("", "check", "detail"),
            [("ok" if c.ok else "BAD", c.name, c.detail) for c in checks],
        )
        for check in checks:
            if not check.ok and check.hint:
                click.echo(f"{check.name}: {check.hint}")
    return 0 if ok else 1


def _check_versions() -> Iterator[Check]:
    yield _good("python", platform.python_version())
    yield _good("reelcache", metadata.version("reelcache"))
    for name in LIBRARIES:
        try:
            yield _good(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield _bad(name, "not installed", "install reelcache again: pip install .")


def _check_import_names() -> Iterator[Check]:
    # Public packages install folders with these names too, and pip overwrites silently.
    owners = metadata.packages_distributions()
    clashes = []
    home = Path(__file__).resolve().parents[2]
    for name in OUR_NAMES:
        others = sorted(set(owners.get(name, [])) - {"reelcache"})
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        foreign = origin is None or home not in origin.parents
        if others:
            detail = f"the import name {name!r} is also installed by {', '.join(others)}"
            hint = f"use an environment of its own, or: pip uninstall {' '.join(others)}"
            clashes.append(_bad(f"import {name}", detail, hint))
        elif foreign:
            detail = f"{name!r} is imported from {origin}, not from {home}"
            hint = "use an environment of its own"
            clashes.append(_bad(f"import {name}", detail, hint))
    yield from clashes or [_good("import names", f"all from {home}")]


def _check_ffmpeg() -> Iterator[Check]:
    hint = "install imageio-ffmpeg; only the demo needs it"
    try:
        import imageio_ffmpeg

        binary = imageio_ffmpeg.get_ffmpeg_exe()
        command = [binary, "-hide_banner", "-version"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        yield _good("ffmpeg", " ".join(output.stdout.split()[:3]))
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        yield _bad("ffmpeg", f"does not run: {error}", hint)


def _check_decoding() -> Iterator[Check]:
    from pipeline.jail import DecoderProcess
    from schemas.recipe import DecodeLimits

    request = {
        "kind": "probe",
        "path": str(Path(__file__).resolve()),
        "max_pixels": 1,
        "max_duration_seconds": 1.0,
    }
    with DecoderProcess(DecodeLimits()) as process:
        try:
            list(process.request(request, duration_seconds=0.0))
            yield _bad("decoder process", "took a text file for a video", REPORT)
        except VideoError as error:
            if error.reason in ("not_a_video", "refused_format"):
                yield _good("decoder process", "starts and refuses what is no video")
                yield _good("decoder filter", _describe_filter(process.unfiltered))
            else:
                yield _bad("decoder process", error.message, REPORT)
        except (RuntimeError, WorkerDied) as error:
            yield _bad("decoder process", str(error), REPORT)


def _describe_filter(unfiltered: str) -> str:
    if unfiltered:
        return f"none, limits only ({unfiltered})"
    return "no sockets, no programs, no writing (seccomp)"


def _check_gpu() -> Iterator[Check]:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield _good("gpu", ", ".join(names))
    else:
        yield _good("gpu", "none: encoders run on the CPU")
    yield _good("cores", str(len(os.sched_getaffinity(0))))


def _check_folder(folder: Path) -> Iterator[Check]:
    name = f"write {folder}"
    existing = next(
        parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists()
    )
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        yield _bad(name, f"{error.strerror}", "choose another place for the cache")
        return
    status = os.statvfs(existing)
    free = status.f_bavail * status.f_frsize
    yield _good(name, f"{free / 1e9:.1f} GB free")
