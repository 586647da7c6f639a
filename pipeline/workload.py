"""Workload: what ShardSpecs amount to in frames, seconds, bytes and work; told from probes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from encoders import EncoderSpec
from encoders.sound import SoundSpec
from pipeline.packing import END_OF_TAR
from pipeline.settling import Content, piece_content, probe_content
from schemas.card import DecodingRates
from schemas.plan import Piece, ShardSpec
from schemas.recipe import SamplingSpec
from schemas.timeline import Grid
from schemas.video import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """What a piece is of its video."""

    frames: int
    """Sampled, without fill."""
    seconds: float
    share: float
    """Of the whole video's seconds; in [0, 1]."""
    probe: Probe | None
    """None: the cache has lost it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is to be done."""

    videos: int
    seconds: float
    """Of video."""
    frames: int
    """Sampled, without fill."""
    clips: int
    shards: int
    bytes: int
    decode_seconds: float
    """Of one core."""
    chunks: int
    """Of sound, that are encoded."""


def sum_up(
    specs: Sequence[ShardSpec],
    *,
    probes: Iterable[Probe],
    sampling: SamplingSpec,
    clip_bytes: int,
    encoders: Sequence[EncoderSpec],
    sound: SoundSpec | None,
    rates: DecodingRates,
) -> Workload:
    """What the pieces of ShardSpecs are together; each video's own facts are in its probe."""
    by_content: dict[Content, Probe] = {}
    for probe in probes:
        if probe.reject is None:
            by_content.setdefault(probe_content(probe), probe)
    pieces = [piece for spec in specs for piece in spec.pieces]
    portions = [portion_of(piece, by_content, sampling=sampling) for piece in pieces]
    num_clips = sum(piece.num_clips for piece in pieces)
    chunks = 0
    if sound is not None:
        heard = (
            one.seconds for one, piece in zip(portions, pieces, strict=True) if piece.has_audio
        )
        chunks = sum(math.ceil(seconds / sound.num_windows) for seconds in heard)
    return Workload(
        videos=len({piece.video_id for piece in pieces}),
        seconds=sum(one.seconds for one in portions),
        frames=sum(one.frames for one in portions),
        clips=num_clips,
        shards=len(specs),
        bytes=num_clips * clip_bytes + len(specs) * len(END_OF_TAR),
        decode_seconds=sum(decode_seconds(one, encoders=encoders, rates=rates) for one in portions),
        chunks=chunks,
    )


def portion_of(piece: Piece, probes: Mapping[Content, Probe], *, sampling: SamplingSpec) -> Portion:
    """How many frames and seconds a piece has: exact where the container's times are true."""
    T = sampling.frames_per_clip
    probe = probes.get(piece_content(piece))
    if probe is None:
        frames = piece.num_clips * T
        return Portion(frames=frames, seconds=frames / sampling.fps, share=1.0, probe=None)
    grid = Grid.of(
        first_seconds=probe.first_seconds,
        fps=sampling.fps,
        start_seconds=piece.start_seconds,
        end_seconds=piece.end_seconds,
    )
    first, stop = piece.first_clip * T, (piece.first_clip + piece.num_clips) * T
    start_seconds, end_seconds = grid.time(first), grid.time(stop)
    if piece.is_last:
        stop = min(stop, grid.num_samples(probe.last_seconds))
        end_seconds = probe.first_seconds + probe.duration_seconds
        if piece.end_seconds is not None:
            end_seconds = min(end_seconds, piece.end_seconds)
    seconds = max(0.0, end_seconds - start_seconds)
    return Portion(
        frames=max(0, stop - first),
        seconds=seconds,
        share=min(1.0, seconds / probe.duration_seconds) if probe.duration_seconds else 1.0,
        probe=probe,
    )


def decode_seconds(
    portion: Portion, *, encoders: Sequence[EncoderSpec], rates: DecodingRates
) -> float:
    """Of one core: the frames that have to be decoded, then resizing those that are sampled.

    Streams that take the same picture share it.
    """
    probe = portion.probe
    if probe is None:
        return 0.0
    pixels = probe.width * probe.height
    packets = probe.num_packets * portion.share
    decoded = min(packets, max(packets * rates.decoded_part, portion.frames))
    pictures = {(spec.width, spec.height, spec.resize) for spec in encoders}
    num_own = sum(resize.library != "libswscale" for _, _, resize in pictures)
    resizing = num_own * rates.resize_seconds_per_pixel
    resizing += rates.full_picture_seconds_per_pixel if num_own else 0.0
    return pixels * (decoded / rates.pixels_per_second + portion.frames * resizing)
