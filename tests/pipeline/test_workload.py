"""What pieces of videos amount to, from probes alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoders import encoder_spec, sound_spec
from pipeline.planning import extend_plan
from pipeline.settling import probe_content
from pipeline.workload import decode_seconds, portion_of, sum_up
from schemas.card import read_cards
from schemas.recipe import Recipe, ShardLimits
from schemas.timeline import Grid
from schemas.video import Probe, Source

TINY = Recipe.load("tiny")
RATES = read_cards().decoding
SEEN = [encoder_spec(stream.encoder) for stream in TINY.streams.values()]


def make_probe(
    video_id: str = "a",
    *,
    first: float = 0.0,
    num_frames: int = 250,
    fps: float = 25.0,
    start: float | None = None,
    end: float | None = None,
    **fields: Any,
) -> Probe:
    return Probe(
        source=Source(uri=f"/videos/{video_id}.mp4", start_seconds=start, end_seconds=end),
        video_id=video_id,
        content_sha256=video_id.encode().hex().ljust(64, "0"),
        width=640,
        height=360,
        num_packets=num_frames,
        first_seconds=first,
        last_seconds=first + (num_frames - 1) / fps,
        duration_seconds=num_frames / fps,
        **fields,
    )


def plan(probes: list[Probe], *, shard_clips: int = 3) -> list[Any]:
    limits = ShardLimits(target_bytes=shard_clips * 100, max_seconds=1e6)
    from dataclasses import replace

    return extend_plan(
        probes,
        recipe=replace(TINY, shards=limits),
        recipe_fingerprint="",
        clip_bytes=100,
        existing=[],
    )


@given(
    num_frames=st.integers(1, 900),
    fps=st.sampled_from([1.0, 12.5, 25.0, 30000 / 1001]),
    first=st.sampled_from([-1.5, 0.0, 10.0]),
    span=st.one_of(st.none(), st.tuples(st.floats(0, 8), st.floats(8.5, 40))),
)
def test_the_pieces_of_a_video_are_the_whole_of_it(num_frames, fps, first, span):
    start, end = (None, None) if span is None else (first + span[0], first + span[1])
    probe = make_probe(first=first, num_frames=num_frames, fps=fps, start=start, end=end)
    grid = Grid.of(first_seconds=first, fps=TINY.sampling.fps, start_seconds=start, end_seconds=end)
    frames = grid.num_samples(probe.last_seconds)
    pieces = [piece for spec in plan([probe]) for piece in spec.pieces]
    portions = [
        portion_of(piece, {probe_content(probe): probe}, sampling=TINY.sampling) for piece in pieces
    ]
    assert sum(one.frames for one in portions) == frames
    stop = first + probe.duration_seconds
    if frames:
        seen = min(stop, end or stop) - max(first, start or first)
        assert sum(one.seconds for one in portions) == pytest.approx(seen, abs=1e-6)
        assert sum(one.share for one in portions) == pytest.approx(
            seen / probe.duration_seconds, abs=1e-6
        )


def test_a_sum_over_shards():
    probes = [make_probe("a"), make_probe("b", num_frames=60, has_audio=True)]
    specs = plan(probes)
    work = sum_up(
        specs,
        probes=probes,
        sampling=TINY.sampling,
        clip_bytes=1000,
        encoders=SEEN,
        sound=sound_spec("log-mel"),
        rates=RATES,
    )
    assert (work.videos, work.shards, work.clips) == (2, len(specs), 5 + 2)
    assert work.frames == 20 + 5
    assert work.seconds == pytest.approx(10 + 2.4)
    assert work.bytes == 7 * 1000 + len(specs) * 1024
    assert work.chunks == 1  # of b, which alone is heard


def test_a_piece_whose_probe_is_lost_counts_its_clips_as_full():
    (spec,) = plan([make_probe(num_frames=60)])
    one = portion_of(spec.pieces[0], {}, sampling=TINY.sampling)
    assert (one.frames, one.seconds, one.probe) == (8, 4.0, None)
    assert decode_seconds(one, encoders=SEEN, rates=RATES) == 0.0


def test_decoding_grows_with_pixels_frames_and_ways_of_resizing():
    def seconds(encoder: str = "random-image", **fields: Any) -> float:
        probe = make_probe(**fields)
        pieces = [piece for spec in plan([probe], shard_clips=1000) for piece in spec.pieces]
        one = portion_of(pieces[0], {probe_content(probe): probe}, sampling=TINY.sampling)
        return decode_seconds(one, encoders=[encoder_spec(encoder)], rates=RATES)

    plain = seconds()
    assert plain == pytest.approx(250 * 640 * 360 * RATES.decoded_part / RATES.pixels_per_second)
    assert seconds(num_frames=500) == pytest.approx(2 * plain)
    own = seconds("siglip-b-16-224") - plain
    per_pixel = RATES.full_picture_seconds_per_pixel + RATES.resize_seconds_per_pixel
    assert own == pytest.approx(20 * 640 * 360 * per_pixel)
    # Of a video with few frames all are decoded.
    few = seconds(num_frames=10, fps=1.0)
    assert few == pytest.approx(10 * 640 * 360 / RATES.pixels_per_second)
