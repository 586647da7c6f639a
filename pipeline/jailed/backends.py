"""Other decoders behind one small interface. Runs inside the decoder process only.

The decoder of record is PyAV (`selecting`, `frames`). A backend here is told which frames are
wanted, from the packets' times, and has to show that it means the same frames: its own count and
times are compared first. Where they differ it raises NotSelectable, and PyAV decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.jailed.scheduling import NotSelectable

TIME_TOLERANCE_SECONDS = 2e-3
"""Containers and libraries round times to whole milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedFrames:
    """What is asked of a backend."""

    container: str
    """Name of the demuxer."""
    stream_index: int
    is_only_stream: bool
    """Whether the file has no other video stream."""
    seconds: npt.NDArray[np.float64]
    """(N,) times of all frames that are shown, increasing."""
    ranks: npt.NDArray[np.int64]
    """(M,) which of them are wanted, increasing."""
    max_pixels: int


class Backend(Protocol):
    """Gives the wanted frames of a video."""

    def __call__(
        self, path: str, wanted: WantedFrames, *, alive: Callable[[], None]
    ) -> Iterator[Any]:
        """One `av.VideoFrame` for each rank, in order: RGB, upright. NotSelectable, VideoError."""
        ...


def check_times(
    found: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64], *, what: str
) -> None:
    """NotSelectable: `found` seconds are not those wanted."""
    if found.shape != wanted.shape:
        raise NotSelectable(f"{what} has {len(found)} frames where the packets have {len(wanted)}")
    if len(wanted) and float(np.abs(found - wanted).max()) > TIME_TOLERANCE_SECONDS:
        raise NotSelectable(f"{what} has other times than the packets")
