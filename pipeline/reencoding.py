"""Encode some clips of a cache again, from their sources, and compare with what is stored."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from encoders import Runtime
from pipeline.cache import FeatureCache
from pipeline.decoding import ClipFrames, Decoding, Order, StartAgain
from pipeline.encoding import StreamEncoders, as_stamped, load_encoders
from pipeline.feature_errors import FeatureErrors, Features, StreamDifference
from pipeline.fetching import Fetcher
from pipeline.hearing_ahead import ClipSound, HearAhead
from pipeline.jail import DecoderProcess
from pipeline.prefetching import first_order
from pipeline.probing import read_probes
from pipeline.video_sources import newest_pieces
from schemas.compact import pool_by_area
from schemas.errors import VideoError
from schemas.plan import Piece
from schemas.recipe import AUDIO

LEAST_COSINE = 0.999
"""Of a clip's features as stored with those encoded again; less is a finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reencoding:
    """What came of encoding clips again."""

    num_clips: int
    not_encoded: dict[str, int]
    """Why -> how many clips could not be encoded again, such as `not_found`."""
    streams: tuple[StreamDifference, ...]
    findings: tuple[tuple[str, str, str], ...]
    """(kind, key, detail) as of `verifying.Finding`."""


def reencode_sample(
    cache: FeatureCache,
    *,
    num_clips: int,
    runtime: Runtime | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Reencoding:
    """Encode `num_clips` clips of as many videos as possible again; the same ones each time.

    `progress` is called with 1 after each. WeightsError, DeviceError: the encoders cannot be run.
    FingerprintMismatch: the weights are others than the cache's.
    """
    stamps = cache.info.stamps
    recipe = as_stamped(cache.recipe, stamps)
    encoders = load_encoders(recipe, stamps=stamps, runtime=runtime or Runtime())
    keys = _choose(cache, num_clips)
    pieces = newest_pieces(cache, read_probes(cache.layout), video_ids=cache.videos)
    not_encoded: Counter[str] = Counter()
    findings: list[tuple[str, str, str]] = []
    names = [*cache.streams, *([] if encoders.sound is None else [AUDIO])]
    sums = {name: FeatureErrors(stamps[name]["dim"]) for name in names}
    with contextlib.ExitStack() as stack:
        limits = cache.recipe.limits
        programs = cache.recipe.decode.backend == "ffmpeg"
        process = stack.enter_context(DecoderProcess(limits, allow_programs=programs))
        files = stack.enter_context(Fetcher())
        hearing: HearAhead | None = None
        if encoders.sound is not None:
            hearer = stack.enter_context(DecoderProcess(limits))
            hearing = stack.enter_context(
                HearAhead(encoders.sound, recipe=cache.recipe, process=hearer, files=files)
            )
        for key in keys:
            sample = cache[key]
            try:
                piece = replace(
                    pieces[sample.info["video_id"]],
                    first_clip=sample.info["clip_index"],
                    num_clips=1,
                    is_last=False,
                )
                files.hold(piece)
                try:
                    clip = _decode(piece, cache, encoders, process, path=files.path(piece))
                    sound = None if hearing is None else _hear(piece, clip, hearing)
                finally:
                    files.release(piece)
            except VideoError as error:
                not_encoded[error.reason] += 1
                continue
            if not np.array_equal(clip.times, sample.times):
                findings.append(("times", key, "decoded again, its frames have other times"))
            pairs = [
                (name, sample.decode(name), features_THWD)
                for name, features_THWD in _features(clip, cache, encoders)
            ]
            if sound is not None and sample.audio is not None and sample.audio_mask is not None:
                if not np.array_equal(sound.mask, sample.audio_mask):
                    findings.append(("features", key, f"{AUDIO}: heard in other windows"))
                pairs.append((AUDIO, sample.audio.astype(np.float32), sound.tokens))
            for name, stored, fresh in pairs:
                cosine = sums[name].add(stored, fresh)
                if not cosine >= LEAST_COSINE:
                    detail = f"{name}: cosine {cosine:.4f} with what is encoded again"
                    findings.append(("features", key, detail))
            progress(1)
    num_encoded = len(keys) - not_encoded.total()
    return Reencoding(
        num_clips=num_encoded,
        not_encoded=dict(not_encoded),
        streams=tuple(one.difference(name) for name, one in sums.items()) if num_encoded else (),
        findings=tuple(findings),
    )


def _choose(cache: FeatureCache, num_clips: int) -> list[str]:
    # One clip of each video in a shuffled order, then a second one, until there are enough.
    chance = random.Random(cache.fingerprint)
    videos = [chance.sample(keys, len(keys)) for keys in cache.videos.values()]
    chance.shuffle(videos)
    chosen: list[str] = []
    for turn in range(max(map(len, videos), default=0)):
        chosen += [keys[turn] for keys in videos if turn < len(keys)]
        if len(chosen) >= num_clips:
            break
    return chosen[:num_clips]


def _decode(
    piece: Piece,
    cache: FeatureCache,
    encoders: StreamEncoders,
    process: DecoderProcess,
    *,
    path: str,
) -> ClipFrames:
    order: Order = first_order(piece, cache.recipe)
    while True:
        decoding = Decoding(
            piece,
            path=path,
            recipe=cache.recipe,
            pictures=encoders.pictures,
            processes=[process],
            order=order,
        )
        try:
            for clip in decoding.clips():
                if isinstance(clip, ClipFrames):
                    return clip
            raise VideoError("no_frames", "no such clip any more")
        except StartAgain as again:
            order = again.order
        finally:
            decoding.close()


def _hear(piece: Piece, clip: ClipFrames, hearing: HearAhead) -> ClipSound:
    hearing.announce(piece, piece, clip)
    try:
        return hearing.take(piece, clip)
    finally:
        hearing.forget(piece)


def _features(
    clip: ClipFrames, cache: FeatureCache, encoders: StreamEncoders
) -> Iterator[tuple[str, Features]]:
    for name, features_BTHWD in encoders.features([clip]):
        grid = cache.recipe.streams[name].grid
        features_THWD = features_BTHWD[0]
        if grid:
            features_THWD = pool_by_area(features_THWD, grid=(grid[0], grid[1]))
        yield name, features_THWD
