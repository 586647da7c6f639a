"""ClipParts: what of a cached clip is read to show it; features, nearly all bytes, if asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.feature_maps import Stored
from pipeline.peeking import peek
from schemas.json_text import parse_json
from schemas.sample import AUDIO_MASK_MEMBER, AUDIO_MEMBER, SCALE_MEMBER, decode_npy

ENERGY_ENCODERS = ("log-mel",)
"""Of sound, whose tokens are loudness by band: log10 of power is 4 x - 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipParts:
    """What was read of a clip."""

    times: npt.NDArray[np.float64]
    """(T, 2), as of a sample."""
    mask: npt.NDArray[np.bool_]
    """(T,): False for fill."""
    info: dict[str, Any]
    preview: memoryview | None
    """JPEG."""
    features: dict[str, Stored]
    """By stream; empty where they were not read."""
    energy: list[float | None]
    """Of sound, of each token of each window: decibels up to a constant; None: nothing is heard.
    Empty where the tokens do not tell."""


def read_parts(cache: FeatureCache, key: str, *, with_features: bool) -> ClipParts:
    """The parts of a clip, with features or without. CacheDamaged: they are not as written."""
    names = ["json", "time.npy", "mask.npy", "preview.jpg"]
    hears = cache.recipe.audio is not None and cache.recipe.audio.encoder in ENERGY_ENCODERS
    if hears:
        names += [AUDIO_MEMBER, AUDIO_MASK_MEMBER]
    if with_features:
        names += [f"{name}{suffix}" for name in cache.streams for suffix in (".npy", SCALE_MEMBER)]
    members = peek(cache, key, names=names)
    try:
        features = {}
        if with_features:
            for name in cache.streams:
                scale = members.get(name + SCALE_MEMBER)
                values = decode_npy(members[f"{name}.npy"])
                features[name] = (values, None if scale is None else decode_npy(scale))
        times, mask = decode_npy(members["time.npy"]), decode_npy(members["mask.npy"])
        info = parse_json(bytes(members["json"]))
        if times.shape != (len(mask), 2) or not np.isfinite(times).all():
            raise ValueError(f"times of {times.shape = } must be ({len(mask)}, 2) and finite")
        if not isinstance(info, dict):
            raise ValueError("its json is not an object")
        return ClipParts(
            times=times,
            mask=mask,
            info=info,
            preview=members.get("preview.jpg"),
            features=features,
            energy=_energy(members) if hears else [],
        )
    except KeyError as error:
        raise cache.damaged(f"{key}: member {error.args[0]!r} is missing") from error
    except ValueError as error:
        raise cache.damaged(f"{key}: {error}") from error


def _energy(members: Mapping[str, memoryview]) -> list[float | None]:
    heard = decode_npy(members[AUDIO_MASK_MEMBER])
    tokens_WLB = decode_npy(members[AUDIO_MEMBER]).astype(np.float64)
    decibels_WL = 10 * np.log10((10 ** (4 * tokens_WLB - 4)).mean(axis=2))
    return [
        round(float(value), 1) if there else None
        for window, there in zip(decibels_WL, heard, strict=True)
        for value in window
    ]
