"""Recipe: what the bytes of a cache are; and its fingerprint.

A recipe says nothing about where or how it runs. `shards` and `limits` are part of the file, since
they belong to the data, but not of the fingerprint: they never change a sample's bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from schemas.errors import RecipeError
from schemas.settings import nearest, read_settings, set_field, to_mapping

FORMAT_VERSION = 1
MIN_MEMORY_BYTES = 512 * 1024 * 1024
"""Of address space; with less no decoder process starts."""
MAX_STREAM_NAME = 16
"""Characters; a member's name has to fit into the 100 of a tar header, with the longest key."""
STREAM_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
MAX_PREVIEW_ASPECT = 4.0
"""Width over height of a frame in the preview."""
AUDIO = "audio"
"""Name of the sound's member, and of its stamp."""
RESERVED_NAMES = frozenset({"time", "mask", "preview", "json", AUDIO})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSpec:
    """Which frames are taken: the frame displayed at first + k / fps."""

    fps: float
    """Samples a second of video; > 0."""
    frames_per_clip: int
    """Frames that are encoded together; >= 1."""
    policy: Literal["displayed"] = "displayed"

    def __post_init__(self) -> None:
        _check_positive("sampling.fps", self.fps)
        if self.frames_per_clip < 1:
            raise RecipeError(f"sampling.frames_per_clip = {self.frames_per_clip} must be >= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpec:
    """How a frame becomes pixels; docs/decisions/0004-pixels.md."""

    backend: Literal["pyav", "ffmpeg", "decord"] = "pyav"
    """Which decoder is tried first; PyAV takes over where another one's times are wrong."""
    pixels: Literal["displayed"] = "displayed"
    """The treatment of colour, fields, alpha and rotation: as a viewer sees it, in 8-bit sRGB.

    Another treatment gets another name, here and in 0004."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSettings:
    """An encoder and the choices that it leaves; what they amount to is in its stamp."""

    encoder: str
    """A name of `pipeline encoders list`."""
    weights: str = ""
    """Where they are: a file, a folder, `hub` (download them) or `random` (seeded, for trials).
    Not part of the fingerprint, which has their sha256."""
    layer: int | None = None
    """Whose output is taken, counted from the end: -1 is the last block. None: the encoder's own
    choice."""
    gelu: Literal["", "tanh", "exact"] = ""
    """Empty: as the library runs it whose file the weights are. Libraries differ on SigLIP."""
    resize: Literal["", "own", "fast", "apollo"] = ""
    """own: as the weights' own preprocessing, to the bit. fast: one pass of libswscale. apollo:
    padded to a square, as Apollo does. Empty: own where the encoder has one."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on a GPU, float32 on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec(EncoderSettings):
    """One member of every sample: an encoder and how its features are stored."""

    grid: tuple[int, ...] = ()
    """(H, W) cells that are stored: averaged by area where fewer than the encoder's own, which is
    what empty means."""
    dtype: Literal["float16", "int8"] = "float16"
    """int8: with a scale a channel, in a member of its own."""

    def __post_init__(self) -> None:
        if self.grid and (len(self.grid) != 2 or min(self.grid) < 1):
            raise RecipeError(f"grid = {list(self.grid)} must be two numbers >= 1, as in [8, 8]")


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSpec(EncoderSettings):
    """The sound of every sample, in windows of one second."""

    tokens_per_window: int = 5
    """The encoder's tokens of a window are averaged to so many."""
    dtype: Literal["float16"] = "float16"

    def __post_init__(self) -> None:
        if self.tokens_per_window < 1:
            raise RecipeError(f"audio.tokens_per_window = {self.tokens_per_window} must be >= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewSpec:
    """A small strip of the clip's frames, for people."""

    enabled: bool = True
    height: int = 64
    """Pixels; the width follows the video's shape, at most 4:1."""

    def __post_init__(self) -> None:
        if not 8 <= self.height <= 512:
            raise RecipeError(f"preview.height = {self.height} must be in [8, 512]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLimits:
    """When a shard is full; not in the fingerprint."""

    target_bytes: int = 512 * 1024 * 1024
    max_seconds: float = 1800.0
    """Seconds of video at which a shard takes no further one: the unit of parallel work and of
    what a kill can cost. A longer video has a shard of its own."""

    def __post_init__(self) -> None:
        if self.target_bytes < 1:
            raise RecipeError(f"shards.target_bytes = {self.target_bytes} must be >= 1")
        _check_positive("shards.max_seconds", self.max_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """What one video may cost before it is rejected; not in the fingerprint."""

    stall_seconds: float = 60.0
    """Longest wait for the next sign of progress."""
    base_seconds: float = 120.0
    """Time for one video: base_seconds + factor x its duration."""
    factor: float = 20.0
    memory_bytes: int = 4 * 1024**3
    max_pixels: int = 8192 * 8192
    max_duration_seconds: float = 24 * 3600.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name != "factor":
                _check_positive(f"limits.{name}", getattr(self, name))
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise RecipeError(
                f"limits.memory_bytes = {self.memory_bytes} must be >= {MIN_MEMORY_BYTES}"
            )
        if not (self.factor >= 0 and math.isfinite(self.factor)):
            raise RecipeError(f"limits.factor = {self.factor} must be >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What the bytes of a cache are; `Recipe.load("tiny")` or a path to a TOML file."""

    name: str
    sampling: SamplingSpec
    streams: dict[str, StreamSpec]
    """Member name -> encoder, in the order in which the trainer takes them."""
    description: str = ""
    audio: AudioSpec | None = None
    """None: no sound."""
    decode: DecodeSpec = field(default_factory=DecodeSpec)
    preview: PreviewSpec = field(default_factory=PreviewSpec)
    shards: ShardLimits = field(default_factory=ShardLimits)
    limits: DecodeLimits = field(default_factory=DecodeLimits)

    def __post_init__(self) -> None:
        if not self.streams:
            raise RecipeError("streams: at least one is needed, as in [streams.image]")
        for name in self.streams:
            plain = 0 < len(name) <= MAX_STREAM_NAME and set(name) <= STREAM_NAME_CHARS
            if not plain or name in RESERVED_NAMES:
                raise RecipeError(
                    f"streams.{name}: a stream's name must be 1 to {MAX_STREAM_NAME} of a-z and 0-9"
                    f" and none of {', '.join(sorted(RESERVED_NAMES))}"
                )

    @classmethod
    def load(cls, name_or_path: str, *, overrides: Iterable[str] = ()) -> Recipe:
        """Read a shipped recipe by name or a TOML file by path, with "field=value" overrides.

        RecipeError: no such recipe, not TOML, an unknown field or a value out of range.
        """
        return cls.from_mapping(_read_toml(name_or_path), overrides=overrides)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], *, overrides: Iterable[str] = ()) -> Recipe:
        """The inverse of `to_mapping`, with "field=value" overrides. RecipeError as of `load`."""
        for assignment in overrides:
            mapping = set_field(mapping, assignment)
        return read_settings(cls, mapping)

    def to_mapping(self) -> dict[str, Any]:
        """All fields, defaults included, as JSON-ready values."""
        return to_mapping(self)

    def settings(self) -> dict[str, EncoderSettings]:
        """Stream -> its encoder, and the encoder of sound under the name of its member."""
        settings: dict[str, EncoderSettings] = {**self.streams}
        return settings if self.audio is None else settings | {AUDIO: self.audio}

    def with_settings(self, settings: Mapping[str, EncoderSettings]) -> Recipe:
        """The recipe with other settings, as of `settings()`."""
        streams = {name: one for name, one in settings.items() if isinstance(one, StreamSpec)}
        audio = settings.get(AUDIO)
        return replace(self, streams=streams, audio=audio if isinstance(audio, AudioSpec) else None)

    def identity(self, stamps: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """What the fingerprint is taken over; `stamps` is the encoders' own, by stream.

        Streams are a list, so that their order counts. Defaults are dropped, so that a new
        optional field keeps old fingerprints: an existing default may never change its meaning.
        The treatment of pixels is always named, so that its default can become another one.
        """
        identity = {
            "format": FORMAT_VERSION,
            "sampling": to_mapping(self.sampling, drop_defaults=True),
            "decode": to_mapping(self.decode, drop_defaults=True) | {"pixels": self.decode.pixels},
            "preview": to_mapping(self.preview, drop_defaults=True),
            "streams": [
                {"name": name, **_stored_as(stream), "stamp": dict(stamps[name])}
                for name, stream in self.streams.items()
            ],
        }
        if self.audio is not None:
            identity["audio"] = _stored_as(self.audio) | {"stamp": dict(stamps[AUDIO])}
        return identity

    def fingerprint(self, stamps: Mapping[str, Mapping[str, Any]]) -> str:
        """sha256 of the canonical JSON of `identity`; 64 hex digits."""
        return hashlib.sha256(canonical_json(self.identity(stamps)).encode()).hexdigest()


def _stored_as(settings: EncoderSettings) -> dict[str, Any]:
    # What the encoder makes of its settings is in its stamp.
    chosen = {field.name for field in fields(EncoderSettings)} - {"encoder"}
    stored = to_mapping(settings, drop_defaults=True).items()
    return {name: value for name, value in stored if name not in chosen}


def _check_positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise RecipeError(f"{name} = {value} must be > 0")


def canonical_json(value: Any) -> str:
    """Sorted keys, no spaces, shortest float representation, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def differing_fields(old: Any, new: Any, *, path: str = "") -> list[str]:
    """The leaves at which two identities differ, as "sampling.fps: 2.0 -> 1.0"."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines: list[str] = []
        for key in sorted(old.keys() | new.keys()):
            where = f"{path}.{key}" if path else str(key)
            lines += differing_fields(old.get(key), new.get(key), path=where)
        return lines
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [
            line
            for i, (a, b) in pairs
            for line in differing_fields(a, b, path=f"{path}[{_item_name(a, b) or i}]")
        ]
    if old == new:
        return []
    show = ["default" if value is None else json.dumps(value) for value in (old, new)]
    return [f"{path}: {show[0]} -> {show[1]}"]


def _item_name(old: Any, new: Any) -> str:
    # Streams are told by their names, not by their places.
    names = [item.get("name") if isinstance(item, dict) else None for item in (old, new)]
    return names[0] if names[0] == names[1] and isinstance(names[0], str) else ""


def list_recipes() -> list[str]:
    """Names of the shipped recipes."""
    folder = resources.files("schemas") / "recipes"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def _read_toml(name_or_path: str) -> dict[str, Any]:
    if "/" not in name_or_path and not name_or_path.endswith(".toml"):
        if name_or_path not in list_recipes():
            raise RecipeError(
                f"no recipe named {name_or_path!r}{nearest(name_or_path, list_recipes())}",
                hint="see: pipeline recipes list; or give the path of a TOML file",
            )
        text = (resources.files("schemas") / "recipes" / f"{name_or_path}.toml").read_text()
    else:
        try:
            text = Path(name_or_path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise RecipeError(f"recipe {name_or_path}: cannot be read: {reason}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"recipe {name_or_path}: not valid TOML: {error}") from error
