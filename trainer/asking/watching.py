"""Watch a video file: encode it as the model's caches were, by the functions of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from encoders import Runtime
from encoders.devices import prepare_cpu
from pipeline.cache import FeatureCache
from pipeline.encoding import as_stamped, load_encoders, with_weights
from pipeline.encoding_video import encode_video, find_video
from pipeline.events import list_kinds, write_events
from pipeline.finding_events import (
    ONLY_SPEECH,
    Detector,
    add_events,
    scene_detector,
    speech_detector,
    transcript_detector,
)
from pipeline.finding_scenes import SCENE
from pipeline.finding_speech import SPEECH, TRANSCRIPT
from pipeline.importing_events import IMPORTED, add_imported, import_events
from pipeline.pool import num_cores
from schemas.errors import FingerprintMismatch, UsageError
from schemas.recipe import Recipe, differing_fields
from trainer.data.annotation import Span
from trainer.preprocessing import Preprocessing


def encode_for(
    preprocessing: Preprocessing,
    where: str,
    *,
    folder: Path,
    span: Span | None = None,
    weights: Sequence[str] = (),
    device: str = "cpu",
) -> FeatureCache:
    """A cache of one video, a path or a URL, in `folder`, with all that a span's view looks at.

    `weights` are as of `with_weights`. UsageError: the video cannot be used. WeightsError,
    DeviceError. FingerprintMismatch: the weights are others than the model was trained with.
    """
    source = find_video(where)
    stamps = preprocessing.stamps
    recipe = with_weights(Recipe.from_mapping(preprocessing.recipe), weights)
    recipe = as_stamped(recipe, stamps)
    if device == "cpu":
        prepare_cpu(num_cores())
    encoders = load_encoders(recipe, stamps=stamps, runtime=Runtime(device=device))
    return encode_video(
        source,
        recipe=recipe,
        stamps=stamps,
        encoders=encoders,
        folder=folder,
        span=None if span is None else _widen(span, preprocessing),
    )


def event_detectors(
    preprocessing: Preprocessing,
    *,
    files: Sequence[Path] = (),
    transcripts: str | None = None,
    device: str = "cpu",
) -> list[Detector]:
    """What finds the events that a model reads, as they were found in training; nothing is loaded.

    `files` are events of the user, of the kinds that were imported in training; `transcripts` is
    the folder of the Whisper model. UsageError: one of them, or a package, is missing, or nothing
    here can make a kind. WeightsError: the folder holds no model. FingerprintMismatch: what would
    be made is not what the model was trained with.
    """
    makers = preprocessing.events
    imported = _imported(preprocessing)
    if bool(imported) != bool(files):
        kinds = ", ".join(makers) or "none"
        what = f"with events of yours ({', '.join(imported)})" if imported else "without such"
        raise UsageError(
            f"the model was trained {what}, its events are: {kinds}",
            hint="give them with --events FILE" if imported else "leave --events out",
        )
    made = {kind: maker for kind, maker in makers.items() if kind not in imported}
    if transcripts is not None and TRANSCRIPT not in made:
        raise UsageError(
            "the model was trained without transcripts of a Whisper model, its events are:"
            f" {', '.join(makers) or 'none'}",
            hint="leave --transcripts out",
        )
    only_speech = bool(made.get(TRANSCRIPT, {}).get(ONLY_SPEECH))
    detectors: list[Detector] = []
    if SCENE in made:
        detectors.append(scene_detector(device=device))
    if SPEECH in made or (only_speech and SPEECH not in imported):
        detectors.append(speech_detector())
    if TRANSCRIPT in made:
        if transcripts is None:
            raise UsageError(
                "the model was trained with transcripts, which a Whisper model has to make",
                hint="name the folder of the same one with --transcripts FOLDER, or ask about a"
                " video of a cache with --features",
            )
        found = {one.kind: one.made_by for one in detectors}
        speech = IMPORTED if SPEECH in imported else found.get(SPEECH)
        language = str(made[TRANSCRIPT].get("language", ""))
        detectors.append(
            transcript_detector(
                transcripts,
                device=device,
                language=language,
                speech=speech if only_speech else None,
            )
        )
    _require_makers(made, {one.kind: one.made_by for one in detectors})
    return detectors


def _imported(preprocessing: Preprocessing) -> list[str]:
    return [kind for kind, maker in preprocessing.events.items() if maker == IMPORTED]


def _require_makers(
    trained: Mapping[str, Mapping[str, Any]], here: Mapping[str, Mapping[str, Any]]
) -> None:
    # Before a video is looked at, which may take minutes.
    unknown = {kind: maker for kind, maker in trained.items() if kind not in here}
    for kind, maker in unknown.items():
        raise UsageError(
            f"the model was trained with events of the kind {kind!r}, made by"
            f" {maker.get('by', 'nobody knows what')}: nothing here finds them in a video",
            hint="ask about a video of a cache that has them, with --features",
        )
    found = {kind: dict(here[kind]) for kind in trained}
    if found != trained:
        raise FingerprintMismatch(
            "the events would not be those that the model was trained with (model -> here):"
            f" {'; '.join(differing_fields(trained, found))}",
            hint="install the version and name the Whisper model of then; or ask about a video of"
            " a cache, with --features",
        )


def find_events_for(
    preprocessing: Preprocessing,
    cache: FeatureCache,
    *,
    detectors: Sequence[Detector],
    files: Sequence[Path] = (),
) -> None:
    """Make the events that a model reads, of a cache of one video, by the `event_detectors`.

    UsageError: a file is no list of events, or a detector cannot look at the video; says why.
    """
    (video_id,) = cache.videos
    imported = _imported(preprocessing)
    if files:
        kind = imported[0]
        events = [e for f in files for e in import_events(cache, f, kind=kind, video=video_id)]
        add_imported(cache, [event for event in events if event.kind in imported])
        for kind in set(imported) - set(list_kinds(cache.layout)):
            write_events(cache.layout, kind=kind, events=[], made_by=IMPORTED)
    for detector in detectors:
        report = add_events(cache, detector)
        for why in report.failed.values():
            raise UsageError(f"events of the kind {detector.kind} cannot be found: {why}")
    preprocessing.require_events(cache)


def _widen(span: Span, preprocessing: Preprocessing) -> Span:
    # A clip of the view is whole, and may have frames of several clips of the cache.
    view, shape = preprocessing.view, preprocessing.shape
    seconds = shape.frames_per_clip / shape.fps
    seconds += preprocessing.frames_per_clip / (view.fps or shape.fps)
    return span[0] - seconds, span[1] + seconds
