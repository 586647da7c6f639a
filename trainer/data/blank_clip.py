"""A blank clip: what a connector is given for a row without any, so that it has a part in all."""

from __future__ import annotations

import dataclasses

import torch

from trainer.data.batch import Batch
from trainer.data.cache_shape import CacheShape


def with_blank_clip(batch: Batch, *, shape: CacheShape, frames_per_clip: int) -> Batch:
    """A batch that has no clip, with one of zeros that has no frame and nothing to hear.

    `frames_per_clip` is the view's. The clip's slots are the row's first token, so what becomes of
    it is not to be put there.
    """
    device, F = batch.input_ids_L.device, frames_per_clip
    features, scales = {}, {}
    for name, one in shape.streams.items():
        T = F if one.num_grids == shape.frames_per_clip else one.num_grids
        size = (1, T, one.height, one.width, one.dim)
        features[name] = torch.zeros(size, dtype=getattr(torch, one.dtype), device=device)
        if one.dtype == "int8":
            scales[name] = torch.zeros(1, T, one.dim, device=device)
    blank = dataclasses.replace(
        batch,
        features=features,
        scales=scales,
        frame_mask_CF=torch.zeros(1, F, dtype=torch.bool, device=device),
        frame_seconds_CF=torch.zeros(1, F, device=device),
        frames_taken_CF=torch.zeros(1, F, dtype=torch.int64, device=device),
        clip_slots_CK=torch.zeros(1, 1, dtype=torch.int64, device=device),
        clip_span_C2=torch.zeros(1, 2, dtype=torch.int64, device=device),
        clip_item_C=torch.zeros(1, dtype=torch.int64, device=device),
        clip_place_C=torch.zeros(1, device=device),
    )
    if batch.audio_CAD is not None:
        A, D = batch.audio_CAD.shape[1:]
        blank.audio_CAD = batch.audio_CAD.new_zeros(1, A, D)
        blank.audio_mask_CA = torch.zeros(1, A, dtype=torch.bool, device=device)
    return blank
