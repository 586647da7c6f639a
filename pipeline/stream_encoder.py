"""One stream of a cache and its encoder: for a query that has to go the way its clips went."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from encoders import Runtime
from encoders.devices import choose_device
from encoders.text_space import Ending, knows_text, list_text_encoders, load_ending, load_text
from pipeline.cache import FeatureCache
from pipeline.clip_vectors import Vectors, mean_of_frames
from pipeline.encoding import as_stamped, load_encoders, stamp_streams, with_weights
from pipeline.encoding_video import encode_video
from pipeline.pooling import Pool, mean_of_grids
from pipeline.still_video import write_still
from schemas.errors import FingerprintMismatch, UsageError
from schemas.recipe import Recipe, differing_fields
from schemas.settings import nearest
from schemas.video import Source


def choose_stream(cache: FeatureCache, stream: str | None, *, text: bool) -> str:
    """The stream that is named, or the first; the first that knows text where `text` is asked for.

    UsageError: there is no such stream.
    """
    if stream is not None and stream not in cache.streams:
        raise UsageError(
            f"no stream {stream!r} in the cache{nearest(stream, cache.streams)}",
            hint=f"it has: {', '.join(cache.streams)}",
        )
    if not text:
        return stream or cache.streams[0]
    encoders = {name: cache.recipe.streams[name].encoder for name in cache.streams}
    know = [name for name in ([stream] if stream else cache.streams) if knows_text(encoders[name])]
    if not know:
        have = ", ".join(f"{name} ({encoder})" for name, encoder in encoders.items())
        families = sorted({name.partition("-")[0] for name in list_text_encoders()})
        raise UsageError(
            f"no sentence can be looked for in the features of {stream or have}: of the encoders"
            f" only those of {' and '.join(families)} know text",
            hint="ask by a clip or a picture: --like KEY, --image FILE",
        )
    return know[0]


def stream_recipe(
    cache: FeatureCache, stream: str, *, weights: Sequence[str] = (), device: str = "cpu"
) -> Recipe:
    """The cache's recipe with one stream and no sound, in the precision of its features.

    `weights` are as of `with_weights`. WeightsError: none are there. FingerprintMismatch: they are
    others than the cache was made with.
    """
    alone = replace(cache.recipe, streams={stream: cache.recipe.streams[stream]}, audio=None)
    recipe = as_stamped(with_weights(alone, weights), cache.info.stamps)
    stamps = stamp_streams(recipe, device=device)
    fields = differing_fields(dict(cache.info.stamps[stream]), stamps[stream])
    if fields:
        raise FingerprintMismatch(
            f"the encoder of {stream} is not that of the cache: {'; '.join(fields)}",
            hint=f"give the weights that it was made with: --weights {stream}=FILE",
        )
    return recipe


def ending_of(recipe: Recipe, *, device: str) -> Ending:
    """Of the one stream of a recipe. WeightsError, DeviceError."""
    (settings,) = recipe.streams.values()
    return load_ending(settings, runtime=Runtime(device=device))


def encode_picture(
    path: Path, cache: FeatureCache, *, recipe: Recipe, device: str, text: bool
) -> Vectors:
    """(D,) float32: the vector of a clip that shows a picture all the time, before centring.

    `recipe` is of one stream. UsageError: no picture. WeightsError, DeviceError.
    """
    stamps = {name: cache.info.stamps[name] for name in recipe.streams}
    (stream,) = recipe.streams
    pool: Pool = ending_of(recipe, device=device).finish if text else mean_of_grids
    with tempfile.TemporaryDirectory(prefix="reelcache-picture-") as folder:
        still = Path(folder) / "picture.apng"
        write_still(path, still, max_pixels=recipe.limits.max_pixels)
        encoders = load_encoders(recipe, stamps=stamps, runtime=Runtime(device=device))
        source = Source(uri=str(still))
        with encode_video(
            source, recipe=recipe, stamps=stamps, encoders=encoders, folder=Path(folder) / "cache"
        ) as made:
            sample = made[made.keys()[0]]
            # As they are kept of clips, in float16.
            vectors_GD = pool(sample.decode(stream)).astype(np.float16)
    T = recipe.sampling.frames_per_clip
    vector_D: Vectors = mean_of_frames(vectors_GD[None], np.array([sample.mask.sum()]), T=T)[0]
    return vector_D


def encode_text(
    text: str, *, recipe: Recipe, tokenizer: Path | None = None, device: str = "cpu"
) -> Vectors:
    """(D,) float32 of length 1: where the text tower of a recipe's one stream puts a sentence.

    Errors as of `text_space.load_text`.
    """
    (settings,) = recipe.streams.values()
    tower = load_text(settings, tokenizer=tokenizer, runtime=Runtime(device=device))
    vector_D: Vectors = tower.encode([text])[0]
    return vector_D


def lazy_pool(cache: FeatureCache, stream: str, *, weights: Sequence[str], device: str) -> Pool:
    """What puts frames into the text space; the weights are looked for when they are needed.

    Then the errors of `stream_recipe` and `ending_of`.
    """

    @functools.cache
    def ending() -> Ending:
        chosen = choose_device(device)
        recipe = stream_recipe(cache, stream, weights=weights, device=chosen)
        return ending_of(recipe, device=chosen)

    return lambda features_GHWD: ending().finish(features_GHWD)
