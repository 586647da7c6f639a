"""One way of sampling one file, in a process of its own, for benchmarks.decode.

    python -m benchmarks.decode_ways WAY FILE FPS

Prints a line of JSON: CPU seconds up to the end of the imports, how many samples, and a digest of
their times and pixels where it is asked for. FPS 0 does nothing after the imports. `decord` needs
nothing else of this project, so that it may live in another environment.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

SIZE = 224
APOLLO_SIZES = {"image": 384, "video": SIZE}
PREVIEW_HEIGHT = 64
OURS, APOLLO, ALL, DECORD = "ours", "ours, apollo sizes", "PyAV, all frames", "decord"
PILLOW = "ours, apollo sizes, by Pillow"
IMPORTS = {
    **dict.fromkeys(
        (OURS, APOLLO, PILLOW, ALL), ("pipeline.jailed.pixels", "pipeline.jailed.sampler")
    ),
    DECORD: ("decord", "numpy"),
}
"""Way -> what it imports."""
_MAX_PIXELS = 100_000_000
_MAX_SECONDS = 24 * 3600.0
_TOLERANCE_SECONDS = 1e-6

Sample = tuple[float, Mapping[str, Any]]
"""(start of display in seconds, stream -> picture)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("way", choices=IMPORTS)
    parser.add_argument("file")
    parser.add_argument("fps", type=float)
    parser.add_argument("--digest", action="store_true")
    options = parser.parse_args()
    for module in IMPORTS[options.way]:
        importlib.import_module(module)
    start_cpu_seconds = time.process_time()
    if not options.fps:
        return
    orders = {ALL: ("all",), DECORD: ("decord",)}.get(options.way, ("selected", "all", "sorted"))
    for order in orders:
        digest, count = hashlib.sha256(), 0
        try:
            for start_seconds, pictures in _sample(options.way, order, options.file, options.fps):
                count += 1
                if options.digest:
                    digest.update(repr((start_seconds, sorted(pictures))).encode())
                    for name in sorted(pictures):
                        digest.update(pictures[name])
        except Exception as error:
            # As the product does: another order where one cannot be trusted.
            if type(error).__name__ not in ("NotSelectable", "TimesGoBack") or order == orders[-1]:
                raise
        else:
            answer = {"num_samples": count, "digest": digest.hexdigest(), "order": order}
            print(json.dumps(answer | {"start_cpu_seconds": start_cpu_seconds}), flush=True)
            os._exit(0)  # taking the interpreter down costs as much as a short file


def _sample(way: str, order: str, path: str, fps: float) -> Iterator[Sample]:
    if way == DECORD:
        return _decord(path, fps)
    if way in (APOLLO, PILLOW):
        library = "pillow" if way == PILLOW else "libswscale"
        return _ours(path, fps, order=order, sizes=APOLLO_SIZES, library=library)
    return _ours(path, fps, order=order, sizes={"video": SIZE}, preview_height=None)


def _ours(
    path: str,
    fps: float,
    *,
    order: str,
    sizes: Mapping[str, int],
    library: Any = "libswscale",
    preview_height: int | None = PREVIEW_HEIGHT,
) -> Iterator[Sample]:
    from pipeline.jailed.pixels import Converter
    from pipeline.jailed.sampler import VideoSampler
    from pipeline.sampling import Window
    from schemas.resize import PictureSpec, ResizeSpec

    resize = ResizeSpec(library=library)
    pictures = {
        name: PictureSpec(width=size, height=size, resize=resize) for name, size in sizes.items()
    }
    converter = Converter(pictures=pictures, preview_height=preview_height)
    sampler = VideoSampler(
        path,
        window=Window(fps=fps),
        convert=lambda frame, aspect: converter.convert(frame, sample_aspect=aspect),
        max_pixels=_MAX_PIXELS,
        max_duration_seconds=_MAX_SECONDS,
    )
    orders = {"selected": sampler.selected, "all": sampler.all, "sorted": sampler.sorted}
    for sample in orders[order]():
        yield sample.start_seconds, sample.picture.frames


def _decord(path: str, fps: float) -> Iterator[Sample]:
    # Chosen by the times that it tells, as ours; in batches as its users take them.
    decord = importlib.import_module("decord")
    numpy = importlib.import_module("numpy")
    reader = decord.VideoReader(path, width=SIZE, height=SIZE, num_threads=1)
    times = reader.get_frame_timestamp(range(len(reader)))[:, 0]
    grid = numpy.arange(times[0], times[-1] + _TOLERANCE_SECONDS, 1 / fps)
    indices = numpy.searchsorted(times, grid + _TOLERANCE_SECONDS, side="right") - 1
    for first in range(0, len(indices), 32):
        batch = indices[first : first + 32]
        frames = reader.get_batch(batch.tolist()).asnumpy()
        for index, frame in zip(batch, frames, strict=True):
            yield float(times[index]), {"video": frame}


if __name__ == "__main__":
    main()
