"""A step from cached features, beside the same step with the encoder in it: what a cache is for.

In the loop the frames are there already, decoded and resized, and the product's own encoders make
features of them in every step; both ways give the same features and losses to the last bit. One
encoder of a published architecture with random weights, and a language model that is about as small
beside it as Apollo-3B is beside its encoders. What sizes that no CPU runs would show is estimated
by the FLOP of the models.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Spent, Timing, measure_in_turn, temporary_folder
from benchmarks.train_cache import CLIP_SECONDS, publish_samples
from benchmarks.train_encoding import (
    CLIPS_PER_VIDEO,
    FRAMES,
    STREAM,
    EncodingReader,
    make_clips,
    make_samples,
)
from benchmarks.train_feeding import clip_reader
from benchmarks.train_flops import (
    APOLLO,
    APOLLO_ENCODERS,
    LearnerSize,
    encode_flops,
    step_flops,
)
from benchmarks.train_runs import LmSize, config_of, run_of, train_until, write_lm, write_questions
from pipeline.cache import FeatureCache, open_cache
from pipeline.encoding import StreamEncoders
from pipeline.layout import CacheLayout
from schemas.recipe import Recipe
from trainer.data.buffers import Buffers

CACHED, IN_LOOP = "cached features", "encoder in the loop"
MOST_CACHED = 1.05
"""Times the step in the loop less its encoding."""
TEXT_TOKENS, NUM_CLIPS = 500, 15
"""Of the item that the estimate is for: 30 s at 2 fps, a question and an answer."""
TOKENS_PER_FRAME = (32, 16, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class InLoopScope:
    """How much is measured."""

    encoder: str
    settings: dict[str, Any]
    lm: LmSize
    tokens: tuple[tuple[float, int], ...]
    """(tokens a frame, tokens of a pack), which holds one video."""
    num_videos: int
    steps: int
    """Of a run; one video each."""


FULL = InLoopScope(
    encoder="internvideo2-s14",
    settings={"weights": "random"},
    lm=LmSize(width=512, num_layers=12, mlp_width=1536, num_heads=8),
    tokens=((32.0, 680), (8.0, 296)),
    num_videos=2,
    steps=2,
)
TINY = InLoopScope(
    encoder="random-video",
    settings={},
    lm=LmSize(width=32, num_layers=1, mlp_width=64, num_heads=2, vocabulary=300),
    tokens=((4.0, 300),),
    num_videos=2,
    steps=2,
)


def measure_in_loop(
    scope: InLoopScope, *, rounds: int, folder: Path | None, is_reliable: Callable[[], bool]
) -> dict[str, Any]:
    """Rows of both ways, the ratio of each number of tokens, and the estimates."""
    stream = {"encoder": scope.encoder} | scope.settings
    recipe = Recipe.from_mapping(
        {
            "name": "bench",
            "sampling": {"fps": FRAMES / CLIP_SECONDS, "frames_per_clip": FRAMES},
            "streams": {STREAM: stream},
            "preview": {"enabled": False},
        }
    )
    encoders = StreamEncoders(recipe)
    clips = make_clips(encoders, num_clips=scope.num_videos * CLIPS_PER_VIDEO)
    rows: list[dict[str, Any]] = []
    with temporary_folder(folder) as place:
        num_parameters = write_lm(place / "lm", scope.lm)
        layout = CacheLayout(place / "cache")
        publish_samples(
            layout,
            [range(len(clips))],
            samples=make_samples(encoders, clips),
            recipe=recipe,
            stamps=encoders.stamps,
        )
        with open_cache(layout.root) as cache:
            reader = EncodingReader(encoders, clips)
            _check(cache, reader)
            for tokens_per_frame, tokens_per_pack in scope.tokens:
                compare = functools.partial(
                    _compare, scope, cache, place, reader=reader, rounds=rounds
                )
                rows.append(compare(tokens_per_frame, tokens_per_pack))
    is_wall_good = is_reliable()
    for row in rows:
        row["wall_ratio"] = row["wall_ratio"] if is_wall_good else None
    return {
        "encoder": scope.encoder,
        "lm_parameters": num_parameters,
        "rows": rows,
        "estimates": _estimates(),
    }


def show_in_loop(report: dict[str, Any]) -> None:
    millions = report["lm_parameters"] / 1e6
    title = f"{report['encoder']} and an LM of {millions:.0f} M"
    print(f"{title:52}{'CPU s a step':>30}{'in loop / cached':>18}{'encoder':>9}{'by FLOP':>9}")
    print(f"{'':52}{'cached':>10}{'in loop':>10}{'encoder':>10}{'CPU':>9}{'wall':>9}{'share':>9}")
    for row in report["rows"]:
        wall = "-" if row["wall_ratio"] is None else f"{row['wall_ratio']:.2f}"
        flops = "-" if row["flop_ratio"] is None else f"{row['flop_ratio']:.2f}"
        print(
            f"{row['tokens_per_frame']:>4g} tokens a frame{'':34}"
            f"{row['cached_cpu_seconds']:9.2f}{row['in_loop_cpu_seconds']:10.2f}"
            f"{row['encode_cpu_seconds']:10.2f}{row['cpu_ratio']:9.2f}{wall:>9}"
            f"{row['encoder_share']:9.0%}{flops:>9}"
        )
    for row in report["rows"]:
        print(
            f"{row['verdict']}: {row['tokens_per_frame']:g} tokens a frame: cached <="
            f" {MOST_CACHED:g} x (in loop - encoder) by CPU: {row['over_floor']:.3f}"
        )
    print(
        f"by FLOP of the models, {'tokens a frame:':28}"
        + "".join(f"{t:8}" for t in TOKENS_PER_FRAME)
    )
    for name, ratios in report["estimates"].items():
        print(f"  {name:49}" + "".join(f"{ratio:7.1f}x" for ratio in ratios))


def _check(cache: FeatureCache, reader: EncodingReader) -> None:
    """The same features, to the last bit."""
    rows_CF = np.repeat(np.arange(len(cache))[:, None], FRAMES, axis=1)
    frames_CF = np.broadcast_to(np.arange(FRAMES), rows_CF.shape)
    cached = clip_reader(cache).read(rows_CF, frames_CF, into=Buffers())
    encoded = reader.read(rows_CF, frames_CF, into=Buffers())
    assert torch.equal(
        cached.features[STREAM].view(torch.int16), encoded.features[STREAM].view(torch.int16)
    )
    assert torch.equal(cached.frame_times, encoded.frame_times)


def _compare(
    scope: InLoopScope,
    cache: FeatureCache,
    place: Path,
    tokens_per_frame: float,
    tokens_per_pack: int,
    *,
    reader: EncodingReader,
    rounds: int,
) -> dict[str, Any]:
    questions = write_questions(
        place / "q.jsonl", num_videos=scope.num_videos, num_rows=scope.num_videos
    )
    config = config_of(
        place / "run",
        lm=str(place / "lm"),
        questions=questions,
        steps=scope.steps,
        batch={"tokens_per_pack": tokens_per_pack, "packs": 1, "readers": 0},
        connector={"tokens_per_frame": tokens_per_frame, "depth": 1, "heads": 4},
    )
    losses: set[tuple[float, ...]] = set()
    encoding = Timing()

    def train(chosen: EncodingReader | None) -> Spent:
        before = reader.cpu_seconds
        spent, log = train_until(run_of(config, cache, reader=chosen), scope.steps)
        losses.add(tuple(line["loss"] for line in log))
        if chosen is not None:
            encoding.add((reader.cpu_seconds - before, sum(line["wait_seconds"] for line in log)))
        return spent

    timings = measure_in_turn(
        {CACHED: lambda: train(None), IN_LOOP: lambda: train(reader)}, rounds=rounds
    )
    assert len(losses) == 1, f"other losses: {losses}"
    encode_cpu = statistics.median(encoding.cpu[1:]) / scope.steps
    cached, in_loop = (
        {by: getattr(timings[way], by) for by in ("cpu", "wall")} for way in (CACHED, IN_LOOP)
    )
    cpu = {
        way: statistics.median(of["cpu"]) / scope.steps
        for way, of in ((CACHED, cached), (IN_LOOP, in_loop))
    }
    over_floor = cpu[CACHED] / (cpu[IN_LOOP] - encode_cpu)
    return {
        "tokens_per_frame": tokens_per_frame,
        "clips_per_step": CLIPS_PER_VIDEO,
        "cached_cpu_seconds": cpu[CACHED],
        "in_loop_cpu_seconds": cpu[IN_LOOP],
        "encode_cpu_seconds": encode_cpu,
        "cpu_ratio": cpu[IN_LOOP] / cpu[CACHED],
        "wall_ratio": statistics.median(in_loop["wall"]) / statistics.median(cached["wall"]),
        "encoder_share": encode_cpu / cpu[IN_LOOP],
        "over_floor": over_floor,
        "verdict": "met" if over_floor <= MOST_CACHED else "missed",
        "flop_ratio": _flop_ratio(scope, cache, tokens_per_frame, tokens_per_pack),
        "rounds": {way: asdict(timing) for way, timing in timings.items()},
        "encoding": asdict(encoding),
    }


def _flop_ratio(
    scope: InLoopScope, cache: FeatureCache, tokens_per_frame: float, tokens_per_pack: int
) -> float | None:
    """What the estimate says of the pair that is measured; None: of an encoder it does not know."""
    try:
        encoding = encode_flops((scope.encoder,), num_clips=CLIPS_PER_VIDEO)
    except KeyError:
        return None
    stamp, lm = cache.info.stamps[STREAM], scope.lm
    size = LearnerSize(
        # Logits are made of the few tokens that are supervised, so embeddings cost nothing.
        num_parameters=lm.num_layers * (3 * lm.width**2 + 3 * lm.width * lm.mlp_width),
        num_layers=lm.num_layers,
        width=lm.width,
        feature_dim=stamp["dim"],
        features_per_clip=FRAMES * stamp["grid"][0] * stamp["grid"][1],
        attention_width=lm.width,
    )
    tokens_per_clip = round(FRAMES * tokens_per_frame)
    step = step_flops(
        size,
        num_clips=CLIPS_PER_VIDEO,
        tokens_per_clip=tokens_per_clip,
        num_text=tokens_per_pack - CLIPS_PER_VIDEO * tokens_per_clip,
    )
    return (step + encoding) / step


def _estimates() -> dict[str, list[float]]:
    encoding = encode_flops(APOLLO_ENCODERS, num_clips=NUM_CLIPS)
    found = {}
    for name, size in APOLLO.items():
        steps = [
            step_flops(
                size, num_clips=NUM_CLIPS, tokens_per_clip=FRAMES * tokens, num_text=TEXT_TOKENS
            )
            for tokens in TOKENS_PER_FRAME
        ]
        found[name] = [(step + encoding) / step for step in steps]
    return found
