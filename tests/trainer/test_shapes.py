"""The data of the learning proof: scenes, files, cache, questions, and what the blind can reach."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shapes import Task, make_scene, make_task
from benchmarks.shapes.blind import best_constant_accuracy, best_constant_spans
from benchmarks.shapes.clips import write_clip
from benchmarks.shapes.questions import TYPES, caption_row, question_rows
from benchmarks.shapes.scene import (
    COLORS,
    DIRECTIONS,
    DURATION_SECONDS,
    FPS,
    RATE,
    SIZE,
    render_frames,
    render_sound,
)
from pipeline import open_cache
from schemas.recipe import Recipe

indices = st.integers(0, 100_000)


@given(indices)
def test_two_objects_of_two_colors_one_after_the_other_on_the_grid(index: int) -> None:
    scene = make_scene(0, index)
    assert scene == make_scene(0, index)
    first, second = scene.events
    assert first.color != second.color
    for event in scene.events:
        assert 2 <= event.end_seconds - event.start_seconds <= 4
        assert event.start_seconds * 2 % 1 == event.end_seconds * 2 % 1 == 0
    assert 0.5 <= second.start_seconds - first.end_seconds <= 2
    assert 0 <= first.start_seconds < second.end_seconds <= DURATION_SECONDS
    assert (scene.beeping is not None) == (scene.sound == "beep")


def test_what_is_drawn_is_balanced() -> None:
    scenes = [make_scene(0, index) for index in range(2000)]
    for name, share in (("beep", 0.6), ("quiet", 0.2), ("none", 0.2)):
        assert abs(sum(scene.sound == name for scene in scenes) / 2000 - share) < 0.04
    for field, values in (("color", COLORS), ("direction", DIRECTIONS)):
        counts = Counter(getattr(event, field) for scene in scenes for event in scene.events)
        assert counts.keys() == values.keys()
        assert max(counts.values()) < 1.15 * min(counts.values())


@pytest.mark.parametrize("index", range(6))
def test_an_object_is_seen_while_it_is_there_and_moves_its_way(index: int) -> None:
    scene = make_scene(0, index)
    frames = render_frames(scene)
    assert frames.shape == (DURATION_SECONDS * FPS, SIZE, SIZE, 3)
    for event in scene.events:
        shown = (frames == np.array(COLORS[event.color], np.uint8)).all(axis=-1)
        times = np.flatnonzero(shown.any(axis=(1, 2))) / FPS
        assert (times[0], times[-1]) == (event.start_seconds, event.end_seconds - 1 / FPS)
        first = round(event.start_seconds * FPS)
        turns = np.exp(2j * np.pi * np.arange(SIZE) / SIZE)
        middles = [
            (shown[n].sum(axis=0) @ turns, shown[n].sum(axis=1) @ turns) for n in (first, first + 4)
        ]
        # How far it went between two samples, on a picture whose opposite sides touch.
        moved = np.angle(np.array(middles[1]) / np.array(middles[0])) * SIZE / (2 * np.pi)
        expected = np.array(DIRECTIONS[event.direction]) * event.speed / 2
        np.testing.assert_allclose(moved, expected, atol=0.7)


def test_the_tone_lasts_as_long_as_its_object() -> None:
    scene = next(s for s in (make_scene(0, index) for index in range(50)) if s.sound == "beep")
    samples = render_sound(scene)
    assert samples is not None and scene.beeping is not None
    event = scene.events[scene.beeping]
    loudness = np.abs(samples).reshape(-1, RATE // 2).mean(axis=1)
    heard = np.flatnonzero(loudness > 0.05) / 2
    assert (heard[0], heard[-1] + 0.5) == (event.start_seconds, event.end_seconds)


@pytest.mark.parametrize("sound", ["beep", "none"])
def test_a_file_holds_the_scene(sound: str, tmp_path: Path) -> None:
    scene = next(s for s in (make_scene(0, index) for index in range(50)) if s.sound == sound)
    write_clip(scene, tmp_path / "clip.mp4")
    with av.open(str(tmp_path / "clip.mp4")) as container:
        assert len(container.streams.audio) == (sound == "beep")
        frames = list(container.decode(video=0))
    assert [frame.time for frame in frames] == [n / FPS for n in range(len(frames))]
    found = np.stack([frame.to_ndarray(format="rgb24") for frame in frames]).astype(int)
    assert np.abs(found - render_frames(scene)).mean() < 6


@given(indices)
def test_answers_are_what_happens(index: int) -> None:
    scene = make_scene(0, index)
    rows = question_rows(scene)
    assert {row["meta"]["type"] for row in rows} == set(TYPES)
    assert len({row["id"] for row in rows}) == len(rows)
    named = {"first": scene.events[0], "second": scene.events[1]}
    for row in rows:
        question, answer = row["meta"]["question"], row["meta"]["answer"]
        assert [m["role"] for m in row["messages"]] == ["user", "assistant"]
        assert row["messages"][1]["content"] == answer
        about = [event for ordinal, event in named.items() if f" {ordinal} object" in question]
        match row["meta"]["type"]:
            case "order":
                assert answer == scene.events[0].color
                assert all(event.color in question for event in scene.events)
            case "color":
                assert answer == about[0].color
            case "direction":
                assert answer == about[0].direction
            case "time":
                start, end = map(float, answer.split(" to "))
                assert [start, end] == [about[0].start_seconds, about[0].end_seconds]
                assert row["answer_spans"] == [[start, end]]
            case "beep" if question == "Is there a beep?":
                assert answer == ("no" if scene.beeping is None else "yes")
            case "beep":
                assert scene.beeping is not None
                assert answer == ("first", "second")[scene.beeping]


@given(indices)
def test_captions_together_tell_both_events(index: int) -> None:
    scene = make_scene(0, index)
    messages = caption_row(scene)["messages"]
    spans = [message["content"][0]["span"] for message in messages[::2]]
    assert spans == [[2.0 * i, 2.0 * i + 2] for i in range(8)]
    told: dict[str, list[float]] = {}
    for (start, end), message in zip(spans, messages[1::2], strict=True):
        for part in message["content"].split(", "):
            if part == "nothing":
                continue
            color, direction, first, _, last = part.split()
            assert start <= float(first) < float(last) <= end
            told.setdefault(f"{color} {direction}", []).extend([float(first), float(last)])
    assert {name: (min(times), max(times)) for name, times in told.items()} == {
        f"{event.color} {event.direction}": (event.start_seconds, event.end_seconds)
        for event in scene.events
    }


def test_the_blind_cannot_do_much() -> None:
    rows = [row for index in range(1000) for row in question_rows(make_scene(0, index))]
    by_type = {name: [row for row in rows if row["meta"]["type"] == name] for name in TYPES}
    bounds = {name: best_constant_accuracy(by_type[name]) for name in TYPES}
    assert 0.5 <= bounds["order"] < 0.55
    assert 0.5 <= bounds["beep"] < 0.55
    assert 0.25 <= bounds["color"] < 0.30
    assert 0.25 <= bounds["direction"] < 0.30
    times = best_constant_spans(by_type["time"])
    assert 0.2 < times.mean_iou < 0.35
    assert 0.4 < times.recall_03 < 0.62
    assert 0.15 < times.recall_05 < 0.33


def test_bounds_of_known_answers() -> None:
    def row(question: str, answer: str, span: tuple[float, float] = (0, 1)) -> dict[str, object]:
        return {"meta": {"question": question, "answer": answer}, "answer_spans": [list(span)]}

    named = [row("Which, red or blue?", "red"), row("Which, blue or red?", "blue")]
    assert best_constant_accuracy(named) == 1.0
    assert best_constant_accuracy([*named, row("Which, blue or red?", "red")]) == 2 / 3
    assert best_constant_accuracy([row("A?", "x"), row("A?", "y"), row("B?", "y")]) == 2 / 3
    same = [row("When?", "", (2, 4)), row("When?", "", (2, 4)), row("When?", "", (10, 12))]
    bounds = best_constant_spans(same)
    assert (bounds.recall_03, bounds.recall_05) == (2 / 3, 2 / 3)
    assert bounds.mean_iou == pytest.approx(2 / 3)


def test_a_task_is_a_cache_of_its_videos_and_rows_about_them(shapes: Task) -> None:
    everyone = [scene.video_id for split in ("train", "test") for scene in shapes.scenes(split)]
    assert len(everyone) == len(set(everyone)) == 240
    with open_cache(str(shapes.cache)) as cache:
        assert sorted(cache.videos) == sorted(everyone)
        assert list(cache.recipe.streams) == list(Recipe.load(str(shapes.recipe)).streams)
        for video_id in everyone[::20]:
            samples = list(cache.video(video_id))
            assert len(samples) == 8
            times = np.concatenate([sample.times[:, 0] for sample in samples])
            np.testing.assert_allclose(times, np.arange(32) / 2)
    for split in ("train", "test"):
        ids = {scene.video_id for scene in shapes.scenes(split)}
        for path in (shapes.captions(split), shapes.questions(split)):
            rows = map(json.loads, path.read_text().splitlines())
            assert {row["video"] for row in rows} == ids


def test_features_of_the_cache_tell_when_there_is_a_beep_and_which_way_things_move(
    shapes: Task,
) -> None:
    with open_cache(str(shapes.cache)) as cache:
        for scene in shapes.scenes("test")[:8]:
            samples = list(cache.video(scene.video_id))
            motion = np.concatenate([sample.features["motion"] for sample in samples])
            for event in scene.events:
                seen = slice(round(event.start_seconds * 2) + 1, round(event.end_seconds * 2))
                across, down = motion[seen].reshape(-1, 4, 4).sum(axis=(0, 2))[:2]
                dx, dy = DIRECTIONS[event.direction]
                assert across * dx + down * dy > 2 * abs(across * dy + down * dx)
            masks = np.concatenate([sample.audio_mask for sample in samples])
            assert masks.all() if scene.sound != "none" else not masks.any()


def test_what_is_there_is_kept_and_another_task_is_refused(shapes: Task) -> None:
    before = {path: path.stat().st_mtime_ns for path in shapes.folder.rglob("*") if path.is_file()}
    assert make_task(shapes.folder, num_train=200, num_test=40) == shapes
    assert before == {p: p.stat().st_mtime_ns for p in shapes.folder.rglob("*") if p.is_file()}
    with pytest.raises(RuntimeError, match="has another task"):
        make_task(shapes.folder, num_train=4, num_test=40)


def test_the_language_model_is_a_folder_of_transformers(shapes: Task) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(shapes.lm)
    model = AutoModelForCausalLM.from_pretrained(shapes.lm)
    assert len(tokenizer) == model.config.vocab_size <= 370
    assert tokenizer.convert_tokens_to_ids(["<pad>", "<eos>", "<video>", "<q>", "<a>"]) == [
        *range(5)
    ]
    for text in ("When is it? 2.0 to 12.5", "naïve 東\n\t ", "<q>red<a>blue<eos>"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert len(tokenizer("12.5").input_ids) == 4
    assert model.get_input_embeddings().weight.std().item() == pytest.approx(0.1, rel=0.05)
    assert model.lm_head.weight is model.get_input_embeddings().weight
