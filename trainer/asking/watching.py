"""Watch a video file: encode it as the model's caches were, by the functions of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from encoders import Runtime
from encoders.devices import prepare_cpu
from pipeline.cache import FeatureCache
from pipeline.encoding import as_stamped, load_encoders, with_weights
from pipeline.encoding_video import encode_video, find_video
from pipeline.pool import num_cores
from schemas.recipe import Recipe
from trainer.data.annotation import Span
from trainer.preprocessing import Preprocessing


def encode_for(
    preprocessing: Preprocessing,
    where: str,
    *,
    folder: Path,
    span: Span | None = None,
    weights: Sequence[str] = (),
    device: str = "cpu",
) -> FeatureCache:
    """A cache of one video, a path or a URL, in `folder`, with all that a span's view looks at.

    `weights` are as of `with_weights`. UsageError: the video cannot be used. WeightsError,
    DeviceError. FingerprintMismatch: the weights are others than the model was trained with.
    """
    source = find_video(where)
    stamps = preprocessing.stamps
    recipe = with_weights(Recipe.from_mapping(preprocessing.recipe), weights)
    recipe = as_stamped(recipe, stamps)
    if device == "cpu":
        prepare_cpu(num_cores())
    encoders = load_encoders(recipe, stamps=stamps, runtime=Runtime(device=device))
    return encode_video(
        source,
        recipe=recipe,
        stamps=stamps,
        encoders=encoders,
        folder=folder,
        span=None if span is None else _widen(span, preprocessing),
    )


def _widen(span: Span, preprocessing: Preprocessing) -> Span:
    # A clip of the view is whole, and may have frames of several clips of the cache.
    view, shape = preprocessing.view, preprocessing.shape
    seconds = shape.frames_per_clip / shape.fps
    seconds += preprocessing.frames_per_clip / (view.fps or shape.fps)
    return span[0] - seconds, span[1] + seconds
