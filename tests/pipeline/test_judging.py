"""Which pictures of a clip are judged."""

import numpy as np

from pipeline.decoding import ClipFrames
from pipeline.judging import judge_clip
from schemas.resize import PictureSpec, ResizeSpec

SQUASHED = PictureSpec(width=32, height=32)
PADDED = PictureSpec(
    width=64,
    height=64,
    resize=ResizeSpec(library="pillow", fit="pad", background=(0, 0, 0)),
)


def clip(frames, *, num_frames=2, width=200, height=100):
    return ClipFrames(
        clip_index=0,
        num_frames=num_frames,
        start_seconds=0.0,
        end_seconds=2.0,
        times=np.zeros((4, 2)),
        frames=frames,
        preview=None,
        corrupt=False,
        shape={"display_width": width, "display_height": height},
    )


def test_the_largest_picture_counts():
    frames = {
        "small": np.zeros((4, 32, 32, 3), np.uint8),
        "large": np.full((4, 40, 40, 3), 255, np.uint8),
    }
    pictures = {"small": SQUASHED, "large": PictureSpec(width=40, height=40)}
    assert judge_clip(clip(frames), pictures=pictures, loudness=None).brightness == 1


def test_fill_does_not_count():
    frames = np.full((4, 32, 32, 3), 255, np.uint8)
    frames[2:] = 0
    quality = judge_clip(clip({"a": frames}), pictures={"a": SQUASHED}, loudness=-20.0)
    assert (quality.brightness, quality.static, quality.loudness) == (1, 1, -20)
    quality = judge_clip(clip({"a": frames}, num_frames=1), pictures={"a": SQUASHED}, loudness=None)
    assert quality.static is None


def test_padding_does_not_count():
    frames = np.zeros((4, 64, 64, 3), np.uint8)
    frames[:, 16:48] = 255  # twice as wide as high
    quality = judge_clip(clip({"a": frames}), pictures={"a": PADDED}, loudness=None)
    assert (quality.brightness, quality.black) == (1, 0)
    upright = np.ascontiguousarray(frames.swapaxes(1, 2))
    shown = clip({"a": upright}, width=100, height=200)
    assert judge_clip(shown, pictures={"a": PADDED}, loudness=None).black == 0


def test_a_line_is_left_of_the_thinnest_picture():
    frames = np.full((4, 64, 64, 3), 255, np.uint8)
    quality = judge_clip(
        clip({"a": frames}, width=10_000, height=1), pictures={"a": PADDED}, loudness=None
    )
    assert quality.brightness == 1
