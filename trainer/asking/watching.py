"""Watch a video file: encode it as the model's caches were, by the functions of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from encoders import Runtime
from encoders.devices import prepare_cpu
from pipeline.cache import FeatureCache
from pipeline.encoding import as_stamped, load_encoders, with_weights
from pipeline.encoding_video import encode_video, find_video
from pipeline.events import list_kinds, write_events
from pipeline.finding_events import (
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
from schemas.errors import UsageError
from schemas.recipe import Recipe
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


def find_events_for(
    preprocessing: Preprocessing,
    cache: FeatureCache,
    *,
    files: Sequence[Path] = (),
    transcripts: str | None = None,
    device: str = "cpu",
) -> None:
    """Make the events that a model reads, of a cache of one video, as they were made in training.

    `files` are events of the user, of the kinds that were imported in training; `transcripts` is
    the folder of the Whisper model. UsageError: one of them, or a package, is missing.
    FingerprintMismatch: what would be made is not what the model was trained with.
    """
    makers = preprocessing.events
    imported = [kind for kind, maker in makers.items() if maker == IMPORTED]
    if bool(imported) != bool(files):
        kinds = ", ".join(makers) or "none"
        what = f"with events of yours ({', '.join(imported)})" if imported else "without such"
        raise UsageError(
            f"the model was trained {what}, its events are: {kinds}",
            hint="give them with --events FILE" if imported else "leave --events out",
        )
    (video_id,) = cache.videos
    if files:
        kind = imported[0]
        events = [e for f in files for e in import_events(cache, f, kind=kind, video=video_id)]
        add_imported(cache, [event for event in events if event.kind in imported])
        for kind in set(imported) - set(list_kinds(cache.layout)):
            write_events(cache.layout, kind=kind, events=[], made_by=IMPORTED)
    made = {kind: maker for kind, maker in makers.items() if kind not in imported}
    only_speech = bool(made.get(TRANSCRIPT, {}).get("only_speech"))
    detectors: list[Detector] = []
    if SCENE in made:
        detectors.append(scene_detector(device=device))
    if SPEECH in made or only_speech:
        detectors.append(speech_detector())
    if TRANSCRIPT in made:
        if transcripts is None:
            raise UsageError(
                "the model was trained with transcripts, which a Whisper model has to make",
                hint="name the folder of the same one with --transcripts FOLDER, or ask about a"
                " video of a cache with --features",
            )
        language = str(made[TRANSCRIPT].get("language", ""))
        detectors.append(
            transcript_detector(
                transcripts, device=device, language=language, only_speech=only_speech
            )
        )
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
