"""Decode one piece of a video in the decoder process: clips of pixels, and how it went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.jail import DecoderProcess
from schemas.errors import VideoError
from schemas.plan import Piece
from schemas.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFrames:
    """The pixels of one clip."""

    clip_index: int
    num_frames: int
    """Frames that are not fill."""
    start_seconds: float
    end_seconds: float
    times: npt.NDArray[np.float64]
    """(T, 2) seconds of display."""
    frames: dict[str, npt.NDArray[np.uint8]]
    """Stream -> (T, H, W, 3)."""
    preview: npt.NDArray[np.uint8] | None
    """(T, H, W, 3), small."""
    corrupt: bool
    """Decoding met damage since the clip before."""
    shape: dict[str, int]
    """Fields of `pixels.Shape`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOutcome:
    """How decoding a piece went; the last thing that `decode_clips` gives."""

    num_frames_decoded: int
    num_decode_errors: int
    corrupt: bool


class StartAgain(Exception):
    """The frames' times go back: what was given so far is void, decode with `in_order=False`."""


def decode_clips(
    piece: Piece,
    *,
    path: str,
    recipe: Recipe,
    sizes: Mapping[str, tuple[int, int]],
    process: DecoderProcess,
    in_order: bool = True,
) -> Iterator[ClipFrames | DecodeOutcome]:
    """The clips of a piece in order, then one DecodeOutcome.

    `sizes` is stream -> (width, height). VideoError: the video cannot be decoded, and what was
    given so far may not be complete. StartAgain: see there.
    """
    n = recipe.sampling.frames_per_clip
    request = {
        "kind": "decode",
        "path": path,
        "max_pixels": recipe.limits.max_pixels,
        "max_duration_seconds": recipe.limits.max_duration_seconds,
        "window": {
            "fps": recipe.sampling.fps,
            "start_seconds": piece.start_seconds,
            "end_seconds": piece.end_seconds,
            "first_k": piece.first_clip * n,
            "stop_k": None if piece.is_last else (piece.first_clip + piece.num_clips) * n,
        },
        "frames_per_clip": n,
        "sizes": {name: list(size) for name, size in sizes.items()},
        "preview_height": recipe.preview.height if recipe.preview.enabled else None,
        "in_order": in_order,
    }
    for answer, payload in process.request(request, duration_seconds=piece.duration_seconds):
        if answer["kind"] == "times_go_back":
            raise StartAgain
        if answer["kind"] == "clip":
            yield _read_clip(answer, payload, num_pictures=n)
        else:
            yield DecodeOutcome(
                num_frames_decoded=answer["num_frames_decoded"],
                num_decode_errors=answer["num_decode_errors"],
                corrupt=answer["corrupt"],
            )


def _read_clip(answer: dict[str, Any], payload: bytearray, *, num_pictures: int) -> ClipFrames:
    arrays: dict[str, npt.NDArray[np.uint8]] = {}
    offset = 0
    for name, shape in answer["shapes"].items():
        full = (num_pictures, *shape)
        size = int(np.prod(full))
        if offset + size > len(payload):
            raise VideoError("crashed", "the decoder process sent too few pixels")
        arrays[name] = np.frombuffer(payload, np.uint8, count=size, offset=offset).reshape(full)
        offset += size
    return ClipFrames(
        clip_index=answer["clip_index"],
        num_frames=answer["num_frames"],
        start_seconds=answer["start_seconds"],
        end_seconds=answer["end_seconds"],
        times=np.array(answer["times"], dtype=np.float64),
        preview=arrays.pop("", None),
        frames=arrays,
        corrupt=answer["corrupt"],
        shape=answer["shape"],
    )
