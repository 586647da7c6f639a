"""Decode one file by every backend and compare: times, pictures, seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from pipeline.decoding import ClipFrames, DecodeOutcome, Decoding, Order, StartAgain
from pipeline.fetching import local_file
from pipeline.jail import DecoderProcess
from pipeline.planning import cut_pieces
from pipeline.probing import probe_source
from pipeline.signing import learn
from pipeline.source_files import size_and_time, to_uri
from schemas.errors import VideoError
from schemas.recipe import Recipe
from schemas.resize import PictureSpec
from schemas.video import Probe, Source

WAYS: tuple[tuple[str, Order], ...] = (
    ("pyav, all frames", "all"),
    ("pyav, selected", "selected"),
    ("ffmpeg", "ffmpeg"),
    ("decord", "decord"),
)
"""The first is what the others are compared with."""
SIZE = (224, 224)
_STREAM = "picture"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeComparison:
    """One way of decoding beside the first one."""

    way: str
    problem: str
    """Why it gave nothing; empty where it did."""
    num_samples: int = 0
    num_frames_decoded: int = 0
    seconds: float = 0.0
    """Wall time, the start of the process and of the program left out for PyAV and decord."""
    num_other_times: int = 0
    """Samples whose frame is displayed at another time, or that only one of the two has."""
    mean_difference: float = 0.0
    """Of pictures of the same sample at `SIZE`, in levels of 255."""
    max_difference: int = 0


def compare_backends(
    source: Source, *, fps: float, max_samples: int
) -> tuple[Probe, list[DecodeComparison]]:
    """What a file's first samples are by each way of decoding. VideoError: it cannot be probed."""
    recipe = Recipe.load(
        "tiny",
        overrides=[
            f"sampling.fps={fps}",
            "sampling.frames_per_clip=1",
            "preview.enabled=false",
            f"shards.target_bytes={max_samples}",
        ],
    )
    with (
        DecoderProcess(recipe.limits, allow_programs=True) as process,
        local_file(
            learn(source.uri), num_bytes=size_and_time(learn(source.uri))[0], scratch=None
        ) as path,
    ):
        here = replace(source, uri=to_uri(str(path)))
        probe = probe_source(here, limits=recipe.limits, process=process)
        if probe.reject is not None:
            raise VideoError(probe.reject.reason, probe.reject.detail)
        piece = cut_pieces(probe, recipe, shard_clips=max_samples, clip_bytes=1)[0]
        results: list[DecodeComparison] = []
        reference: list[ClipFrames] = []

        def decode(order: Order) -> tuple[list[ClipFrames], DecodeOutcome]:
            decoding = Decoding(
                piece,
                path=str(path),
                recipe=recipe,
                pictures={_STREAM: PictureSpec(width=SIZE[0], height=SIZE[1])},
                processes=[process],
                order=order,
            )
            *clips, outcome = decoding.clips()
            assert isinstance(outcome, DecodeOutcome)
            return [clip for clip in clips if isinstance(clip, ClipFrames)], outcome

        for way, order in WAYS:
            began = time.monotonic()
            try:
                try:
                    found, outcome = decode(order)
                except StartAgain as again:
                    if order != "all":
                        raise
                    found, outcome = decode(again.order)  # all, and sorted
            except (VideoError, StartAgain) as error:
                why = error.why if isinstance(error, StartAgain) else str(error)
                results.append(DecodeComparison(way=way, problem=why))
                continue
            if order == "all":
                reference = found
            problem = "" if found else "no frame can be decoded"
            if found and not reference:
                problem = f"there is nothing to compare its {len(found)} samples with"
            if problem:
                results.append(DecodeComparison(way=way, problem=problem))
                continue
            seconds = time.monotonic() - began
            results.append(_compare(way, found, outcome, reference, seconds=seconds))
    return probe, results


def _compare(
    way: str,
    found: list[ClipFrames],
    outcome: DecodeOutcome,
    reference: list[ClipFrames],
    *,
    seconds: float,
) -> DecodeComparison:
    others = {clip.clip_index: clip for clip in reference}
    pairs = [(clip, others[clip.clip_index]) for clip in found if clip.clip_index in others]
    same_times = sum(bool(np.allclose(a.times, b.times, atol=2e-6, rtol=0)) for a, b in pairs)
    differences = [np.abs(a.frames[_STREAM].astype(np.int16) - b.frames[_STREAM]) for a, b in pairs]
    return DecodeComparison(
        way=way,
        problem="",
        num_samples=len(found),
        num_frames_decoded=outcome.num_frames_decoded,
        seconds=seconds,
        num_other_times=max(len(found), len(reference)) - same_times,
        mean_difference=float(np.mean([d.mean() for d in differences])) if pairs else 0.0,
        max_difference=max((int(d.max()) for d in differences), default=0),
    )
