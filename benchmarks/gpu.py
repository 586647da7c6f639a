"""The encoders at full size on a GPU: frames a second, and what part of the card that is.

    python -m benchmarks.gpu [--device auto] [--batches 8,16,32]

Runs the tests that need a GPU, then SigLIP-SO400M-384 and InternVideo2-1B with random weights in
bfloat16, alone and together, plain and compiled: the bare forward of normalised pictures that are
already on the card, and the product's way from uint8 pictures in memory to stored features. Wall
seconds, after warming up. Prints a table and writes bench-results/gpu.json. Without a GPU it says
so and is done.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_flops import clip_flops, num_blocks, peak_flops, synchronize
from benchmarks.timing import write_report
from encoders import Runtime, load_encoder
from encoders.devices import choose_device, device_name
from pipeline.batching import EncodeAhead
from pipeline.decoding import ClipFrames
from pipeline.encoding import StreamEncoders
from schemas.errors import DeviceError
from schemas.recipe import Recipe

RESULTS = Path("bench-results") / "gpu.json"
ROOT = Path(__file__).resolve().parents[1]
FRAMES = 4
LEAST_MFU, LEAST_OF_BARE = 0.40, 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is measured, and how often."""

    encoders: tuple[tuple[str, str], ...]
    """(stream, encoder)"""
    layer: int
    precision: str
    batches: tuple[int, ...]
    compiled: tuple[bool, ...]
    warm_ups: int
    repeats: int
    """Batches that are timed."""
    peak_size: int
    """Of the product by which an unknown card is measured."""


FULL = Scope(
    encoders=(("internvideo2", "internvideo2-1b"), ("siglip", "siglip-so400m-14-384")),
    layer=-2,
    precision="bfloat16",
    batches=(8, 16, 32),
    compiled=(False, True),
    warm_ups=3,
    repeats=10,
    peak_size=8192,
)
TINY = Scope(
    encoders=(("internvideo2", "internvideo2-s14"), ("siglip", "siglip-b-16-224")),
    layer=-12,
    precision="float32",
    batches=(1,),
    compiled=(False,),
    warm_ups=1,
    repeats=2,
    peak_size=128,
)
"""One block of small encoders, for a test on a CPU."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:1")
    parser.add_argument("--batches", help="clips a forward, as in 8,16,32")
    parser.add_argument("--tiny", action="store_true", help="a test, also without a GPU")
    parser.add_argument("--no-tests", action="store_true", help="only measure")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    options = parser.parse_args()
    try:
        device = choose_device(options.device)
    except DeviceError as error:
        parser.error(str(error))
    if device == "cpu" and not options.tiny:
        print("There is no GPU that torch can use here, so there is nothing to measure.")
        return 0
    scope = TINY if options.tiny else FULL
    batches = tuple(map(int, options.batches.split(","))) if options.batches else scope.batches
    failed = 0
    if device != "cpu" and not options.no_tests:
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q"]
        failed = subprocess.run(command, cwd=ROOT, check=False).returncode
    peak, source = peak_flops(device, size=scope.peak_size)
    print(f"{device_name(device)}: {peak / 1e12:.4g} TFLOP/s of bfloat16 by {source}")
    show_head()
    rows: list[dict[str, Any]] = []
    for compiled in scope.compiled:
        for batch in batches:
            runtime = Runtime(device=device, compile=compiled, max_batch=batch)
            for row in measure(scope, runtime, peak=peak):
                show_row(row)
                rows.append(row)
    write_report(
        {
            "name": "gpu",
            "device": device_name(device),
            "peak_flops": peak,
            "peak_source": source,
            "scope": asdict(scope),
            "rows": rows,
            "tests": failed,
        },
        options.json,
    )
    show_verdicts(rows)
    return failed


def measure(scope: Scope, runtime: Runtime, *, peak: float) -> Iterator[dict[str, Any]]:
    """A row for each encoder alone and one for all together; or with a note of what went wrong."""
    bare_seconds = 0.0
    for stream, encoder in scope.encoders:
        try:
            row = _measure_one(scope, stream, encoder, runtime, peak=peak)
        except DeviceError as error:
            yield _row(encoder, runtime) | {"note": str(error)}
            return
        bare_seconds += FRAMES / row["bare_frames_per_second"]
        yield row
    try:
        yield _measure_all(scope, runtime, peak=peak, bare_seconds=bare_seconds)
    except DeviceError as error:
        yield _row("both", runtime) | {"note": str(error)}


def _measure_one(
    scope: Scope, stream: str, name: str, runtime: Runtime, *, peak: float
) -> dict[str, Any]:
    _start_afresh(runtime)
    recipe = _recipe(scope, streams=((stream, name),))
    encoder = load_encoder(recipe.streams[stream], runtime=runtime)
    spec, batch = encoder.spec, runtime.max_batch or 1
    shape = (batch, FRAMES, spec.height, spec.width, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    forward = encoder.bare_forward(pixels)  # type: ignore[attr-defined]
    bare = _seconds(forward, scope, device=runtime.device)
    # Several batches a call, so that copies and forwards overlap as they do in a run.
    many = np.concatenate([pixels] * scope.repeats)
    ours = (
        _seconds(lambda: encoder.encode(many), scope, device=runtime.device, repeats=2)
        / scope.repeats
    )
    flops = clip_flops(name, num_blocks=num_blocks(name, layer=scope.layer), num_frames=FRAMES)
    return (
        _row(name, runtime)
        | _rates(batch, bare=bare, ours=ours, flops=flops, peak=peak, device=runtime.device)
        | {"halved_to": encoder.max_batch}
    )  # type: ignore[attr-defined]


def _measure_all(
    scope: Scope, runtime: Runtime, *, peak: float, bare_seconds: float
) -> dict[str, Any]:
    _start_afresh(runtime)
    encoders = StreamEncoders(_recipe(scope, streams=scope.encoders), runtime=runtime)
    batch = encoders.batch_clips
    clips = [_clip(encoders, number) for number in range(batch)]
    taken: list[object] = []

    def encode(num_batches: int) -> None:
        taken.clear()
        with EncodeAhead[None](encoders, take=lambda *one: taken.append(type(one[2]))) as ahead:
            for _ in range(num_batches):
                for clip in clips:
                    ahead.add(None, clip)
            ahead.finish()
        assert taken == [dict] * (num_batches * batch), "a clip has no features"

    encode(scope.warm_ups + encoders.num_threads)
    synchronize(runtime.device)
    began = time.perf_counter()
    encode(scope.repeats)
    seconds = (time.perf_counter() - began) / scope.repeats
    flops = sum(
        clip_flops(name, num_blocks=num_blocks(name, layer=scope.layer), num_frames=FRAMES)
        for _, name in scope.encoders
    )
    bare = bare_seconds * batch
    return (
        _row("both, to stored features", runtime)
        | _rates(batch, bare=bare, ours=seconds, flops=flops, peak=peak, device=runtime.device)
        | {"halved_to": encoders.batch_clips}
    )


def _recipe(scope: Scope, *, streams: tuple[tuple[str, str], ...]) -> Recipe:
    common = {"weights": "random", "layer": scope.layer, "precision": scope.precision}
    return Recipe.from_mapping(
        {
            "name": "gpu",
            "sampling": {"fps": 2.0, "frames_per_clip": FRAMES},
            "streams": {stream: {"encoder": name, **common} for stream, name in streams},
        }
    )


def _clip(encoders: StreamEncoders, number: int) -> ClipFrames:
    generator = np.random.default_rng(number)
    return ClipFrames(
        clip_index=number,
        num_frames=FRAMES,
        start_seconds=0.0,
        end_seconds=2.0,
        times=np.zeros((FRAMES, 2)),
        frames={
            name: generator.integers(
                0, 256, (FRAMES, picture.height, picture.width, 3), dtype=np.uint8
            )
            for name, picture in encoders.pictures.items()
        },
        preview=None,
        corrupt=False,
        shape={},
    )


def _seconds(
    work: Callable[[], object], scope: Scope, *, device: str, repeats: int | None = None
) -> float:
    """Wall seconds of one call."""
    repeats = repeats or scope.repeats
    for _ in range(scope.warm_ups if repeats == scope.repeats else 1):
        work()
    synchronize(device)
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronize(device)
    return (time.perf_counter() - began) / repeats


def _row(what: str, runtime: Runtime) -> dict[str, Any]:
    return {
        "what": what,
        "batch": runtime.max_batch,
        "compiled": runtime.compile,
        "note": "",
    }


def _rates(
    batch: int, *, bare: float, ours: float, flops: float, peak: float, device: str
) -> dict[str, Any]:
    return {
        "bare_frames_per_second": batch * FRAMES / bare,
        "frames_per_second": batch * FRAMES / ours,
        "bare_mfu": batch * flops / bare / peak,
        "mfu": batch * flops / ours / peak,
        "of_bare": bare / ours,
        "gigabytes": _peak_gigabytes(device),
    }


def _start_afresh(runtime: Runtime) -> None:
    import torch

    gc.collect()
    if runtime.compile:
        torch.compiler.reset()  # it gives up on a class of which it has compiled many
    if runtime.device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(runtime.device)


def _peak_gigabytes(device: str) -> float | None:
    if device == "cpu":
        return None
    import torch

    return torch.cuda.max_memory_allocated(device) / 1e9


def show_head() -> None:
    print(
        f"{'':26}{'batch':>6}{'':10}{'bare f/s':>10}{'MFU':>7}"
        f"{'ours f/s':>10}{'MFU':>7}{'of bare':>9}{'GB':>7}"
    )


def show_row(row: dict[str, Any]) -> None:
    compiled = "compiled" if row["compiled"] else ""
    head = f"{row['what']:26}{row['batch']:6}{compiled:>10}"
    if row["note"]:
        print(f"{head}  {row['note']}", flush=True)
        return
    memory = "-" if row["gigabytes"] is None else f"{row['gigabytes']:.1f}"
    print(
        f"{head}{row['bare_frames_per_second']:10.1f}{row['bare_mfu']:7.1%}"
        f"{row['frames_per_second']:10.1f}{row['mfu']:7.1%}{row['of_bare']:9.2f}{memory:>7}"
        f"{'' if row['halved_to'] == row['batch'] else '  halved'}",
        flush=True,
    )


def show_verdicts(rows: list[dict[str, Any]]) -> None:
    """The best of each; a run has both encoders."""
    whole = [row for row in rows if row["what"].startswith("both") and not row["note"]]
    if not whole:
        print("Nothing could be measured to the end.")
        return
    best = max(whole, key=lambda row: row["frames_per_second"])
    for name, value, least in (
        ("model-FLOP utilisation", best["mfu"], LEAST_MFU),
        ("end to end over bare forwards", best["of_bare"], LEAST_OF_BARE),
    ):
        verdict = "met" if value >= least else "missed"
        print(f"{verdict}: {name}, batch {best['batch']}: {value:.2f}, at least {least:.2f}")
    hours = best["frames_per_second"] * 24 / 2
    print(f"{hours:.0f} hours of video a day at 2 frames a second")


if __name__ == "__main__":
    sys.exit(main())
