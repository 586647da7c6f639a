"""Put a pack together: rendered items and the features of their clips become one Batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainer.data.annotation import Span
from trainer.data.batch import Batch
from trainer.data.clip_reader import CachedClips
from trainer.data.rendering import Rendered
from trainer.data.video_view import VideoView

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowItem:
    """One item of a row."""

    id: str
    rendered: Rendered
    view: VideoView | None
    """None: text only."""
    answer_span: Span | None = None
    """The true answer, for the time head."""

    @property
    def shown(self) -> VideoView | None:
        """The clips that have slots, in the order of the slots."""
        return None if self.view is None else self.view.take(self.rendered.clips_C)


def frames_of(items: Sequence[RowItem], *, frames_per_clip: int) -> tuple[Numbers, Numbers]:
    """(rows, frames), each (C, F): where the frames of all clips of a row are in the cache."""
    views = [view for item in items if (view := item.shown) is not None]
    if not views:
        nothing = np.zeros((0, frames_per_clip), dtype=np.int64)
        return nothing, nothing
    rows = np.concatenate([view.rows for view in views])
    return rows, np.concatenate([view.frames for view in views])


def make_batch(
    items: Sequence[RowItem],
    clips: CachedClips,
    *,
    frames_CF: Numbers,
    sound_off: Sequence[bool] = (),
) -> Batch:
    """One row. `clips` and `frames_CF` are those of `frames_of`.

    `sound_off` says whose sound is taken away.
    Of features nothing is copied.
    """
    offsets = np.cumsum([0, *(len(item.rendered) for item in items)])[:-1]
    ids = np.concatenate([item.rendered.ids_L for item in items])
    positions = np.concatenate([np.arange(len(item.rendered)) for item in items])
    predict = [
        np.flatnonzero(item.rendered.supervised_L[1:]) + offset
        for item, offset in zip(items, offsets, strict=True)
    ]
    predict_S = np.concatenate(predict)
    slots, audio_slots, spans, places, numbers, starts = [], [], [], [], [], []
    heads, targets = [], []
    for number, (item, offset) in enumerate(zip(items, offsets, strict=True)):
        rendered, view, shown = item.rendered, item.view, item.shown
        if view is None or shown is None or not len(view):
            continue
        slots.append(rendered.clip_slots_CK + offset)
        audio_slots.append(rendered.audio_slots_CA + offset)
        spans.append(rendered.clip_span_C2 + offset)
        numbers.append(np.full(len(shown), number))
        starts.append(shown.start_seconds + shown.origin_seconds)
        begin = float(view.start_seconds[0])
        duration = max(float(view.end_seconds[-1]) - begin, 1e-6)
        middle = (shown.start_seconds + shown.end_seconds) / 2
        places.append((middle - begin) / duration)
        if item.answer_span is not None and rendered.prompt_length < len(rendered):
            heads.append(offset + rendered.prompt_length - 1)
            ends = (np.array(item.answer_span) - begin) / duration
            targets.append(np.clip(ends, 0.0, 1.0))
    begins_C = torch.from_numpy(_joined(starts, 1, np.float64))
    seconds_CF = (clips.frame_times[:, :, 0] - begins_C[:, None]).float()
    item_C = torch.from_numpy(_joined(numbers, 1, np.int64))
    audio_mask = clips.audio_mask
    if audio_mask is not None and any(sound_off):
        audio_mask = audio_mask & ~torch.tensor(sound_off)[item_C][:, None]
    audio_slots_CA = torch.from_numpy(_joined(audio_slots, 2, np.int64))
    return Batch(
        input_ids_L=torch.from_numpy(ids),
        position_ids_L=torch.from_numpy(positions),
        predict_S=torch.from_numpy(predict_S),
        targets_S=torch.from_numpy(ids[predict_S + 1]),
        features=clips.features,
        scales=clips.scales,
        frame_mask_CF=clips.frame_mask,
        frame_seconds_CF=seconds_CF.masked_fill(~clips.frame_mask, 0.0),
        frames_taken_CF=torch.from_numpy(frames_CF),
        clip_slots_CK=torch.from_numpy(_joined(slots, 2, np.int64)),
        clip_span_C2=torch.from_numpy(_joined(spans, 2, np.int64)),
        clip_item_C=item_C,
        clip_place_C=torch.from_numpy(_joined(places, 1, np.float32)),
        audio_CAD=clips.audio,
        audio_mask_CA=audio_mask,
        audio_slots_CA=None if clips.audio is None else audio_slots_CA,
        head_positions_R=torch.tensor(heads, dtype=torch.int64),
        head_targets_R2=torch.tensor(np.array(targets).reshape(-1, 2), dtype=torch.float32),
        item_ids=tuple(item.id for item in items),
    )


def takes_sound_away(item_id: str, *, seed: int, epoch: int, probability: float) -> bool:
    """Whether an item's sound is masked in an epoch; the same on every rank and after a resume."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{item_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < probability * 2.0**64


def _joined(parts: Sequence[npt.NDArray[Any]], ndim: int, dtype: type) -> npt.NDArray[Any]:
    if not parts:
        return np.zeros((0, 1)[:ndim], dtype=dtype)
    return np.concatenate(parts).astype(dtype, copy=False)
