"""`pipeline doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from pipeline.cli.show import (
    common_options,
    duration_text,
    print_json,
    print_table,
    set_verbosity,
)
from schemas.errors import SourceError, VideoError, WorkerDied
from schemas.video import Source

if TYPE_CHECKING:
    from pipeline.comparing import DecodeComparison

EPILOG = """\b
Examples:
  pipeline doctor
  pipeline doctor cache/ --json
  pipeline doctor --decode video.mp4

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
@click.option("--decode", "video", metavar="FILE", help="Compare the decoders on a video instead.")
@click.option(
    "--fps",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Samples a second, with --decode.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=240,
    show_default=True,
    help="At most so many from the start, with --decode.",
)
@common_options
def doctor(
    *,
    folder: str,
    video: str | None,
    fps: float,
    samples: int,
    as_json: bool,
    quiet: bool,
    loud: bool,
) -> int:
    """Check versions, import names, ffmpeg, decoding, the GPU, and that FOLDER can be written.

    With --decode: how each decoder reads a video, beside PyAV decoding all frames.
    """
    set_verbosity(quiet=quiet, loud=loud)
    if video is not None:
        return _compare_decoders(video, fps=fps, max_samples=samples, as_json=as_json)
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


def _compare_decoders(path: str, *, fps: float, max_samples: int, as_json: bool) -> int:
    from pipeline.comparing import SIZE, compare_backends
    from pipeline.signing import learn
    from pipeline.source_files import is_remote, to_uri

    source = Source(uri=learn(path) if is_remote(path) else to_uri(path))
    try:
        probe, results = compare_backends(source, fps=fps, max_samples=max_samples)
    except VideoError as error:
        raise SourceError(f"{source.uri}: {error.reason}: {error.detail}") from error
    by_record = [result for result in results if result.way.startswith("pyav")]
    ok = not results[0].problem and all(
        not r.num_other_times and not r.max_difference for r in by_record if not r.problem
    )
    if as_json:
        document = {
            "ok": ok,
            "uri": source.uri,
            "container": probe.container,
            "codec": probe.codec,
            "width": probe.width,
            "height": probe.height,
            "fps": fps,
            "decoders": [asdict(result) for result in results],
        }
        print_json(document)
        return 0 if ok else 1
    click.echo(
        f"{source.uri}: {probe.codec} in {probe.container}, {probe.width} x {probe.height},"
        f" {duration_text(probe.duration_seconds)}, at {fps:g} fps"
    )
    header = ("decoder", "samples", "other times", "mean diff", "max diff", "decoded", "seconds")
    print_table(header, [_row(result) for result in results if not result.problem])
    for result in results:
        if result.problem:
            click.echo(f"{result.way}: not used: {result.problem}")
    if not results[0].problem:
        click.echo(
            f"Beside {results[0].way}: samples with another time of display; difference of pictures"
            f" at {SIZE[0]} x {SIZE[1]} in levels of 255."
        )
    return 0 if ok else 1


def _row(result: DecodeComparison) -> tuple[object, ...]:
    return (
        result.way,
        result.num_samples,
        result.num_other_times,
        result.mean_difference,
        result.max_difference,
        result.num_frames_decoded,
        result.seconds,
    )


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
    hint = "install imageio-ffmpeg; only the demo and the backend ffmpeg need it"
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

    from pipeline.pool import num_cores

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield _good("gpu", ", ".join(names))
    else:
        yield _good("gpu", "none: encoders run on the CPU")
    yield _good("cores", str(num_cores()))


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
