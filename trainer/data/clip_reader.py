"""ClipReader: the frames of a view, from the tars of a cache straight into a batch.

One copy is made, by the system, from its cache of the file to the place in the batch. Where the
members lie is known by the index, so no tar is parsed; that their shapes are those of the recipe is
seen by their npy headers, which are read beside the frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.cache import FeatureCache
from pipeline.extents import NOWHERE
from pipeline.places import is_local
from schemas.sample import AUDIO_MASK_MEMBER, AUDIO_MEMBER, SCALE_MEMBER
from trainer.config import ViewSpec
from trainer.data.buffers import Buffers, place_of
from trainer.data.cache_shape import CacheShape
from trainer.data.member_records import Member, MemberRecords
from trainer.data.segments import Numbers, Segments, read_segments
from trainer.data.video_view import frame_stride
from trainer.data.visits import Visits

Tensors = dict[str, Tensor]

TIME_MEMBER = "time.npy"
NEAR_BYTES = 16 << 10
"""Of a local tar so much is read and thrown away rather than begin another call."""
NEAR_REMOTE_BYTES = 1 << 20
"""Of a store's tar, where a call takes as long as many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedClips:
    """C clips of F frames as they are cached. Tensors alias the buffers that they were read into.

    Where there is no frame, and no sound, values are 0.
    """

    features: Tensors
    """Stream -> (C, F, H, W, D) float16 or int8; of one with a temporal stride (C, T, H, W, D): all
    of the sample that holds the clip's first frame."""
    scales: Tensors
    """Stream -> (C, F, D) float32 of int8 streams, or (C, T, D): what 1 stands for."""
    frame_mask: Tensor
    """(C, F) bool: False where there is no frame."""
    frame_times: Tensor
    """(C, F, 2) float64: [start, end) seconds on the video's clock, as stored."""
    audio: Tensor | None = None
    """(C, A, D) float16: the windows of each sample that the clip has frames of, in order."""
    audio_mask: Tensor | None = None
    """(C, A) bool: False where there was nothing to hear."""


class ClipReader:
    """Reads clips of a view; threads may share it, each with buffers of its own."""

    def __init__(
        self, cache: FeatureCache, *, shape: CacheShape, view: ViewSpec, with_audio: bool
    ) -> None:
        """`with_audio` only where the cache has sound."""
        self._cache, self._shape, self._extents = cache, shape, cache.extents
        self._near_bytes = NEAR_BYTES if is_local(cache.layout.root) else NEAR_REMOTE_BYTES
        self._records = MemberRecords(_members(shape, with_audio=with_audio))
        self._sounds_per_clip = samples_per_clip(view, shape) if with_audio else 0

    def read(self, rows_CF: Numbers, frames_CF: Numbers, *, into: Buffers) -> CachedClips:
        """The frames of clips, by their rows of the index and their place in the sample.

        Row -1: there is no frame. CacheDamaged: a tar is missing, ends too early, or holds members
        that are not what the recipe says.
        """
        visits = Visits.of(rows_CF, self._extents)
        memory, tensors = into.take_together(self._wanted(visits))
        ended = read_segments(
            Segments.join(list(self._segments(visits, frames_CF, tensors))),
            memory,
            tars=self._cache.tars,
            shard_names=self._extents.shard_names,
            shard_of_visit=self._extents.shard_codes[visits.rows].astype(np.int64),
            spare=(place_of(tensors["spare"]), self._near_bytes),
        )
        if ended is not None:
            row = visits.rows[ended]
            shard = self._extents.shard_names[self._extents.shard_codes[row]]
            tar = self._cache.layout.tar(shard)
            raise self._cache.damaged(f"{tar} ends inside {self._key(row)}")
        wrong = self._records.wrong(tensors["records"].numpy())
        if wrong is not None:
            visit, member = wrong
            raise self._cache.damaged(
                f"{self._key(visits.rows[visit])}: member {member.name!r} is not an npy file of"
                f" {member.shape} {member.dtype}, as the recipe says"
            )
        self._spread(visits, frames_CF, tensors)
        has_audio = self._sounds_per_clip > 0
        return CachedClips(
            features={name: tensors[f"{name}.npy"] for name in self._shape.streams},
            scales={
                name: tensors[f"scales of {name}"]
                for name, one in self._shape.streams.items()
                if one.dtype == "int8"
            },
            frame_mask=tensors["frame mask"],
            frame_times=tensors["frame times"],
            audio=tensors[AUDIO_MEMBER].flatten(1, 3) if has_audio else None,
            audio_mask=tensors["sound mask"].flatten(1) if has_audio else None,
        )

    def _wanted(self, visits: Visits) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """All that is read into: what becomes the clips', and what is looked at only."""
        C, F = visits.visit_CF.shape
        wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for name, one in self._shape.streams.items():
            T = F if self._is_by_frame(name) else one.num_grids
            grids = (C, T, one.height, one.width, one.dim)
            wanted[f"{name}.npy"] = (grids, getattr(torch, one.dtype))
            if one.dtype == "int8":
                wanted[f"scales of {name}"] = ((C, T, one.dim), torch.float32)
        wanted["frame mask"] = ((C, F), torch.bool)
        wanted["frame times"] = ((C, F, 2), torch.float64)
        if self._sounds_per_clip:
            audio, S = self._records.members[AUDIO_MEMBER], self._sounds_per_clip
            wanted[AUDIO_MEMBER] = ((C, S, *audio.shape), torch.float16)
            wanted["sound mask"] = ((C, S, *audio.shape[:2]), torch.bool)
        wanted["records"] = ((len(visits), self._records.num_bytes), torch.uint8)
        wanted["spare"] = ((self._near_bytes,), torch.uint8)
        return wanted

    def _segments(self, visits: Visits, frames_CF: Numbers, tensors: Tensors) -> Iterator[Segments]:
        begins_VM = self._offsets(visits)
        yield self._records.segments(begins_VM, place=place_of(tensors["records"]))
        for column, member in enumerate(self._records.members.values()):
            if not member.is_large:
                continue
            begins = begins_VM[:, column] + len(member.header)
            place = place_of(tensors[member.name])
            if member.name == AUDIO_MEMBER:
                slots = visits.clips * self._sounds_per_clip + visits.ordinals
                visit, size = np.arange(len(visits)), member.data_bytes
            else:
                stream = member.name.removesuffix(".npy")
                visit_CT, frames_CT = self._grids(stream, visits, frames_CF)
                (slots,) = np.nonzero(visit_CT.ravel() >= 0)
                visit, size = visit_CT.ravel()[slots], member.data_bytes // member.shape[0]
                begins = begins[visit] + frames_CT.ravel()[slots] * size
            sizes = np.full(len(slots), size, dtype=np.int64)
            yield Segments(visit=visit, offset=begins, num_bytes=sizes, place=place + slots * size)

    def _spread(self, visits: Visits, frames_CF: Numbers, tensors: Tensors) -> None:
        """From the record of each visit to each frame; 0 where there is nothing."""
        records = tensors["records"].numpy()
        for stream, one in self._shape.streams.items():
            visit_CT, _ = self._grids(stream, visits, frames_CF)
            none = visit_CT < 0
            if none.any():
                tensors[f"{stream}.npy"].numpy()[none] = 0
            if one.dtype == "int8":
                scales = tensors[f"scales of {stream}"].numpy()
                if len(visits):
                    stored = self._records.data(f"{stream}{SCALE_MEMBER}", records)
                    np.take(stored, visit_CT, axis=0, out=scales, mode="clip")
                scales[none] = 0
        there = visits.visit_CF >= 0
        tensors["frame mask"].numpy()[:] = there
        times, stored = tensors["frame times"].numpy(), self._records.data(TIME_MEMBER, records)
        times[there] = stored[visits.visit_CF[there], frames_CF[there]]
        times[~there] = 0
        if self._sounds_per_clip:
            mask, where = tensors["sound mask"].numpy(), (visits.clips, visits.ordinals)
            none = np.ones(mask.shape[:2], dtype=np.bool_)
            none[where] = False
            mask[where] = self._records.data(AUDIO_MASK_MEMBER, records)[:, :, None]
            mask[none] = False
            tensors[AUDIO_MEMBER].numpy()[none] = 0

    def _grids(self, stream: str, visits: Visits, frames_CF: Numbers) -> tuple[Numbers, Numbers]:
        """(visits, which grid of the member): (C, T) each, for each grid of a clip."""
        if self._is_by_frame(stream):
            return visits.visit_CF, frames_CF
        T = self._shape.streams[stream].num_grids
        shape = (len(frames_CF), T)
        return (
            np.broadcast_to(visits.first_C[:, None], shape),
            np.broadcast_to(np.arange(T), shape),
        )

    def _is_by_frame(self, stream: str) -> bool:
        return self._shape.streams[stream].num_grids == self._shape.frames_per_clip

    def _offsets(self, visits: Visits) -> Numbers:
        """(V, M): of the members in the tars."""
        members = list(self._records.members.values())
        offsets, sizes = self._extents.find(visits.rows, names=[one.name for one in members])
        expected = np.array([member.num_bytes for member in members])
        wrong = np.argwhere((offsets == NOWHERE) | (sizes != expected))
        if len(wrong):
            visit, column = wrong[0]
            name, key = members[column].name, self._key(visits.rows[visit])
            if offsets[visit, column] == NOWHERE:
                raise self._cache.damaged(f"{key}: member {name!r} is missing")
            raise self._cache.damaged(
                f"{key}: member {name!r} has {sizes[visit, column]} bytes, not {expected[column]}"
            )
        return offsets

    def _key(self, row: int) -> str:
        key: str = self._cache.index.column("key")[int(row)].as_py()
        return key


def _members(shape: CacheShape, *, with_audio: bool) -> Iterator[Member]:
    yield Member.of(TIME_MEMBER, shape.frames_per_clip, 2, dtype="float64")
    for name, one in shape.streams.items():
        grids = (one.num_grids, one.height, one.width, one.dim)
        yield Member.of(f"{name}.npy", *grids, dtype=one.dtype, is_large=True)
        if one.dtype == "int8":
            yield Member.of(f"{name}{SCALE_MEMBER}", one.dim, dtype="float32")
    if with_audio:
        assert shape.audio is not None
        windows = (shape.audio.windows, shape.audio.tokens, shape.audio.dim)
        yield Member.of(AUDIO_MEMBER, *windows, dtype="float16", is_large=True)
        yield Member.of(AUDIO_MASK_MEMBER, shape.audio.windows, dtype="bool")


def samples_per_clip(view: ViewSpec, shape: CacheShape) -> int:
    """The most samples of the cache that a clip of the view has frames of."""
    T = shape.frames_per_clip
    F = view.frames_per_clip or T
    if view.input != "video":
        return 1
    if view.policy == "uniform":
        return min(F, view.num_frames)
    stride = frame_stride(view, cache_fps=shape.fps)
    begins = {clip * F * stride % T for clip in range(T)}
    return min(F, max((begin + (F - 1) * stride) // T + 1 for begin in begins))


def audio_tokens_per_clip(view: ViewSpec, shape: CacheShape) -> int:
    """A: the tokens of sound that a clip of the view has room for; 0 without sound."""
    if shape.audio is None:
        return 0
    return samples_per_clip(view, shape) * shape.audio.windows * shape.audio.tokens
