"""HearAhead: the sound of clips, decoded and encoded in a thread while pictures are at work.

Sound is encoded in chunks of 30 windows that lie fixed on a video's clock: chunk m begins 30 m
seconds after the first grid time. So it makes no difference how a video is cut into pieces.
docs/decisions/0011-sound-features.md
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Generator, Hashable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pipeline.decoding import ClipFrames
from pipeline.encoding_sound import ChunkEncoder, Tokens
from pipeline.fetching import Fetcher
from pipeline.jail import DecoderProcess
from pipeline.listening import decode_sound
from pipeline.measuring import Measures
from pipeline.placing import SoundWindow
from pipeline.source_files import check_unchanged, size_and_time
from schemas.errors import VideoError
from schemas.plan import Piece
from schemas.quality import loudness_of
from schemas.recipe import Recipe
from schemas.timeline import TOLERANCE_SECONDS, clip_length, clip_windows, windows_per_clip

AHEAD_CHUNKS = 8
"""Encoded before they are needed, at most."""
CLOSE_SECONDS = 5.0
"""For the decoder process to be done with what it is at, before it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSound:
    """The sound of one clip as it is stored."""

    tokens: Tokens
    """(W, L, D) float16; where the mask is False, what the encoder makes of silence."""
    mask: npt.NDArray[np.bool_]
    """(W,): windows in which sound is heard."""
    start_seconds: float
    """When window 0 begins, on the source's clock."""
    loudness: float | None
    """As of `Quality`."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    tokens: Tokens | None
    """None: nothing is heard."""
    heard: npt.NDArray[np.bool_]
    mean_squares: list[float]
    """Of the samples of each window."""


@dataclass(slots=True, eq=False)
class _Track:
    """The sound of one attempt at a piece."""

    piece: Piece
    origin_seconds: float
    asked_stop: int
    """The first chunk that the thread has not been asked for."""
    chunks: dict[int, _Chunk] = field(default_factory=dict)
    """Those that are there, and may still be needed."""
    error: BaseException | None = None
    is_over: bool = False


class HearAhead:
    """The sound of clips; a context manager. Clips are announced first, then taken, in one order.

    Each belongs to an owner, such as an attempt at a piece.
    """

    def __init__(
        self,
        encoder: ChunkEncoder,
        *,
        recipe: Recipe,
        process: DecoderProcess,
        files: Fetcher | None = None,
        measures: Measures | None = None,
    ) -> None:
        """`process` is nobody else's until `close`."""
        self._files = files or Fetcher()
        self._measures = measures or Measures()
        self._encoder = encoder
        self._recipe = recipe
        self._process = process
        self._num_windows = encoder.spec.num_windows
        sampling = recipe.sampling
        self._clip_length = clip_length(fps=sampling.fps, frames_per_clip=sampling.frames_per_clip)
        self._room = windows_per_clip(fps=sampling.fps, frames_per_clip=sampling.frames_per_clip)
        # A clip may need more chunks at once than are made ahead of others.
        self._most_chunks = max(AHEAD_CHUNKS, self._room // self._num_windows + 2)
        self._tracks: dict[Hashable, _Track] = {}
        self._jobs: deque[tuple[_Track, range]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="sound", daemon=True)

    def __enter__(self) -> HearAhead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread, and what the decoder process is doing; closing twice is fine."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)
        while self._thread.is_alive():  # it may be about to start another one
            self._process.interrupt()
            self._thread.join(CLOSE_SECONDS)

    def announce(self, owner: Hashable, piece: Piece, clip: ClipFrames) -> None:
        """A clip that will be taken, or forgotten with its owner."""
        windows = self._windows(clip.clip_index)
        with self._changed:
            track = self._tracks.get(owner)
            if track is None:
                # Clips of all pieces of a video agree on the origin but for rounding.
                origin = clip.start_seconds - float(clip.clip_index * self._clip_length)
                first_chunk = windows.start // self._num_windows
                track = self._tracks[owner] = _Track(piece, round(origin, 9), first_chunk)
                self._files.hold(piece)
            planned = self._windows(piece.first_clip + piece.num_clips - 1)
            stop = -(-max(windows.stop, planned.stop) // self._num_windows)
            if piece.has_audio and stop > track.asked_stop:
                self._jobs.append((track, range(track.asked_stop, stop)))
                track.asked_stop = stop
                self._changed.notify_all()

    def take(self, owner: Hashable, clip: ClipFrames) -> ClipSound:
        """The sound of an announced clip. Owners that were announced before are forgotten.

        VideoError: it cannot be decoded; source_changed; non_finite. DeviceError.
        """
        with self._changed:
            for other in list(self._tracks):
                if other is owner:
                    break
                self._drop(other)
            track = self._tracks[owner]
        windows = self._windows(clip.clip_index)
        silence = self._encoder.silence()
        tokens = np.empty((self._room, *silence.shape[1:]), np.float16)
        mask = np.zeros(self._room, np.bool_)
        mean_squares = []
        for slot in range(self._room):
            index = windows.start + slot
            number, place = divmod(index, self._num_windows)
            tokens[slot] = silence[place]
            begin = track.origin_seconds + index
            is_inside = index in windows and begin < clip.end_seconds - TOLERANCE_SECONDS
            if not (is_inside and track.piece.has_audio):
                continue
            chunk = self._wait_for(track, number)
            if chunk.tokens is not None and chunk.heard[place]:
                tokens[slot], mask[slot] = chunk.tokens[place], True
                mean_squares.append(chunk.mean_squares[place])
        self._release(track, below=windows.stop // self._num_windows)
        start = track.origin_seconds + windows.start
        loudness = loudness_of(float(np.mean(mean_squares))) if mean_squares else None
        return ClipSound(tokens=tokens, mask=mask, start_seconds=start, loudness=loudness)

    def forget(self, owner: Hashable) -> None:
        """Clips of this owner are not wanted any more."""
        with self._changed:
            if owner in self._tracks:
                self._drop(owner)

    def _windows(self, clip_index: int) -> range:
        sampling = self._recipe.sampling
        return clip_windows(clip_index, fps=sampling.fps, frames_per_clip=sampling.frames_per_clip)

    def _drop(self, owner: Hashable) -> None:
        track = self._tracks.pop(owner)
        track.is_over = True
        track.chunks.clear()
        self._files.release(track.piece)
        self._changed.notify_all()

    def _release(self, track: _Track, *, below: int) -> None:
        with self._changed:
            for number in [number for number in track.chunks if number < below]:
                del track.chunks[number]
            self._changed.notify_all()

    def _wait_for(self, track: _Track, number: int) -> _Chunk:
        with self._changed:
            if number not in track.chunks:
                with self._measures.timed("wait_sound"):
                    self._changed.wait_for(
                        lambda: number in track.chunks or track.error is not None
                    )
            if number in track.chunks:
                return track.chunks[number]
            assert track.error is not None
            raise track.error

    def _is_unwanted(self, track: _Track) -> bool:
        return track.is_over or self._closing

    def _work(self) -> None:
        # In the thread. Whatever goes wrong comes out where the sound is taken.
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closing)
                if self._closing:
                    return
                track, numbers = self._jobs.popleft()
            if track.error is not None:
                continue
            try:
                self._hear(track, numbers)
            except BaseException as error:
                with self._changed:
                    track.error = error
                    self._changed.notify_all()

    def _hear(self, track: _Track, numbers: range) -> None:
        with contextlib.closing(self._decode(track, numbers)) as decoded:
            for number, windows in decoded:
                heard = np.array([window.heard for window in windows])
                mean_squares = [_mean_square(window) for window in windows]
                tokens = None
                if heard.any():
                    samples = np.concatenate([window.samples for window in windows])
                    with self._measures.timed("encode_sound"):
                        tokens = self._encoder.encode(samples)
                with self._changed:
                    self._changed.wait_for(
                        lambda: len(track.chunks) < self._most_chunks or self._is_unwanted(track)
                    )
                    if self._is_unwanted(track):
                        return
                    track.chunks[number] = _Chunk(tokens, heard, mean_squares)
                    self._changed.notify_all()

    def _decode(
        self, track: _Track, numbers: range
    ) -> Generator[tuple[int, list[SoundWindow]], None, None]:
        # Chunk for chunk; fewer where they are not wanted any more.
        piece = track.piece
        path = self._files.path(piece)
        state = size_and_time(path)
        has_crashed = False
        while numbers:
            try:
                with contextlib.closing(self._decode_chunks(track, path, numbers)) as decoded:
                    for windows in decoded:
                        check_unchanged(path, state)
                        yield numbers.start, windows
                        numbers = numbers[1:]
                return
            except VideoError as error:
                check_unchanged(path, state, cause=error)
                # It may have been killed for what is no fault of its own.
                if error.reason != "crashed" or has_crashed or self._is_unwanted(track):
                    raise VideoError(error.reason, f"its sound: {error.detail}") from error
                has_crashed = True

    def _decode_chunks(
        self, track: _Track, path: str, numbers: range
    ) -> Generator[list[SoundWindow], None, None]:
        piece, rate, size = track.piece, self._encoder.spec.rate, self._num_windows
        first, stop = numbers.start * size, numbers.stop * size
        end = math.inf if piece.end_seconds is None else piece.end_seconds - track.origin_seconds
        decoded: Iterator[SoundWindow] = decode_sound(
            path,
            origin_seconds=track.origin_seconds,
            num_windows=max(0, math.ceil(min(end, stop)) - first),
            first_window=first,
            rate=rate,
            in_order=not piece.times_go_back,
            limits=self._recipe.limits,
            process=self._process,
        )
        with contextlib.closing(decoded):  # type: ignore[type-var]
            windows: list[SoundWindow] = []
            for index in range(first, stop):
                window = _until(end, next(decoded, None) or _silent(index, rate=rate))
                windows.append(window)
                if self._is_unwanted(track):
                    return
                if len(windows) == size:
                    if index + 1 == stop:
                        next(decoded, None)  # so that the decoder process has said that it is done
                    yield windows
                    windows = []


def _mean_square(window: SoundWindow) -> float:
    return float(np.mean(np.square(window.samples, dtype=np.float64)))


def _silent(index: int, *, rate: int) -> SoundWindow:
    return SoundWindow(index=index, samples=np.zeros(rate, np.float32), heard=False)


def _until(end: float, window: SoundWindow) -> SoundWindow:
    # What lies beyond the end of a span is not part of the video.
    if end - window.index >= 1 or not window.heard:
        return window
    samples = window.samples.copy()
    samples[round((end - window.index) * len(samples)) :] = 0
    return replace(window, samples=samples)
