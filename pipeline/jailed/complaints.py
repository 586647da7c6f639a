"""Complaints: what libav said was wrong while it read one video. Runs in the decoder process only.

PyAV keeps the last message of level "error"; the name before it is that of a codec or format, and
no address, so that the same file always gives the same text.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import av
import av.logging

from schemas.errors import VideoError

MAX_LENGTH = 200
ABOUT_CONTENT = (
    "unreadable",
    "not_a_video",
    "refused_format",
    "no_video_stream",
    "unsupported_codec",
    "no_frames",
    "out_of_memory",
)
"""Reasons that libav's own words explain."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{9,}")
_PICTURE_SIZE = re.compile(r"Picture size (\d+)x(\d+)")
_refused_sizes: list[tuple[int, int]] = []
"""Of pictures, while the video was opened; libav keeps its last words for the whole process too."""


class Complaints:
    """About the video at `path`, from now on."""

    def __init__(self, path: str) -> None:
        av.logging.set_level(av.logging.FATAL)  # quiet; errors are counted all the same
        # PyAV would hold a repeated message back and give it out while the next video is read.
        av.logging.set_skip_repeated(False)
        _refused_sizes.clear()
        self._path = path
        self._before = num_complaints()

    def last(self) -> str:
        """The last one in one line, such as "h264: no frame!", or nothing."""
        count, record = av.logging.get_last_error()
        if record is None or count == self._before:
            return ""
        _, name, message = record
        words = " ".join(f"{name.partition(',')[0]}: {message}".split())
        words = _ADDRESS.sub("0x?", words.replace(self._path, "FILE"))
        return "".join(one if one.isprintable() else "?" for one in words)[:MAX_LENGTH]

    def explain(self, error: VideoError) -> str:
        """The error's detail, and what libav said where it is not in there."""
        said = self.last()
        if error.reason not in ABOUT_CONTENT or said.partition(": ")[2] in error.detail:
            return error.detail
        return f"{error.detail}; {said}" if error.detail else said


@contextlib.contextmanager
def hear_refused_sizes() -> Iterator[None]:
    """While a video is opened: of many complaints, those about the size of a picture."""
    av.logging.set_level(av.logging.ERROR)
    try:
        with av.logging.Capture() as records:
            yield
    finally:
        av.logging.set_level(av.logging.FATAL)
    for _, _, message in records:
        if size := _PICTURE_SIZE.search(message):
            _refused_sizes.append((int(size[1]), int(size[2])))


def check_refused_sizes(*, max_pixels: int) -> None:
    """VideoError: too_many_pixels, where a decoder refused to make such a picture."""
    for width, height in _refused_sizes:
        if width * height > max_pixels:
            detail = f"{width} x {height} is more than {max_pixels} pixels"
            raise VideoError("too_many_pixels", detail)


def num_complaints() -> int:
    """Of the whole process, so far."""
    return int(av.logging.get_last_error()[0])
