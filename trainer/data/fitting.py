"""Fit a long video into a row: fewer of its clips, evenly spread, each whole and at its true time.

Apollo's rule for long videos. In training and when a model is asked it is this function.
"""

from __future__ import annotations

from collections.abc import Callable

from trainer.data.rendering import Rendered
from trainer.data.video_view import VideoView


def fit_view(
    view: VideoView, *, render: Callable[[VideoView], Rendered], capacity: int
) -> tuple[VideoView, Rendered] | None:
    """The view with as many of its clips as `capacity` tokens hold; None: not even one fits."""
    whole, rendered = view, render(view)
    num_clips = len(view)
    per_clip = max(1, -(-len(rendered) // max(1, num_clips)))
    while len(rendered) > capacity:
        num_clips -= max(1, (len(rendered) - capacity) // per_clip)
        if num_clips <= 0:
            return None
        view = whole.spread(num_clips)
        rendered = render(view)
    return view, rendered
