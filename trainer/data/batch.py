"""Batch: one pack as tensors. A pack is a row of several items, back to back, without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(kw_only=True, slots=True)
class Batch:
    """What `VideoLM.forward` takes. L tokens, C clips of F frames, K tokens a clip, S targets."""

    input_ids_L: Tensor
    """(L,) int64; at slots, where video and sound go, any id."""
    position_ids_L: Tensor
    """(L,) int64: from 0 in each item. What tells items of a pack apart."""
    predict_S: Tensor
    """(S,) int64: positions whose next token is supervised."""
    targets_S: Tensor
    """(S,) int64: that token."""
    features: dict[str, Tensor]
    """Stream -> (C, F, H, W, D) float16 or int8 as cached, in the recipe's order; an encoder with a
    temporal stride has fewer than F, and then all of the sample's."""
    scales: dict[str, Tensor]
    """Stream -> (C, F, D) float32 of int8 streams: what 1 stands for."""
    frame_mask_CF: Tensor
    """(C, F) bool: False where there is no frame."""
    frame_seconds_CF: Tensor
    """(C, F) float32: begin of a frame since the begin of its clip."""
    frames_taken_CF: Tensor
    """(C, F) int64: which of the sample's frames each is; for streams with a temporal stride."""
    clip_slots_CK: Tensor
    """(C, K) int64: positions of each clip's tokens."""
    clip_span_C2: Tensor
    """(C, 2) int64: positions [first, stop) of all that belongs to a clip: text, video, sound."""
    clip_item_C: Tensor
    """(C,) int64: which item of the pack a clip belongs to."""
    clip_place_C: Tensor
    """(C,) float32: middle of the clip in its video, in [0, 1]."""
    audio_CAD: Tensor | None = None
    """(C, A, D) float16: A tokens of sound a clip."""
    audio_mask_CA: Tensor | None = None
    """(C, A) bool: False where there was nothing to hear, or where it was taken away."""
    audio_slots_CA: Tensor | None = None
    """(C, A) int64"""
    head_positions_R: Tensor | None = None
    """(R,) int64: last token before the answer, of items whose answer is a span."""
    head_targets_R2: Tensor | None = None
    """(R, 2) float32: its start and end, over the duration of what is seen, in [0, 1]."""
    item_ids: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids_L)

    @property
    def num_targets(self) -> int:
        return len(self.targets_S)

    def to(self, device: torch.device | str) -> Batch:
        """On another device; from pinned memory without waiting."""
        moved = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                value = value.to(device, non_blocking=True)
            elif isinstance(value, dict) and name in ("features", "scales"):
                value = {key: one.to(device, non_blocking=True) for key, one in value.items()}
            moved[name] = value
        return Batch(**moved)
