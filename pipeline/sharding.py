"""Build one shard: decode, encode, pack, publish the tar, then its sidecar. Works without Beam."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import PurePath

import numpy as np

from pipeline.attempts import Attempt, missing_clips, to_reject, video_outcome
from pipeline.batching import EncodeAhead
from pipeline.decoding import ClipFrames, DecodeOutcome, StartAgain
from pipeline.encoding import Features, StreamEncoders
from pipeline.fetching import FETCH_BYTES, Fetcher
from pipeline.hearing_ahead import ClipSound, HearAhead
from pipeline.jail import DecoderProcess
from pipeline.judging import judge_clip
from pipeline.layout import CacheLayout
from pipeline.measuring import Measures, ShardDone
from pipeline.neighbours import tar_index
from pipeline.packing import TarWriter, encode_preview
from pipeline.places import read_bytes
from pipeline.pool import DecoderPool
from pipeline.prefetching import DecodeAhead, first_order
from pipeline.storage import publish, publish_bytes, storage_errors, temporary_file
from schemas.errors import VideoError
from schemas.plan import Piece, ShardSpec
from schemas.recipe import Recipe
from schemas.sample import Sample
from schemas.sidecar import SampleEntry, Sidecar
from schemas.video import sample_key

BACKEND_FAILURES = ("crashed", "timed_out", "out_of_memory")
"""Of another backend than PyAV, these are not the video's fault until PyAV says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTools:
    """What a process needs to build shards; made once, used for many."""

    recipe: Recipe
    layout: CacheLayout
    encoders: StreamEncoders
    pool: DecoderPool
    hearer: DecoderProcess | None = None
    """Decodes sound; None: where the recipe has sound, each shard makes one for itself."""
    measures: Measures = field(default_factory=Measures)
    fetch_bytes: int = FETCH_BYTES
    """Of remote files on this machine, see `Fetcher`."""


def build_shard(spec: ShardSpec, *, tools: BuildTools) -> Sidecar:
    """Build and commit one shard, or read its sidecar where it is already committed.

    A video that cannot be used becomes a reject in the sidecar and the shard goes on. A shard with
    no sample has a sidecar and no tar. StorageError: the cache's place cannot be written.
    DeviceError: one clip is too much for the GPU.
    """
    layout = tools.layout
    sidecar_path = layout.sidecar(spec.name)
    with storage_errors(sidecar_path), contextlib.suppress(FileNotFoundError):
        return Sidecar.from_json(read_bytes(sidecar_path), where=str(sidecar_path))
    began = time.perf_counter()
    measures = tools.measures
    measures(shards_begun=1)
    with (
        measures.timed("shard"),
        _cpu_of_worker(measures),
        temporary_file(layout.scratch, name=f"{spec.name}.tar") as temporary,
    ):
        with TarWriter(temporary, place=layout.root, measures=measures) as writer:
            build = _ShardBuild(writer, tools)
            attempts = build.run(spec.pieces)
            sha256, num_bytes = writer.finish()
        samples = tuple(entry for attempt in attempts for entry in attempt.samples)
        if samples:
            with measures.timed("publish"):
                publish(temporary, layout.tar(spec.name))
                index = layout.tar_index(spec.name)
                publish_bytes(tar_index(samples), index, scratch=layout.scratch)
        else:
            sha256, num_bytes = "", 0
        used = [attempt for attempt in attempts if attempt.error is None]
        sidecar = Sidecar(
            name=spec.name,
            index=spec.index,
            split=spec.split,
            fingerprint=spec.fingerprint,
            recipe_fingerprint=spec.recipe_fingerprint,
            tar_sha256=sha256,
            tar_bytes=num_bytes,
            samples=samples,
            videos=tuple(video_outcome(attempt) for attempt in used),
            missing=tuple(gap for attempt in attempts for gap in missing_clips(attempt)),
            rejects=tuple(to_reject(attempt) for attempt in attempts if attempt.error is not None),
            versions=build.versions,
        )
        with measures.timed("publish"):
            publish_bytes(sidecar.to_json().encode(), sidecar_path, scratch=layout.scratch)
    measures(
        videos=sum(attempt.piece.is_last for attempt in used),
        frames_decoded=sum(video.num_frames_decoded for video in sidecar.videos),
    )
    measures.shard_done(shard_done(sidecar, seconds=time.perf_counter() - began))
    return sidecar


def shard_done(sidecar: Sidecar, *, seconds: float) -> ShardDone:
    """What there is to say of a shard that was just committed."""
    return ShardDone(
        name=sidecar.name,
        videos=len({entry.video_id for entry in sidecar.samples}),
        clips=len(sidecar.samples),
        frames=sum(entry.num_frames for entry in sidecar.samples),
        bytes=sidecar.tar_bytes,
        seconds=round(seconds, 3),
        rejects=dict(Counter(reject.reason for reject in sidecar.rejects)),
    )


@contextlib.contextmanager
def _cpu_of_worker(measures: Measures) -> Iterator[None]:
    before = time.process_time()
    try:
        yield
    finally:
        measures.took("worker", time.process_time() - before)


@functools.cache
def library_versions() -> dict[str, str]:
    """Versions of the libraries that shape the bytes of a sample, whatever its encoders."""
    return {name: metadata.version(name) for name in ("av", "numpy", "pillow", "reelcache")}


class _ShardBuild:
    """The pieces of one shard on their way into its tar."""

    def __init__(self, writer: TarWriter, tools: BuildTools) -> None:
        self._writer = writer
        self._tools = tools
        self._hearing: HearAhead | None = None
        self._told: Counter[int] = Counter()
        """Clips of each piece that are counted as done."""
        self._measures = tools.measures
        self.versions = library_versions() | tools.encoders.versions()

    def run(self, pieces: Sequence[Piece]) -> list[Attempt]:
        """The last attempt at each piece."""
        tools = self._tools
        pictures, pool = tools.encoders.pictures, tools.pool
        files = Fetcher(pieces, scratch=tools.layout.scratch, most_bytes=tools.fetch_bytes)
        with (
            files,
            DecodeAhead(
                pieces, recipe=tools.recipe, pictures=pictures, pool=pool, files=files
            ) as ahead,
            self._listen(files),
            EncodeAhead(tools.encoders, take=self._take, measures=self._measures) as encoding,
        ):
            attempts = [self._decode(piece, ahead, encoding) for piece in pieces]
            encoding.finish()
        for attempt in attempts:
            self._tell(attempt.piece, attempt.piece.num_clips)
            if attempt.error is None and not attempt.samples:
                assert attempt.outcome is not None
                detail = f"{attempt.outcome.num_decode_errors} packets failed to decode"
                if attempt.outcome.complaint:
                    detail += f"; {attempt.outcome.complaint}"
                attempt.give_up(VideoError("no_frames", detail))
        return attempts

    @contextlib.contextmanager
    def _listen(self, files: Fetcher) -> Iterator[None]:
        tools = self._tools
        if tools.encoders.sound is None:
            yield
            return
        with contextlib.ExitStack() as stack:
            process = tools.hearer or stack.enter_context(DecoderProcess(tools.recipe.limits))
            self._hearing = stack.enter_context(
                HearAhead(
                    tools.encoders.sound,
                    recipe=tools.recipe,
                    process=process,
                    files=files,
                    measures=self._measures,
                )
            )
            yield

    def _decode(self, piece: Piece, ahead: DecodeAhead, encoding: EncodeAhead[Attempt]) -> Attempt:
        attempt = Attempt(piece, first_order(piece, self._tools.recipe), "")
        is_first, has_crashed = True, False
        while True:
            try:
                clips = ahead.clips(piece, order=None if is_first else attempt.order)
                with contextlib.closing(clips):  # type: ignore[type-var]
                    for clip in self._timed(clips):
                        if isinstance(clip, DecodeOutcome):
                            attempt.outcome = clip
                        elif attempt.is_void:  # an encoder has rejected it
                            break
                        else:
                            if self._hearing is not None:
                                self._hearing.announce(attempt, piece, clip)
                            encoding.add(attempt, clip)
                break
            except StartAgain as again:
                order, why = again.order, "; ".join(filter(None, (attempt.why, again.why)))
            except VideoError as error:
                order, why = attempt.order, attempt.why
                if error.reason in BACKEND_FAILURES and order in ("decord", "ffmpeg"):
                    order, why = "selected", f"{order} {error.reason}"
                elif error.reason == "crashed" and not has_crashed:
                    has_crashed = True  # it may have been killed for what is no fault of its own
                else:
                    self._void(attempt, encoding)
                    attempt.give_up(error)
                    break
            is_first = False
            self._void(attempt, encoding)
            attempt = Attempt(piece, order, why)
        if attempt.error is not None:
            self._tell(piece, piece.num_clips)
        self._measure_cpu()
        return attempt

    def _timed(
        self, clips: Iterator[ClipFrames | DecodeOutcome]
    ) -> Iterator[ClipFrames | DecodeOutcome]:
        while True:
            with self._measures.timed("wait_decode"):
                clip = next(clips, None)
            if clip is None:
                return
            yield clip

    def _measure_cpu(self) -> None:
        self._measures.reads("decode", self._tools.pool.cpu_seconds)
        if self._tools.hearer is not None:
            self._measures.reads("decode_sound", self._tools.hearer.cpu_seconds)

    def _tell(self, piece: Piece, num_done: int) -> None:
        # A second attempt at a piece is not counted again.
        more = min(num_done, piece.num_clips) - self._told[id(piece)]
        if more > 0:
            self._told[id(piece)] += more
            self._measures(done=more)

    def _void(self, attempt: Attempt, encoding: EncodeAhead[Attempt]) -> None:
        # Of its clips some may be gathered, some may be at the encoders, and some in the tar.
        attempt.is_void = True
        encoding.forget(attempt)
        self._take_back(attempt)

    def _take_back(self, attempt: Attempt) -> None:
        if self._hearing is not None:
            self._hearing.forget(attempt)
        if attempt.mark is not None:
            self._writer.go_back(attempt.mark)
        attempt.mark, attempt.samples = None, []

    def _take(self, attempt: Attempt, clip: ClipFrames, features: Features | VideoError) -> None:
        if attempt.is_void:
            return
        sound: ClipSound | None = None
        try:
            if isinstance(features, VideoError):
                raise features
            if self._hearing is not None:
                sound = self._hearing.take(attempt, clip)
        except VideoError as error:
            self._take_back(attempt)
            attempt.give_up(error)
            return
        if attempt.mark is None:
            attempt.mark = self._writer.mark()
        with self._measures.timed("pack"):
            attempt.samples.append(self._add_sample(clip, features, sound, attempt))
        self._tell(attempt.piece, len(attempt.samples))

    def _add_sample(
        self, clip: ClipFrames, features: Features, sound: ClipSound | None, attempt: Attempt
    ) -> SampleEntry:
        piece, recipe = attempt.piece, self._tools.recipe
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
            "decoder": attempt.order if attempt.order in ("decord", "ffmpeg") else "pyav",
            "versions": self.versions,
        }
        if sound is not None:
            info["audio_start_seconds"] = sound.start_seconds
        quality = judge_clip(
            clip,
            pictures=self._tools.encoders.pictures,
            loudness=None if sound is None else sound.loudness,
        )
        info["quality"] = asdict(quality)
        sample = Sample(
            key=key,
            features={name: stored.values for name, stored in features.items()},
            scales={
                name: stored.scale for name, stored in features.items() if stored.scale is not None
            },
            times=clip.times,
            mask=np.arange(recipe.sampling.frames_per_clip) < clip.num_frames,
            info=info,
            preview=None if clip.preview is None else encode_preview(clip.preview),
            audio=None if sound is None else sound.tokens,
            audio_mask=None if sound is None else sound.mask,
        )
        place = self._writer.add(sample)
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
            quality=quality,
        )
