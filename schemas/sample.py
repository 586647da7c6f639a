"""Sample: one cached clip, to and from the members of a tar. The one place that knows the members.

Features are (T, H, W, D), or fewer grids of an encoder with a temporal stride; `time` is (T, 2)
float64 seconds; `mask` is (T,) bool. Members are npy version 1.0, JSON and JPEG: nothing that has
to be unpickled.
"""

from __future__ import annotations

import ast
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.compact import decode_features
from schemas.errors import CacheDamaged
from schemas.json_text import parse_json

NPY_MAGIC = b"\x93NUMPY\x01\x00"
MemberData = bytes | memoryview
SCALE_MEMBER = "_scale.npy"
"""After a stream's name."""
AUDIO_MEMBER, AUDIO_MASK_MEMBER = "audio.npy", "audio_mask.npy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One clip as it is cached."""

    key: str
    features: dict[str, npt.NDArray[Any]]
    """Stream -> (T, H, W, D), in the recipe's order."""
    times: npt.NDArray[np.float64]
    """(T, 2): [start, end) seconds of display of each frame, on the source's clock."""
    mask: npt.NDArray[np.bool_]
    """(T,): False for frames that repeat the last one to fill the clip."""
    info: dict[str, Any]
    """video_id, clip_index, start_seconds, end_seconds, fps, source size, rotation, ..."""
    preview: bytes | None = None
    """JPEG strip of the frames."""
    scales: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """Stream -> (D,) of those whose features are int8."""
    audio: npt.NDArray[Any] | None = None
    """(windows, tokens, D) of sound, one second a window; None where the recipe has none."""
    audio_mask: npt.NDArray[np.bool_] | None = None
    """(windows,): False for silence in the place of what is not there."""

    def __post_init__(self) -> None:
        if self.mask.ndim != 1 or self.mask.dtype != np.bool_:
            raise ValueError(
                f"{self.key}: mask is {self.mask.shape} {self.mask.dtype}, not (T,) bool"
            )
        num_frames = len(self.mask)
        if self.times.shape != (num_frames, 2) or self.times.dtype != np.float64:
            raise ValueError(f"{self.key}: {self.times.shape = } must be ({num_frames}, 2) float64")
        for name, array in self.features.items():
            if array.ndim != 4:
                raise ValueError(f"{self.key}: {name} has {array.shape = }, expected (T, H, W, D)")
            scale = self.scales.get(name)
            if (array.dtype == np.int8) != (scale is not None):
                raise ValueError(f"{self.key}: {name} is {array.dtype}, scale: {scale is not None}")
            if scale is not None and (scale.shape != array.shape[3:] or scale.dtype != np.float32):
                raise ValueError(f"{self.key}: {name} has the wrong {scale.shape = } {scale.dtype}")
        if (self.audio is None) != (self.audio_mask is None):
            raise ValueError(f"{self.key}: audio and its mask come together")
        if self.audio is not None and self.audio_mask is not None:
            windows = (len(self.audio),)
            if self.audio.ndim != 3 or self.audio_mask.shape != windows:
                raise ValueError(f"{self.key}: {self.audio.shape = }, {self.audio_mask.shape = }")

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{name} {array.shape} {array.dtype}" for name, array in self.features.items()
        )
        start, end = self.info.get("start_seconds"), self.info.get("end_seconds")
        return f"Sample({self.key!r}, [{start}, {end}) s, {shapes})"

    def decode(self, stream: str) -> npt.NDArray[np.float32]:
        """The features of a stream, (T, H, W, D) float32, however they are stored."""
        return decode_features(self.features[stream], self.scales.get(stream))

    def to_members(self) -> list[tuple[str, list[MemberData]]]:
        """(member name without the key, its bytes in pieces), in the order of the tar.

        The pieces alias the arrays: no copy is made.
        """
        members: dict[str, list[MemberData]] = {
            f"{name}.npy": encode_npy(array) for name, array in self.features.items()
        }
        for name, scale in self.scales.items():
            members[f"{name}{SCALE_MEMBER}"] = encode_npy(scale)
        if self.audio is not None and self.audio_mask is not None:
            members[AUDIO_MEMBER] = encode_npy(self.audio)
            members[AUDIO_MASK_MEMBER] = encode_npy(self.audio_mask)
        members["time.npy"] = encode_npy(self.times)
        members["mask.npy"] = encode_npy(self.mask)
        members["json"] = [encode_json(self.info)]
        if self.preview is not None:
            members["preview.jpg"] = [self.preview]
        return sorted(members.items())

    @classmethod
    def from_members(
        cls, key: str, members: Mapping[str, MemberData], *, streams: tuple[str, ...]
    ) -> Sample:
        """The inverse of `to_members`; arrays alias the given bytes. CacheDamaged: not as written.

        Members that no sample has are left alone.
        """
        try:
            info = parse_json(bytes(members["json"]))
            if not isinstance(info, dict):
                raise ValueError("its json is not an object")
            preview = members.get("preview.jpg")
            has_audio = AUDIO_MEMBER in members
            return cls(
                key=key,
                features={name: decode_npy(members[f"{name}.npy"]) for name in streams},
                times=decode_npy(members["time.npy"]),
                mask=decode_npy(members["mask.npy"]),
                info=info,
                preview=None if preview is None else bytes(preview),
                scales={
                    name: decode_npy(members[f"{name}{SCALE_MEMBER}"])
                    for name in streams
                    if f"{name}{SCALE_MEMBER}" in members
                },
                audio=decode_npy(members[AUDIO_MEMBER]) if has_audio else None,
                audio_mask=decode_npy(members[AUDIO_MASK_MEMBER]) if has_audio else None,
            )
        except KeyError as error:
            raise CacheDamaged(f"{key}: member {error.args[0]!r} is missing") from error
        except ValueError as error:
            raise CacheDamaged(f"{key}: {error}") from error


def encode_json(value: Mapping[str, Any]) -> bytes:
    """One line of UTF-8 with sorted keys and a newline: the same bytes for the same content."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def encode_npy(array: npt.NDArray[Any]) -> list[MemberData]:
    """[header, data] of an npy file; the data aliases the array where it is contiguous.

    Format: version 1.0 of numpy's NEP 1. ValueError: a dtype that plain npy cannot hold.
    """
    if array.dtype.hasobject or array.dtype.kind == "V":
        raise ValueError(f"{array.dtype = } cannot be stored as plain npy")
    array = np.asarray(array, order="C")
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    data = array.data.cast("B") if array.size else b""
    return [_npy_header(array.dtype.str, array.shape), data]


@functools.lru_cache(maxsize=256)
def _npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    unpadded = len(NPY_MAGIC) + 2 + len(text) + 1
    text += " " * (-unpadded % 64) + "\n"
    return NPY_MAGIC + len(text).to_bytes(2, "little") + text.encode("latin1")


def decode_npy(data: MemberData) -> npt.NDArray[Any]:
    """The array in an npy file of format 1.0, aliasing `data`. ValueError: not such a file."""
    view = memoryview(data).cast("B")
    if bytes(view[: len(NPY_MAGIC)]) != NPY_MAGIC:
        raise ValueError("not an npy file of version 1.0")
    start = len(NPY_MAGIC) + 2
    stop = start + int.from_bytes(view[start - 2 : start], "little")
    dtype, shape = _parse_npy_header(bytes(view[start:stop]))
    count = math.prod(shape)
    if len(view) - stop != count * dtype.itemsize:
        raise ValueError(f"npy holds {len(view) - stop} bytes of data for {shape} {dtype}")
    return np.frombuffer(view, dtype=dtype, count=count, offset=stop).reshape(shape)


@functools.lru_cache(maxsize=256)
def _parse_npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    try:
        fields = ast.literal_eval(header.decode("latin1"))
        dtype, shape = np.dtype(fields["descr"]), fields["shape"]
        plain = all(isinstance(size, int) and size >= 0 for size in shape)
        fortran_order = fields["fortran_order"]
    except (SyntaxError, ValueError, LookupError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"damaged npy header: {error}") from error
    # Kind V: bfloat16 reads back as pairs of bytes that nobody can tell from others.
    strange = dtype.hasobject or dtype.kind == "V"
    if fortran_order is not False or strange or not isinstance(shape, tuple) or not plain:
        raise ValueError("npy must be C-contiguous and of a plain dtype")
    return dtype, shape
