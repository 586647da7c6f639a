"""Find events in the videos of a cache, and keep them in its tables; only what is not there yet.

A detector says at once what it is made by, and is loaded when there is a video to look at.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.cache import FeatureCache
from pipeline.events import NOTHING_FOUND, list_kinds, read_events, read_maker, write_events
from pipeline.finding_scenes import SCENE, Found, find_scenes
from pipeline.finding_speech import SPEECH, TRANSCRIPT, find_speech, find_transcripts
from pipeline.video_sources import VideoSource, video_sources
from schemas.errors import UsageError, VideoError
from schemas.event import Event
from schemas.recipe import differing_fields

ONLY_SPEECH = "only_speech"
"""In `made_by` of transcripts: what found the speech that alone was transcribed, or False."""
WRITE_SECONDS = 60.0
"""What a kill may cost; an interrupt costs nothing but the video in hand."""
Progress = Callable[[str, float, float], None]
"""Told the kind, and how many seconds of how many of video are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """What finds events of one kind."""

    kind: str
    made_by: Mapping[str, Any]
    """JSON-ready; a table holds what one and the same maker has found."""
    find: Callable[[FeatureCache, Sequence[VideoSource], Callable[[float], None]], Iterator[Found]]


@dataclass(slots=True, kw_only=True)
class KindReport:
    """What came of one kind."""

    kind: str
    num_before: int
    """Videos that were in the table."""
    num_videos: int = 0
    """That were looked at now."""
    num_events: int = 0
    """That were found in them."""
    failed: dict[str, str] = field(default_factory=dict)
    """video_id -> why it could not be looked at."""

    @property
    def reasons(self) -> dict[str, int]:
        """Reason as of rejects -> videos."""
        return dict(Counter(why.partition(":")[0] for why in self.failed.values()))


def scene_detector(*, device: str) -> Detector:
    """TransNetV2. UsageError: its package is not installed."""
    from encoders.shots import PICTURE, THRESHOLD, ShotDetector

    shots = ShotDetector(device)

    def find(
        cache: FeatureCache, sources: Sequence[VideoSource], progress: Callable[[float], None]
    ) -> Iterator[Found]:
        return find_scenes(
            cache,
            sources,
            detector=shots,
            picture=PICTURE,
            threshold=THRESHOLD,
            progress=progress,
        )

    return Detector(kind=SCENE, made_by=shots.made_by, find=find)


def speech_detector() -> Detector:
    """Silero VAD. UsageError: its package is not installed."""
    from encoders.voice import VoiceDetector

    voice = VoiceDetector()

    def find(
        cache: FeatureCache, sources: Sequence[VideoSource], progress: Callable[[float], None]
    ) -> Iterator[Found]:
        return find_speech(cache, sources, detector=voice, progress=progress)

    return Detector(kind=SPEECH, made_by=voice.made_by, find=find)


def transcript_detector(
    folder: str,
    *,
    device: str,
    language: str = "",
    speech: Mapping[str, Any] | None = None,
) -> Detector:
    """A Whisper model of transformers.

    `speech` is what the cache's table of speech was made by: only that is transcribed then, of
    videos that were looked at for it; the others wait. WeightsError, UsageError as of
    `Transcriber`.
    """
    from encoders.transcribing import CHUNK_SECONDS, Transcriber

    transcriber = Transcriber(folder, device=device, language=language)
    made_by = {**transcriber.made_by, ONLY_SPEECH: False if speech is None else dict(speech)}

    def find(
        cache: FeatureCache, sources: Sequence[VideoSource], progress: Callable[[float], None]
    ) -> Iterator[Found]:
        known = None
        if speech is not None:
            known = _known(cache, SPEECH)[0]
            if read_maker(cache.layout, kind=SPEECH)[1] is not None:
                sources = [source for source in sources if source.video_id in known]
        return find_transcripts(
            cache,
            sources,
            transcriber=transcriber,
            chunk_seconds=CHUNK_SECONDS,
            speech=known,
            progress=progress,
        )

    return Detector(kind=TRANSCRIPT, made_by=made_by, find=find)


def add_events(
    cache: FeatureCache,
    detector: Detector,
    *,
    again: bool = False,
    progress: Progress = lambda *_: None,
) -> KindReport:
    """Look at the videos that the table of a kind lacks, or at all of them `again`.

    What is found is kept whatever ends it. A video whose file is away or cannot be decoded is
    reported, and looked at by the next call; what is known of it stays. UsageError: the table was
    made otherwise, and it is not to be made `again`. StorageError.
    """
    kind = detector.kind
    known, maker = _known(cache, kind)
    if maker not in (None, dict(detector.made_by)):
        known = {}
        fields = "; ".join(differing_fields(maker, dict(detector.made_by)))
        if not again:
            raise UsageError(
                f"{cache.layout.events_of(kind)} was made otherwise ({fields})",
                hint="make it anew for all videos with --again",
            )
    report = KindReport(kind=kind, num_before=sum(one in cache.videos for one in known))
    missing = [video_id for video_id in cache.videos if again or video_id not in known]
    sources = video_sources(cache, video_ids=missing)
    total = sum(source.seconds for source in sources)
    done = 0.0

    def count(seconds: float) -> None:
        nonlocal done
        done = min(total, done + seconds)
        progress(kind, done, total)

    wrote, is_kept = time.monotonic(), True
    try:
        for video_id, found in detector.find(cache, sources, count) if sources else ():
            if isinstance(found, VideoError):
                report.failed[video_id] = found.message
                continue
            known[video_id], is_kept = found, False
            report.num_videos += 1
            report.num_events += len(found)
            if time.monotonic() - wrote > WRITE_SECONDS:
                _keep(cache, detector, known)
                wrote, is_kept = time.monotonic(), True
    finally:
        if not is_kept:
            _keep(cache, detector, known)
    return report


def not_looked_at(cache: FeatureCache, *, kind: str) -> list[str]:
    """Videos that the detector of a kind has not looked at; none where no detector's table is."""
    if kind not in list_kinds(cache.layout) or read_maker(cache.layout, kind=kind)[1] is None:
        return []
    known, _ = _known(cache, kind)
    return [video_id for video_id in cache.videos if video_id not in known]


def _known(cache: FeatureCache, kind: str) -> tuple[dict[str, list[Event]], dict[str, Any] | None]:
    """(video_id -> its events, of all that were looked at; who made the table, None: nobody)."""
    if kind not in list_kinds(cache.layout):
        return {}, None
    maker, in_vain = read_maker(cache.layout, kind=kind)
    known: dict[str, list[Event]] = {video_id: [] for video_id in in_vain or ()}
    return known | read_events(cache.layout, kinds=[kind]), maker


def _keep(cache: FeatureCache, detector: Detector, known: Mapping[str, Sequence[Event]]) -> None:
    in_vain = sorted(video_id for video_id, events in known.items() if not events)
    write_events(
        cache.layout,
        kind=detector.kind,
        events=[event for events in known.values() for event in events],
        made_by={**detector.made_by, NOTHING_FOUND: in_vain},
    )
