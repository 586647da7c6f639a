"""chat_template_of: a tokenizer's own way to render a conversation gives the renderer's ids."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.annotation import Message, Role
from trainer.data.rendering import Renderer
from trainer.data.template import TEMPLATES
from trainer.model.chat_template import chat_template_of
from trainer.model.language import load_tokenizer, make_renderer
from trainer.model_spec import TimeSpec

SPECIALS = [
    *("<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>"),
    *("<|start_header_id|>", "<|end_header_id|>"),
]
ROLES: list[Role] = ["system", "user", "assistant", "tool"]


@functools.cache
def tokenizer() -> Any:
    tokenizer = load_tokenizer("tiny")
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIALS})
    return tokenizer


@functools.cache
def renderer(name: str, system: str) -> Renderer:
    return make_renderer(
        tokenizer(), template=name, time=TimeSpec(), tokens_per_clip=1, system=system
    )


@pytest.mark.parametrize("name", TEMPLATES)
@given(
    turns=st.lists(
        st.tuples(st.sampled_from(ROLES), st.text(st.characters(codec="utf-8"), max_size=12)),
        min_size=1,
        max_size=4,
    ),
    system=st.sampled_from(["", 'Say "it"\nin {% short %} words\\.']),
)
def test_ids_are_those_of_the_renderer(
    name: str, turns: list[tuple[Role, str]], system: str
) -> None:
    ours = renderer(name, system)
    messages = [Message.of(role, text) for role, text in turns]
    told = [{"role": role, "content": text} for role, text in turns]
    template = chat_template_of(ours.template, system=system)
    for opens in (True, False):
        text = tokenizer().apply_chat_template(
            told, chat_template=template, add_generation_prompt=opens, tokenize=False
        )
        found = tokenizer()(text, add_special_tokens=False)["input_ids"]
        expected = ours.render_messages(messages, view=None, opens_answer=opens)
        assert found == expected.ids_L.tolist()


def test_content_in_parts_is_joined() -> None:
    ours = renderer("chatml", "")
    parts = [{"type": "text", "text": "Is it "}, {"type": "text", "text": "red?"}]
    text = tokenizer().apply_chat_template(
        [{"role": "user", "content": parts}],
        chat_template=chat_template_of(ours.template, system=""),
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == "<|im_start|>user\nIs it red?<|im_end|>\n<|im_start|>assistant\n"
