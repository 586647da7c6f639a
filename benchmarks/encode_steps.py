"""Encoding clips, beside the bare forward of the same module on the same batches."""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Spent, measure_in_turn
from encoders import encoder_spec, list_encoders, load_encoder
from encoders.devices import prepare_cpu
from encoders.registry import require_weights
from encoders.running import TorchEncoder
from pipeline.decoding import ClipFrames
from pipeline.encoding import StreamEncoders
from schemas.compact import store_features
from schemas.errors import WeightsError
from schemas.recipe import EncoderSettings, Recipe

BARE, ENCODE = "bare forward", "TorchEncoder.encode"
STORED = {"stored, float16": {"dtype": "float16"}, "stored, 8x8 int8": {"dtype": "int8"}}
"""Way -> how a stream stores what StreamEncoders.encode makes of clips."""
COMPACT_GRID = 8
FRAMES = 4
STREAM = "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScope:
    """How much is measured."""

    encoders: tuple[tuple[str, int], ...]
    """(name, clips of a round)"""
    rounds: int
    """The first is dropped."""


def measure_steps(scope: StepScope) -> list[dict[str, Any]]:
    """A row for each way of each encoder; an encoder that cannot be had here has one note."""
    prepare_cpu(1)
    return [
        row
        for name, num_clips in scope.encoders
        for row in _rows(name, num_clips=num_clips, rounds=scope.rounds)
    ]


def _rows(name: str, *, num_clips: int, rounds: int) -> Iterator[dict[str, Any]]:
    if name not in list_encoders():
        yield {"encoder": name, "note": "is not known to this version"}
        return
    settings = usable_settings(name)
    if settings is None:
        yield {"encoder": name, "note": "its weights are not installed"}
        return
    encoder = load_encoder(settings)
    if not isinstance(encoder, TorchEncoder):
        yield {"encoder": name, "note": "is not one of torch"}
        return
    clips = _clips(encoder, num_clips=num_clips)
    timings = measure_in_turn(_ways(encoder, settings, clips), rounds=rounds)
    bare = timings[BARE].summary("cpu")["median"]
    for way, timing in timings.items():
        cpu = timing.summary("cpu")
        yield {
            "encoder": name,
            "way": way,
            "num_clips": num_clips,
            "cpu_seconds": cpu,
            "wall_seconds": timing.summary("wall"),
            "cpu_ratio": cpu["median"] / bare,
            "rounds": asdict(timing),
            "note": "",
        }


def usable_settings(name: str) -> EncoderSettings | None:
    """With the weights that it brings, or else with random ones; None: it has neither."""
    for weights in ("", "random"):
        settings = EncoderSettings(encoder=name, weights=weights)
        try:
            require_weights(encoder_spec(settings))
        except WeightsError:
            continue
        return settings
    return None


def _clips(encoder: TorchEncoder, *, num_clips: int) -> list[ClipFrames]:
    spec = encoder.spec
    shape = (spec.frames_per_clip or FRAMES, spec.height, spec.width, 3)
    generator = np.random.default_rng(0)
    return [
        ClipFrames(
            clip_index=number,
            num_frames=shape[0],
            start_seconds=0.0,
            end_seconds=2.0,
            times=np.zeros((shape[0], 2)),
            frames={STREAM: generator.integers(0, 256, shape, dtype=np.uint8)},
            preview=None,
            corrupt=False,
            shape={},
        )
        for number in range(num_clips)
    ]


def _ways(
    encoder: TorchEncoder, settings: EncoderSettings, clips: Sequence[ClipFrames]
) -> dict[str, Callable[[], Spent]]:
    frames_BTHWC = np.stack([clip.frames[STREAM] for clip in clips])
    forwards = [encoder.bare_forward(one[None]) for one in frames_BTHWC]  # as a CPU takes them
    grid = tuple(min(size, COMPACT_GRID) for size in encoder.spec.grid)
    streams = {
        way: StreamEncoders(_recipe(settings, grid=grid if how["dtype"] == "int8" else (), **how))
        for way, how in STORED.items()
    }

    def bare() -> list[torch.Tensor]:
        return [forward() for forward in forwards]

    expected = torch.cat(bare()).numpy()
    np.testing.assert_array_equal(encoder.encode(frames_BTHWC), expected)
    for way, one in streams.items():
        int8 = STORED[way]["dtype"] == "int8"
        for features, found in zip(expected, one.encode(clips), strict=True):
            assert isinstance(found, dict), found
            stored = store_features(features, grid=grid if int8 else (), **STORED[way])
            np.testing.assert_array_equal(found[STREAM].values, stored.values, strict=True)
    ways: dict[str, Callable[[], object]] = {
        BARE: bare,
        ENCODE: lambda: encoder.encode(frames_BTHWC),
        **{way: functools.partial(one.encode, clips) for way, one in streams.items()},
    }
    return {way: functools.partial(spend, work) for way, work in ways.items()}


def _recipe(settings: EncoderSettings, *, grid: tuple[int, ...], dtype: str) -> Recipe:
    stream = {"encoder": settings.encoder, "weights": settings.weights, "dtype": dtype}
    return Recipe.from_mapping(
        {
            "name": "bench",
            "sampling": {"fps": 2.0, "frames_per_clip": FRAMES},
            "streams": {STREAM: stream | ({"grid": list(grid)} if grid else {})},
        }
    )


def spend(work: Callable[[], object]) -> Spent:
    """CPU seconds of all threads of this process, and wall seconds."""
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    work()
    wall, now = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime - used.ru_utime + now.ru_stime - used.ru_stime, wall
