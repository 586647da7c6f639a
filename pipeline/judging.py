"""Judge the quality of clips by the pictures that their encoders are given: no further decoding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from PIL import Image

from pipeline.decoding import ClipFrames
from schemas.quality import Quality, judge
from schemas.resize import PictureSpec


def judge_clip(
    clip: ClipFrames, *, pictures: Mapping[str, PictureSpec], loudness: float | None
) -> Quality:
    """The quality of a clip; `pictures` is stream -> what it takes."""
    name = max(pictures, key=lambda name: pictures[name].num_bytes)  # the first of the largest
    frames_THWC = clip.frames[name][: clip.num_frames]
    if pictures[name].resize.fit == "pad":
        frames_THWC = _without_padding(frames_THWC, shape=clip.shape)
    return judge(to_luma(frames_THWC), loudness=loudness)


def to_luma(frames_THWC: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """(T, H, W) of RGB: .299 R + .587 G + .114 B (ITU-R BT.601), as Pillow computes it."""
    return np.stack([np.asarray(Image.fromarray(frame).convert("L")) for frame in frames_THWC])


def _without_padding(
    frames_THWC: npt.NDArray[np.uint8], *, shape: Mapping[str, int]
) -> npt.NDArray[np.uint8]:
    # The longer side fills the square; pixels in which both meet are left out.
    width, height = shape["display_width"], shape["display_height"]
    longer = max(width, height)
    rows = _middle(frames_THWC.shape[1], part=height / longer)
    columns = _middle(frames_THWC.shape[2], part=width / longer)
    return frames_THWC[:, rows, columns]


def _middle(size: int, *, part: float) -> slice:
    margin = min(int(np.ceil(size * (1 - part) / 2)), (size - 1) // 2)
    return slice(margin, size - margin)
