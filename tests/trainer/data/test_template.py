"""Which template a tokenizer gets."""

from __future__ import annotations

import pytest

from schemas.errors import ConfigError
from trainer.data.template import TEMPLATES, choose_template

SIGNS = {"chatml": "<|im_start|>", "llama3": "<|start_header_id|>", "tags": "<q>"}


@pytest.mark.parametrize(("name", "sign"), SIGNS.items())
def test_auto_is_the_one_whose_tokens_are_known(name: str, sign: str) -> None:
    assert choose_template("auto", knows={sign}.__contains__) is TEMPLATES[name]
    assert choose_template(name, knows={sign}.__contains__) is TEMPLATES[name]


def test_auto_without_any_token_is_plain() -> None:
    assert choose_template("auto", knows=lambda _: False) is TEMPLATES["plain"]


def test_auto_takes_chatml_where_several_would_do() -> None:
    assert choose_template("auto", knows=lambda _: True) is TEMPLATES["chatml"]


def test_plain_needs_no_token() -> None:
    assert choose_template("plain", knows=lambda _: False) is TEMPLATES["plain"]


@pytest.mark.parametrize(("name", "sign"), SIGNS.items())
def test_one_whose_tokens_are_not_known_is_refused(name: str, sign: str) -> None:
    others = set(SIGNS.values()) - {sign}
    with pytest.raises(ConfigError) as caught:
        choose_template(name, knows=others.__contains__)
    assert f"{name!r}: the tokenizer has no token {sign}" in caught.value.message
    assert "auto" in caught.value.hint


def test_every_role_has_a_begin() -> None:
    for name, template in TEMPLATES.items():
        assert template.name == name
        assert template.before.keys() == {"system", "user", "assistant", "tool"}
