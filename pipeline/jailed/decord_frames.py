"""decord as a backend (optional extra). Runs inside the decoder process only.

It counts frames by itself, and wrongly where an edit list hides some; it starts every clock at
zero; in MPEG-TS it hangs or takes other frames; where it seeks, it may come to another frame. So
it is not let seek, its count and its times are compared with the packets', and containers in which
it is known to fail are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame

from pipeline.jailed.backends import WantedFrames, check_times
from pipeline.jailed.scheduling import NotSelectable

_CONTAINERS = ("mov", "matroska")


def read_frames(path: str, wanted: WantedFrames, *, alive: Callable[[], None]) -> Iterator[Any]:
    """See `backends.Backend`."""
    if not wanted.container.startswith(_CONTAINERS):
        raise NotSelectable(f"decord is not trusted with {wanted.container}")
    if not wanted.is_only_stream:
        raise NotSelectable("decord chooses among video streams by itself")
    try:
        import decord
    except ImportError as error:
        raise NotSelectable("decord is not installed") from error
    try:
        reader = decord.VideoReader(path, num_threads=1)
        spans = np.asarray(reader.get_frame_timestamp(range(len(reader))))
    except (decord.DECORDError, UnicodeEncodeError) as error:
        raise NotSelectable("decord does not open the file") from error
    starts = spans[:, 0].astype(np.float64) if len(spans) else np.zeros(0)
    relative = wanted.seconds - wanted.seconds[0]
    check_times(starts - starts[:1], relative, what="decord")
    position = 0
    for rank in wanted.ranks.tolist():
        try:
            # One by one: get_batch and skip_frames may come to another frame.
            while position <= rank:
                alive()
                picture = reader.next()
                position += 1
        except (decord.DECORDError, StopIteration) as error:
            raise NotSelectable("decord does not decode a frame") from error
        yield VideoFrame.from_ndarray(_without_padding(picture.asnumpy()), format="rgb24")


def _without_padding(picture_HWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    # Of narrow videos decord takes the padding of a row for more channels; how long rows are
    # depends on the processor.
    height, width, num_channels = picture_HWC.shape
    if num_channels == 3:
        return picture_HWC
    rows = picture_HWC.reshape(height, width * num_channels)[:, : width * 3]
    return np.ascontiguousarray(rows).reshape(height, width, 3)
