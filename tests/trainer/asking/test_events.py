"""Events as text: what a model reads in training, it reads when it is asked, or is not asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cache import open_cache
from pipeline.events import NOTHING_FOUND, write_events
from pipeline.importing_events import add_imported
from schemas.errors import AnnotationError, ConfigError, FingerprintMismatch, UsageError
from schemas.event import Event
from tests.trainer.asking.asked_runs import CONFIG, FROZEN, merged
from trainer.asking.viewing import Viewer
from trainer.asking.watching import event_detectors
from trainer.cli import call
from trainer.config import TrainConfig
from trainer.data.annotation import Message
from trainer.data.rendering import Renderer
from trainer.data.template import PLAIN
from trainer.data.video_view import VideoView
from trainer.learning.exporting import export_run
from trainer.learning.training import TrainingRun
from trainer.model.model_folder import open_model
from trainer.model_spec import TimeSpec

SRT = "1\n00:00:00,500 --> 00:00:01,500\nA bell\n\n2\n00:00:03,000 --> 00:00:04,000\nA dog\n"


def event(start: float, end: float, kind: str = "caption", text: str = "a") -> Event:
    return Event(video_id="v", start_seconds=start, end_seconds=end, kind=kind, text=text)


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def rendered(*events: Event, tokens: int = 1000, since: float = 0.0, kinds=("caption", "scene")):
    renderer = Renderer(
        template=PLAIN,
        tokenize=letters,
        tokenize_content=letters,
        end_id=0,
        time=TimeSpec(),
        tokens_per_clip=1,
        event_kinds=tuple(kinds),
        event_tokens=tokens,
    )
    starts = 10.0 + 2.0 * np.arange(3)
    view = VideoView(
        video_id="v",
        rows=np.zeros((3, 4), np.int64),
        frames=np.zeros((3, 4), np.int64),
        start_seconds=starts,
        end_seconds=starts + 2,
        events=tuple(events),
    )
    row = renderer.render_prompt([Message.of("user", "What?")], view=view.since(since))
    return row, "".join(map(chr, row.ids_L)).replace("\0", "#")


def test_events_come_after_the_clips_in_order_of_time() -> None:
    row, text = rendered(
        event(11, 12.25, text="say  a\nword"),
        event(0, 10, text="before"),
        event(9, 10.5, "scene", text=""),
        event(16, 20, text="after"),
        event(12, 13, "other"),
    )
    assert text == (
        "User: 10.0-12.0 seconds: #\n12.0-14.0 seconds: #\n14.0-16.0 seconds: #"
        "\nscene 9.0-10.5 seconds\ncaption 11.0-12.2 seconds: say a word"
        "\nWhat?#\nAssistant: "
    )
    assert (row.num_events, row.num_events_left_out) == (2, 0)


def test_their_clock_is_that_of_the_clips() -> None:
    _, text = rendered(event(11, 12), since=10.0)
    assert "0.0-2.0 seconds: #" in text
    assert "\ncaption 1.0-2.0 seconds: a\n" in text


@given(st.integers(0, 300), st.integers(0, 20), st.integers(0, 20))
def test_they_keep_to_their_room_and_the_first_kind_comes_first(
    room: int, captions: int, scenes: int
) -> None:
    some = [event(10 + i / 4, 10.2 + i / 4) for i in range(captions)]
    more = [event(10 + i / 4, 10.2 + i / 4, "scene", "") for i in range(scenes)]
    row, text = rendered(*some, *more, tokens=room)
    bare, _ = rendered()
    assert len(row) - len(bare) <= room
    assert row.num_events + row.num_events_left_out == captions + scenes
    alone = rendered(*some, tokens=room)[1]
    assert text.count("\ncaption") == alone.count("\ncaption"), "scenes take what is left"


def test_without_kinds_nothing_is_said() -> None:
    assert rendered(event(10, 11), kinds=())[1] == rendered()[1]


@pytest.fixture(scope="module")
def trained(
    cache_path: Path, questions: Path, videos: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    """A model that was trained with captions, its cache, and subtitles of the first video."""
    folder = tmp_path_factory.mktemp("events")
    path = Path(shutil.copytree(cache_path, folder / "cache"))
    (folder / "own.srt").write_text(SRT)
    with open_cache(path) as cache:
        video_id = cache.aliases[str(videos[0])]
        add_imported(
            cache,
            [
                Event(video_id=video_id, start_seconds=a, end_seconds=b, kind="caption", text=t)
                for a, b, t in ((0.5, 1.5, "A bell"), (3.0, 4.0, "A dog"))
            ],
        )
        mapping = merged(CONFIG, {"view": {"events": ["caption"]}})
        mapping |= {"stages": [{"name": "one", **FROZEN}], "data": [{"path": str(questions)}]}
        config = TrainConfig.from_mapping(mapping, overrides=[f"run.out={folder / 'run'}"])
        TrainingRun(config, cache=cache).train()
    model = Path(export_run(folder / "run").model)
    return SimpleNamespace(model=model, cache=path, srt=folder / "own.srt", config=config)


def test_a_raw_video_is_asked_with_the_same_events(
    trained: SimpleNamespace, videos: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    some = ["What is it?", "--json", "--device", "cpu", "--max-new-tokens", "8"]
    for where in (
        [videos[0], *some, "--events", trained.srt],
        [videos[0], *some, "--features", trained.cache],
    ):
        assert call([str(one) for one in ["generate", trained.model, *where]]) == 0
        told.append(json.loads(capsys.readouterr().out))
        told[-1].pop("seconds")
    assert told[0] == told[1]
    model = open_model(trained.model)
    with open_cache(trained.cache) as cache:
        watched = Viewer(model, cache).watch(told[0]["video"])
    row = model.renderer.render_prompt([Message.of("user", "What?")], view=watched.view)
    assert row.num_events == 2
    assert "A bell" in model.tokenizer.decode(row.ids_L)


def test_it_is_never_asked_without_them(trained: SimpleNamespace, cache_path: Path) -> None:
    model = open_model(trained.model)
    with open_cache(cache_path) as cache, pytest.raises(UsageError, match="no events of the kind"):
        Viewer(model, cache)
    with pytest.raises(UsageError, match="trained with events of yours"):
        event_detectors(model.preprocessing)


def test_events_of_another_maker_are_refused(
    trained: SimpleNamespace, tmp_path: Path, videos: list[Path]
) -> None:
    model = open_model(trained.model)
    path = Path(shutil.copytree(trained.cache, tmp_path / "cache"))
    with open_cache(path) as cache:
        write_events(cache.layout, kind="caption", events=[], made_by={"by": "whisper"})
        with pytest.raises(FingerprintMismatch, match=r"import.*whisper"):
            Viewer(model, cache)


def test_a_video_that_no_detector_has_looked_at_is_a_lost_row(
    trained: SimpleNamespace, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(trained.cache, tmp_path / "cache"))
    mapping = trained.config.to_mapping() | {"view": {"events": ["scene"]}}
    mapping["run"] |= {"out": str(tmp_path / "run")}
    with open_cache(path) as cache:
        looked_at = sorted(cache.videos)[1:]
        made_by = {"by": "a test", NOTHING_FOUND: looked_at}
        write_events(cache.layout, kind="scene", events=[], made_by=made_by)
        with pytest.raises(AnnotationError, match="nobody has looked for events"):
            TrainingRun(TrainConfig.from_mapping(mapping), cache=cache).train()


def test_the_config_refuses_what_cannot_be(trained: SimpleNamespace) -> None:
    plain = trained.config.to_mapping()
    assert plain["view"]["events"] == ["caption"]
    without = TrainConfig.from_mapping(plain, overrides=["view.events=[]"])
    assert not any("event" in name for name in without.to_mapping()["view"])
    with pytest.raises(ConfigError, match="times in words"):
        TrainConfig.from_mapping(plain, overrides=["model.time.mode=none"])
    with pytest.raises(ConfigError, match="names a kind twice"):
        TrainConfig.from_mapping(plain, overrides=['view.events=["a", "a"]'])
