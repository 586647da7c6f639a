"""Find speech, and what is said: the sound of a video is listened to, on the video's own clock."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeline.cache import FeatureCache
from pipeline.fetching import Fetcher
from pipeline.finding_scenes import Found
from pipeline.jail import DecoderProcess
from pipeline.listening import decode_sound
from pipeline.source_files import check_unchanged, size_and_time
from pipeline.video_sources import VideoSource
from schemas.errors import VideoError
from schemas.event import Event

SPEECH, TRANSCRIPT = "speech", "transcript"
RATE = 16_000
JOIN_SECONDS = 1.0
"""A pause that does not part what is transcribed together."""
PAD_SECONDS = 0.2
"""Before and after speech, that a transcriber hears too."""

Sound = npt.NDArray[np.float32]
Span = tuple[float, float]
Listen = Callable[[VideoSource, Iterator[Sound]], list[Event]]
"""A video and its sound, a second at a time from its origin on -> events."""


class VoiceDetector(Protocol):
    """As `encoders.voice.VoiceDetector`."""

    def spans(self, sound: Iterator[Sound]) -> list[tuple[float, float, float]]:
        """(start, end, score) of speech, from the start of the sound."""


class Transcriber(Protocol):
    """As `encoders.transcribing.Transcriber`."""

    def transcribe(self, sound: Sound) -> list[tuple[float, float, str]]:
        """(start, end, text), from the start of the sound."""


def find_speech(
    cache: FeatureCache,
    sources: Sequence[VideoSource],
    *,
    detector: VoiceDetector,
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[Found]:
    """The stretches of each video in which somebody speaks, in the order of `sources`.

    Scores are the detector's. A video without a track has none. StorageError.
    """

    def listen(source: VideoSource, sound: Iterator[Sound]) -> list[Event]:
        return [
            event
            for start, end, score in detector.spans(sound)
            for event in _event(source, SPEECH, start, end, score=score)
        ]

    return _listen_to(cache, sources, listen=listen, progress=progress)


def find_transcripts(
    cache: FeatureCache,
    sources: Sequence[VideoSource],
    *,
    transcriber: Transcriber,
    chunk_seconds: int,
    speech: Mapping[str, Sequence[Event]] | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[Found]:
    """What is said in each video, in the order of `sources`.

    `speech` is where it is worth listening, by video; to a video that is not in it, everywhere. A
    transcriber hears at most `chunk_seconds` at once. StorageError.
    """
    known = {} if speech is None else speech

    def listen(source: VideoSource, sound: Iterator[Sound]) -> list[Event]:
        stretches = [(0.0, source.seconds)]
        if source.video_id in known:
            stretches = join_speech(known[source.video_id], source)
        return [
            event
            for start, end, text in transcribe(
                sound, stretches, transcriber=transcriber, chunk_seconds=chunk_seconds
            )
            for event in _event(source, TRANSCRIPT, start, end, text=text)
        ]

    return _listen_to(cache, sources, listen=listen, progress=progress)


def join_speech(speech: Iterable[Event], source: VideoSource) -> list[Span]:
    """Speech with its short pauses and a little around it, in seconds from the video's origin."""
    joined: list[Span] = []
    for event in speech:
        start = max(0.0, event.start_seconds - source.origin_seconds - PAD_SECONDS)
        end = min(source.seconds, event.end_seconds - source.origin_seconds + PAD_SECONDS)
        if joined and start <= joined[-1][1] + JOIN_SECONDS:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif start < end:
            joined.append((start, end))
    return joined


def transcribe(
    sound: Iterator[Sound],
    stretches: Iterable[Span],
    *,
    transcriber: Transcriber,
    chunk_seconds: int,
) -> Iterator[tuple[float, float, str]]:
    """(start, end, text) of stretches of sound, which follow each other in time.

    What a chunk's end may have cut off is heard again with the next chunk.
    """
    held = _Held(sound)
    for start, stop in stretches:
        at = start
        while at < stop:
            end = min(at + chunk_seconds, stop)
            said = transcriber.transcribe(held.take(at, end))
            then = end
            # Always on by half a chunk, whatever a model says.
            if end < stop and len(said) > 1 and said[-2][1] >= chunk_seconds / 2:
                said = said[:-1]
                then = at + said[-1][1]
            yield from ((at + begin, at + over, text) for begin, over, text in said)
            at = then


class _Held:
    """Of a sound that comes a second at a time, what may still be asked for."""

    def __init__(self, sound: Iterator[Sound]) -> None:
        self._sound = sound
        self._samples = np.zeros(0, np.float32)
        self._first = 0
        """Which sample of the sound the first one is."""

    def take(self, start_seconds: float, end_seconds: float) -> Sound:
        """[start, end) seconds; starts only grow."""
        first, stop = round(start_seconds * RATE), round(end_seconds * RATE)
        self._drop(first)
        parts = [self._samples]
        num_held = len(self._samples)
        while self._first + num_held < stop:
            more = next(self._sound, None)
            if more is None:
                break
            parts.append(more)
            num_held += len(more)
            if self._first + num_held <= first:  # passed over, never kept
                self._first += num_held
                parts, num_held = [], 0
        self._samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
        self._drop(first)
        return self._samples[: stop - first]

    def _drop(self, first: int) -> None:
        num_passed = min(max(0, first - self._first), len(self._samples))
        self._samples = self._samples[num_passed:]
        self._first += num_passed


def _listen_to(
    cache: FeatureCache,
    sources: Sequence[VideoSource],
    *,
    listen: Listen,
    progress: Callable[[float], None],
) -> Iterator[Found]:
    heard = [one for one in sources if one.piece.has_audio and one.seconds > 0]
    limits = cache.recipe.limits
    with (
        Fetcher([one.piece for one in heard], scratch=cache.layout.scratch) as files,
        DecoderProcess(limits) as process,
    ):
        for source in sources:
            piece = source.piece
            if not piece.has_audio or source.seconds <= 0:
                progress(source.seconds)
                yield source.video_id, []
                continue
            try:
                path = files.path(piece)
                state = size_and_time(path)
                try:
                    with contextlib.closing(_sound(source, path, process, progress)) as sound:
                        events = listen(source, sound)
                except VideoError as error:
                    check_unchanged(path, state, cause=error)
                    raise
                check_unchanged(path, state)
            except VideoError as error:
                yield source.video_id, error
            else:
                yield source.video_id, events
            finally:
                files.release(piece)


def _sound(
    source: VideoSource, path: str, process: DecoderProcess, progress: Callable[[float], None]
) -> Generator[Sound, None, None]:
    windows = decode_sound(
        path,
        origin_seconds=source.origin_seconds,
        num_windows=math.ceil(source.seconds),
        rate=RATE,
        in_order=not source.piece.times_go_back,
        limits=process.limits,
        process=process,
    )
    for window in windows:
        yield window.samples
        progress(1.0)


def _event(
    source: VideoSource,
    kind: str,
    start: float,
    end: float,
    *,
    text: str = "",
    score: float | None = None,
) -> Iterator[Event]:
    # The sound may go on when the pictures are over, which is no part of the video.
    begin = source.origin_seconds + start
    over = min(source.origin_seconds + end, source.end_seconds)
    if begin < over:
        yield Event(
            video_id=source.video_id,
            start_seconds=round(begin, 6),
            end_seconds=round(over, 6),
            kind=kind,
            text=text,
            score=score,
        )
