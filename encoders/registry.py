"""Encoders by name: built in, or plugged in through the entry-point group `reelcache.encoders`.

An entry point names a module with two functions: `spec(settings, *, device) -> EncoderSpec`, which
reads no weights into memory, and `load(spec, *, settings, runtime) -> Encoder`.
docs/encoders.md has an example.
"""

from __future__ import annotations

import functools
import importlib
from importlib import metadata
from typing import Any

from encoders.base import Encoder, EncoderSpec, Runtime
from encoders.siglip_sizes import SIZES as SIGLIP_SIZES
from encoders.sound import SoundEncoder, SoundSpec
from schemas.errors import RecipeError, UsageError, WeightsError
from schemas.recipe import EncoderSettings
from schemas.settings import nearest

ENTRY_POINT_GROUP = "reelcache.encoders"

_MODULES = {
    "encoders.efficientnet": ("efficientnet-lite0",),
    "encoders.motion": ("motion-energy",),
    "encoders.projection": ("random-image", "random-relu", "random-video"),
    "encoders.siglip": tuple(SIGLIP_SIZES),
    "encoders.dinov3": (
        "dinov3-s-16-256",
        "dinov3-b-16-256",
        "dinov3-l-16-256",
        "dinov3-h-plus-16-256",
    ),
    "encoders.perception": ("pe-core-b-16-224", "pe-core-l-14-336", "pe-core-g-14-448"),
    "encoders.vjepa2": (
        "vjepa2-l-16-256",
        "vjepa2-h-16-256",
        "vjepa2-g-16-256",
        "vjepa2-g-16-384",
    ),
    "encoders.internvideo2": (
        "internvideo2-1b",
        "internvideo2-b14",
        "internvideo2-l14",
        "internvideo2-s14",
    ),
}
"""Module -> the encoders in it; each has `spec` and `load`."""
_SOUND_MODULES: dict[str, tuple[str, ...]] = {
    "encoders.mel_bands": ("log-mel",),
    "encoders.whisper": (
        "whisper-tiny",
        "whisper-base",
        "whisper-small",
        "whisper-medium",
        "whisper-large-v3",
    ),
}
_BUILT_IN = {name: module for module, names in _MODULES.items() for name in names}
_SOUND = {name: module for module, names in _SOUND_MODULES.items() for name in names}


def list_encoders() -> list[str]:
    """Names of all encoders of pictures, built in and plugged in, sorted."""
    return sorted(_BUILT_IN.keys() | _plugged_in().keys())


def list_sound_encoders() -> list[str]:
    """Names of all encoders of sound, sorted."""
    return sorted(_SOUND)


def encoder_spec(settings: EncoderSettings | str, *, device: str = "cpu") -> EncoderSpec:
    """What an encoder is with these settings; without `weights` all but their digest.

    RecipeError: no such name, or a setting that it has no choice of. WeightsError: there are no
    weights where the settings say.
    """
    settings = _of_name(settings)
    spec: EncoderSpec = _module(settings.encoder).spec(settings, device=device)
    return spec


def load_encoder(settings: EncoderSettings | str, *, runtime: Runtime | None = None) -> Encoder:
    """The encoder, ready to encode. Errors as of `encoder_spec`; DeviceError."""
    settings = _of_name(settings)
    encoder: Encoder = _load(_module(settings.encoder), settings, runtime or Runtime())
    return encoder


def sound_spec(settings: EncoderSettings | str, *, device: str = "cpu") -> SoundSpec:
    """As `encoder_spec`, for sound."""
    settings = _of_name(settings)
    spec: SoundSpec = _sound_module(settings.encoder).spec(settings, device=device)
    return spec


def load_sound_encoder(
    settings: EncoderSettings | str, *, runtime: Runtime | None = None
) -> SoundEncoder:
    """As `load_encoder`, for sound."""
    settings = _of_name(settings)
    encoder: SoundEncoder = _load(_sound_module(settings.encoder), settings, runtime or Runtime())
    return encoder


def encoder_module(name: str) -> Any:
    """The module of an encoder of pictures or of sound. RecipeError: no such name."""
    return _sound_module(name) if name in _SOUND else _module(name)


def require_weights(spec: EncoderSpec | SoundSpec) -> None:
    """WeightsError: the encoder needs weights, and the settings do not say where they are."""
    if spec.weights_hint and not spec.weights_sha256:
        raise WeightsError(f"the encoder {spec.name} needs its weights", hint=spec.weights_hint)


def _load(module: Any, settings: EncoderSettings, runtime: Runtime) -> Any:
    spec = module.spec(settings, device=runtime.device)
    require_weights(spec)
    encoder = module.load(spec, settings=settings, runtime=runtime)
    _check_same(spec, module.spec(settings, device=runtime.device))
    return encoder


def _check_same(before: EncoderSpec | SoundSpec, after: EncoderSpec | SoundSpec) -> None:
    # The digest was taken before the file was read.
    if before.weights_sha256 != after.weights_sha256:
        raise WeightsError(
            f"the weights of {before.name} changed while they were loaded", hint="try again"
        )


def _of_name(settings: EncoderSettings | str) -> EncoderSettings:
    return EncoderSettings(encoder=settings) if isinstance(settings, str) else settings


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


def _module(name: str) -> Any:
    if name in _BUILT_IN:
        return importlib.import_module(_BUILT_IN[name])
    if name in _plugged_in():
        return _plugged_in()[name].load()
    if name in _SOUND:
        raise RecipeError(f"{name!r} is an encoder of sound: it belongs into [audio]")
    raise _unknown("encoder", name, [*list_encoders(), *list_sound_encoders()])


def _sound_module(name: str) -> Any:
    if name in _SOUND:
        return importlib.import_module(_SOUND[name])
    raise _unknown("encoder of sound", name, list_sound_encoders())


def _unknown(what: str, name: str, known: list[str]) -> RecipeError:
    return RecipeError(
        f"no {what} named {name!r}{nearest(name, known)}", hint="see: pipeline encoders list"
    )
