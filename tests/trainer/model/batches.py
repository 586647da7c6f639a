"""Batches of random features, for tests of what comes after the cache."""

from __future__ import annotations

import torch

from trainer.data.batch import Batch
from trainer.data.cache_shape import AudioShape, CacheShape, StreamShape

TWO_STREAMS = CacheShape(
    fps=2.0,
    frames_per_clip=4,
    streams={
        "motion": StreamShape(num_grids=2, height=2, width=2, dim=4, dtype="int8"),
        "still": StreamShape(num_grids=4, height=3, width=3, dim=6, dtype="float16"),
    },
    audio=AudioShape(windows=2, tokens=1, dim=5),
)
"""One of a temporal stride, on the smaller grid and as int8, and one that has the larger grid."""


def random_batch(
    shape: CacheShape,
    *,
    num_clips: int,
    frames_per_clip: int = 4,
    tokens_per_clip: int = 1,
    seed: int = 0,
) -> Batch:
    """All frames exist and follow each other; the row of tokens is nothing but the clips."""
    draw = torch.Generator().manual_seed(seed)
    C, F, K = num_clips, frames_per_clip, tokens_per_clip
    features, scales = {}, {}
    for name, stream in shape.streams.items():
        strided = stream.num_grids != shape.frames_per_clip
        size = (C, stream.num_grids if strided else F, stream.height, stream.width, stream.dim)
        if stream.dtype == "int8":
            features[name] = torch.randint(-127, 128, size, generator=draw, dtype=torch.int8)
            scale = 0.005 + 0.01 * torch.rand(C, 1, stream.dim, generator=draw)
            scales[name] = scale.expand(C, F, stream.dim).contiguous()
        else:
            features[name] = torch.randn(size, generator=draw).half()
    slots = torch.arange(C * K).view(C, K)
    audio = {}
    if shape.audio is not None:
        A = shape.audio.windows * shape.audio.tokens
        audio = {
            "audio_CAD": torch.randn(C, A, shape.audio.dim, generator=draw).half(),
            "audio_mask_CA": torch.ones(C, A, dtype=torch.bool),
        }
    return Batch(
        input_ids_L=torch.zeros(C * K, dtype=torch.int64),
        position_ids_L=torch.arange(C * K),
        predict_S=torch.zeros(0, dtype=torch.int64),
        targets_S=torch.zeros(0, dtype=torch.int64),
        features=features,
        scales=scales,
        frame_mask_CF=torch.ones(C, F, dtype=torch.bool),
        frame_seconds_CF=(torch.arange(F) / shape.fps).expand(C, F).contiguous(),
        frames_taken_CF=torch.arange(F).expand(C, F),
        clip_slots_CK=slots,
        clip_span_C2=torch.stack([slots[:, 0], slots[:, -1] + 1], dim=1),
        clip_item_C=torch.zeros(C, dtype=torch.int64),
        clip_place_C=(torch.arange(C) + 0.5) / max(C, 1),
        **audio,
    )
