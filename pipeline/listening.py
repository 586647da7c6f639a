"""Decode the sound of a video in a decoder process: windows of one second on the video's clock."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeline.answers import Nonsense, flag, whole
from pipeline.jail import DecoderProcess
from pipeline.placing import SoundWindow
from schemas.errors import VideoError
from schemas.recipe import DecodeLimits


def decode_sound(
    path: str,
    *,
    origin_seconds: float,
    num_windows: int,
    rate: int,
    first_window: int = 0,
    in_order: bool = True,
    limits: DecodeLimits,
    process: DecoderProcess,
) -> Iterator[SoundWindow]:
    """`num_windows` windows of `rate` mono samples each, from `first_window` on.

    Window i covers [origin_seconds + i, origin_seconds + i + 1) on the source's clock; the origin
    of a video is its first frame's time. Without a track all windows are silence and not `heard`.
    `in_order=False` is for files whose times go back. docs/decisions/0008-sound.md.

    VideoError: the file cannot be read, timed_out, crashed.
    """
    request = {
        "kind": "sound",
        "path": path,
        "origin_seconds": origin_seconds,
        "num_windows": num_windows,
        "first_window": first_window,
        "rate": rate,
        "in_order": in_order,
        "max_pixels": limits.max_pixels,
    }
    duration = float(first_window + num_windows)
    expected = first_window
    for answer, payload in process.request(request, duration_seconds=duration):
        if answer["kind"] == "done":
            break
        try:
            if answer["kind"] != "sound" or whole(answer, "index") != expected:
                raise Nonsense("another window than expected")
            if len(payload) != rate * np.dtype(np.float32).itemsize:
                raise Nonsense("not as many samples as a window has")
            samples = np.frombuffer(payload, np.float32)
            if not (np.abs(samples) <= 1).all():
                raise Nonsense("not the samples of a window")
            yield SoundWindow(index=expected, samples=samples, heard=flag(answer, "heard"))
        except Nonsense as error:
            process.kill()
            raise VideoError("crashed", f"the decoder process sent nonsense: {error}") from error
        expected += 1
    if expected != first_window + num_windows:
        raise VideoError("crashed", "the decoder process sent too few windows of sound")
