"""What a run cannot do without, each in a process of its own, for benchmarks.encode_run.

    python -m benchmarks.encode_floors decode CACHE    all pieces of a cache, pictures thrown away
    python -m benchmarks.encode_floors encode CACHE N  N clips through the bare modules

Decodes with the decoder processes and the requests of a run. Prints a line of JSON: clips, and for
`encode` the CPU seconds of the forwards alone.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.decoding import DecodeOutcome
from pipeline.encoding import stream_specs
from pipeline.layout import CacheLayout
from pipeline.planning import read_made_by, read_plan
from pipeline.pool import DecoderPool, num_cores
from pipeline.prefetching import DecodeAhead
from schemas.recipe import Recipe
from schemas.resize import PictureSpec


def main() -> None:
    what, layout = sys.argv[1], CacheLayout(Path(sys.argv[2]))
    made_by = read_made_by(layout)
    assert made_by is not None, layout.root
    if what == "decode":
        answer: dict[str, Any] = {"num_clips": _decode(layout, made_by.recipe)}
    else:
        num_clips = int(sys.argv[3])
        answer = {"num_clips": num_clips, "cpu_seconds": _encode(made_by.recipe, num_clips)}
    print(json.dumps(answer))


def _decode(layout: CacheLayout, recipe: Recipe) -> int:
    pictures = {
        name: PictureSpec(width=spec.width, height=spec.height, resize=spec.resize)
        for name, spec in stream_specs(recipe, device="cpu").items()
    }
    num_clips = 0
    with DecoderPool(recipe.limits, num_processes=num_cores()) as pool:
        pool.spawn()
        for shard in read_plan(layout):
            ahead = DecodeAhead(shard.pieces, recipe=recipe, pictures=pictures, pool=pool)
            with ahead:
                for piece in shard.pieces:
                    clips = ahead.clips(piece)
                    num_clips += sum(not isinstance(clip, DecodeOutcome) for clip in clips)
    return num_clips


def _encode(recipe: Recipe, num_clips: int) -> float:
    from benchmarks.encode_steps import spend
    from encoders import load_encoder
    from encoders.devices import prepare_cpu
    from encoders.running import TorchEncoder

    prepare_cpu(1)
    encoders = [load_encoder(stream) for stream in recipe.streams.values()]
    clips = [
        _random_clip(one.spec.height, one.spec.width, recipe.sampling.frames_per_clip)
        for one in encoders
    ]

    forwards = [
        one.bare_forward(frames)
        if isinstance(one, TorchEncoder)
        else functools.partial(one.encode, frames)
        for one, frames in zip(encoders, clips, strict=True)
    ]
    spent = [sum(spend(forward)[0] for forward in forwards) for _ in range(num_clips + 1)]
    return sum(spent[1:])  # the first one is slower


def _random_clip(height: int, width: int, num_frames: int) -> npt.NDArray[np.uint8]:
    shape = (1, num_frames, height, width, 3)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


if __name__ == "__main__":
    main()
