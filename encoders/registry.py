"""Encoders by name: built in, or plugged in through the entry-point group `reelcache.encoders`.

An entry point names a module with two functions: `spec() -> EncoderSpec`, which reads no weights,
and `load(*, device) -> Encoder`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from importlib import metadata
from typing import NamedTuple

import numpy as np

from encoders.base import Encoder, EncoderSpec
from schemas.errors import RecipeError, UsageError
from schemas.settings import nearest

ENTRY_POINT_GROUP = "reelcache.encoders"

_BUILT_IN = {
    "random-image": "encoders.projection:random_image_spec:load_random_image",
    "random-video": "encoders.projection:random_video_spec:load_random_video",
}


class _Entry(NamedTuple):
    spec: Callable[[], EncoderSpec]
    load: Callable[..., Encoder]


def list_encoders() -> list[str]:
    """All names, built in and plugged in, sorted."""
    return sorted(_BUILT_IN.keys() | _plugged_in().keys())


def encoder_spec(name: str) -> EncoderSpec:
    """What an encoder is, without reading its weights. RecipeError: no such name."""
    return _entry(name).spec()


def load_encoder(name: str, *, device: str = "cpu") -> Encoder:
    """The encoder, ready to encode. RecipeError: no such name."""
    return _entry(name).load(device=device)


def check_encoder(encoder: Encoder) -> list[str]:
    """The contract test that authors of plug-ins run: what is wrong, or an empty list.

    Shape and dtype, finite values, the same result twice, no dependence on the rest of the batch,
    and a response to the pixels.
    """
    spec = encoder.spec
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, size=(3, 4, spec.height, spec.width, 3), dtype=np.uint8)
    features = encoder.encode(frames)
    expected = (3, 4, *spec.grid, spec.dim)
    if features.shape != expected or features.dtype != np.float32:
        return [f"encode gave {features.shape} {features.dtype}, expected {expected} float32"]
    problems = []
    if not np.isfinite(features).all():
        problems.append("encode gave NaN or infinity")
    if not np.array_equal(features, encoder.encode(frames), equal_nan=True):
        problems.append("encode gave another result the second time")
    alone = encoder.encode(frames[1:2])
    if not np.allclose(alone, features[1:2], rtol=1e-3, atol=1e-3, equal_nan=True):
        problems.append("a clip's features depend on the other clips of its batch")
    if np.array_equal(features[0], features[1], equal_nan=True):
        problems.append("two different clips have the same features")
    return problems


@functools.cache
def _plugged_in() -> dict[str, metadata.EntryPoint]:
    found: dict[str, metadata.EntryPoint] = {}
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        if entry_point.name in _BUILT_IN or entry_point.name in found:
            raise UsageError(
                f"two encoders are named {entry_point.name!r}; one is {entry_point.value}",
                hint="uninstall one of the packages that provide it",
            )
        found[entry_point.name] = entry_point
    return found


def _entry(name: str) -> _Entry:
    if name in _BUILT_IN:
        module_name, spec, load = _BUILT_IN[name].split(":")
        module = importlib.import_module(module_name)
        return _Entry(spec=getattr(module, spec), load=getattr(module, load))
    if name in _plugged_in():
        module = _plugged_in()[name].load()
        return _Entry(spec=module.spec, load=module.load)
    raise RecipeError(
        f"no encoder named {name!r}{nearest(name, list_encoders())}",
        hint="see: pipeline encoders list",
    )
