"""Build one shard: decode, encode, pack, publish the tar, then its sidecar. Works without Beam."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import PurePath

import numpy as np

from pipeline.decoding import ClipFrames, DecodeOutcome, Order, StartAgain
from pipeline.encoding import Features, StreamEncoders
from pipeline.layout import CacheLayout
from pipeline.packing import TarWriter, encode_preview
from pipeline.pool import DecoderPool
from pipeline.prefetching import DecodeAhead, first_order
from pipeline.storage import publish, publish_bytes, temporary_file
from schemas.errors import VideoError
from schemas.plan import Piece, ShardSpec
from schemas.recipe import Recipe
from schemas.reject import Reject
from schemas.sample import Sample
from schemas.sidecar import MissingClips, SampleEntry, Sidecar, VideoOutcome
from schemas.video import sample_key

BATCH_CLIPS = 8
BACKEND_FAILURES = ("crashed", "timed_out", "out_of_memory")
"""Of another backend than PyAV, these are not the video's fault until PyAV says so."""

Progress = Callable[..., None]
"""Called with counts to add: done, clips that are cached or given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTools:
    """What a process needs to build shards; made once, used for many."""

    recipe: Recipe
    layout: CacheLayout
    encoders: StreamEncoders
    pool: DecoderPool
    progress: Progress = lambda **_: None


@dataclass(slots=True)
class _Draft:
    """What goes into the sidecar."""

    writer: TarWriter
    samples: list[SampleEntry] = field(default_factory=list)
    videos: list[VideoOutcome] = field(default_factory=list)
    missing: list[MissingClips] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)


def build_shard(spec: ShardSpec, *, tools: BuildTools) -> Sidecar:
    """Build and commit one shard, or read its sidecar where it is already committed.

    A video that cannot be used becomes a reject in the sidecar and the shard goes on. A shard with
    no sample has a sidecar and no tar. StorageError: the cache's place cannot be written.
    """
    layout = tools.layout
    sidecar_path = layout.sidecar(spec.name)
    if sidecar_path.exists():
        return Sidecar.from_json(sidecar_path.read_bytes(), where=str(sidecar_path))
    with temporary_file(layout.scratch, name=f"{spec.name}.tar") as temporary:
        ahead = DecodeAhead(
            spec.pieces, recipe=tools.recipe, pictures=tools.encoders.pictures, pool=tools.pool
        )
        with TarWriter(temporary, place=layout.root) as writer, ahead:
            draft = _Draft(writer)
            for piece in spec.pieces:
                _add_piece(piece, draft, ahead, tools)
            sha256, num_bytes = writer.finish()
        if draft.samples:
            publish(temporary, layout.tar(spec.name))
        else:
            sha256, num_bytes = "", 0
        sidecar = Sidecar(
            name=spec.name,
            index=spec.index,
            split=spec.split,
            fingerprint=spec.fingerprint,
            recipe_fingerprint=spec.recipe_fingerprint,
            tar_sha256=sha256,
            tar_bytes=num_bytes,
            samples=tuple(draft.samples),
            videos=tuple(draft.videos),
            missing=tuple(draft.missing),
            rejects=tuple(draft.rejects),
            versions=library_versions(),
        )
        publish_bytes(sidecar.to_json().encode(), sidecar_path, scratch=layout.scratch)
    return sidecar


@functools.cache
def library_versions() -> dict[str, str]:
    """Versions of the libraries that shape the bytes of a sample."""
    return {name: metadata.version(name) for name in ("av", "numpy", "pillow", "reelcache")}


def _add_piece(piece: Piece, draft: _Draft, ahead: DecodeAhead, tools: BuildTools) -> None:
    mark = draft.writer.mark()
    try:
        entries, video = _encode_piece(piece, draft.writer, ahead, tools)
    except VideoError as error:
        draft.writer.go_back(mark)
        reject = Reject(
            uri=piece.uri,
            video_id=piece.video_id,
            stage="encode" if error.reason == "non_finite" else "decode",
            reason=error.reason,
            detail=error.detail,
        )
        draft.rejects.append(reject)
        draft.missing.append(_missing(piece, piece.num_clips, error.reason))
    else:
        draft.samples += entries
        draft.videos.append(video)
        lacking = piece.num_clips - len(entries)
        if lacking > 0:
            why = "corrupt" if video.corrupt else "timestamps"
            draft.missing.append(_missing(piece, lacking, "truncated" if piece.truncated else why))
    tools.progress(done=piece.num_clips)


def _encode_piece(
    piece: Piece, writer: TarWriter, ahead: DecodeAhead, tools: BuildTools
) -> tuple[list[SampleEntry], VideoOutcome]:
    mark = writer.mark()
    order = first_order(piece, tools.recipe)
    is_first, has_crashed, why = True, False, ""
    while True:
        try:
            clips = ahead.clips(piece, order=None if is_first else order)
            entries, outcome = _encode(clips, piece, writer, tools, order=order)
            break
        except StartAgain as again:
            order, why = again.order, "; ".join(filter(None, (why, again.why)))
        except VideoError as error:
            if error.reason in BACKEND_FAILURES and order in ("decord", "ffmpeg"):
                order, why = "selected", f"{order} {error.reason}"
            elif error.reason == "crashed" and not has_crashed:
                has_crashed = True  # it may have been killed for what is no fault of the video's
            else:
                raise
        is_first = False
        writer.go_back(mark)
    if not entries:
        detail = f"{outcome.num_decode_errors} packets failed to decode"
        if outcome.complaint:
            detail += f"; {outcome.complaint}"
        raise VideoError("no_frames", detail)
    return entries, VideoOutcome(
        video_id=piece.video_id,
        num_clips=len(entries),
        num_frames_decoded=outcome.num_frames_decoded,
        num_decode_errors=outcome.num_decode_errors,
        truncated=piece.truncated,
        corrupt=outcome.corrupt,
        order=order,
        why=why,
    )


def _missing(piece: Piece, num_clips: int, reason: str) -> MissingClips:
    first = piece.first_clip + piece.num_clips - num_clips
    return MissingClips(
        video_id=piece.video_id, first_clip=first, num_clips=num_clips, reason=reason
    )


def _encode(
    clips: Iterator[ClipFrames | DecodeOutcome],
    piece: Piece,
    writer: TarWriter,
    tools: BuildTools,
    *,
    order: Order,
) -> tuple[list[SampleEntry], DecodeOutcome]:
    entries: list[SampleEntry] = []
    outcome: DecodeOutcome | None = None
    with contextlib.closing(clips):  # type: ignore[type-var]
        for batch in _batches(clips):
            if isinstance(batch, DecodeOutcome):
                outcome = batch
                continue
            for clip, features in zip(batch, tools.encoders.encode(batch), strict=True):
                entries.append(_add_sample(clip, features, piece, writer, tools.recipe, order))
    assert outcome is not None
    return entries, outcome


def _batches(
    clips: Iterator[ClipFrames | DecodeOutcome],
) -> Iterator[list[ClipFrames] | DecodeOutcome]:
    batch: list[ClipFrames] = []
    for clip in clips:
        if isinstance(clip, ClipFrames):
            batch.append(clip)
        if batch and (len(batch) == BATCH_CLIPS or isinstance(clip, DecodeOutcome)):
            yield batch
            batch = []
        if isinstance(clip, DecodeOutcome):
            yield clip


def _add_sample(
    clip: ClipFrames,
    features: Features,
    piece: Piece,
    writer: TarWriter,
    recipe: Recipe,
    order: Order,
) -> SampleEntry:
    key = sample_key(piece.video_id, clip.clip_index)
    info = {
        "video_id": piece.video_id,
        "clip_index": clip.clip_index,
        "start_seconds": clip.start_seconds,
        "end_seconds": clip.end_seconds,
        "num_frames": clip.num_frames,
        "fps": recipe.sampling.fps,
        "source_name": PurePath(piece.uri).name,
        **clip.shape,
        "has_audio": piece.has_audio,
        "truncated": piece.truncated,
        "corrupt": clip.corrupt,
        "decoder": order if order in ("decord", "ffmpeg") else "pyav",
        "versions": library_versions(),
    }
    sample = Sample(
        key=key,
        features=features,
        times=clip.times,
        mask=np.arange(recipe.sampling.frames_per_clip) < clip.num_frames,
        info=info,
        preview=None if clip.preview is None else encode_preview(clip.preview),
    )
    place = writer.add(sample)
    return SampleEntry(
        key=key,
        video_id=piece.video_id,
        clip_index=clip.clip_index,
        start_seconds=clip.start_seconds,
        end_seconds=clip.end_seconds,
        num_frames=clip.num_frames,
        offset=place.offset,
        num_bytes=place.num_bytes,
        members=place.members,
        truncated=piece.truncated,
        corrupt=clip.corrupt,
    )
