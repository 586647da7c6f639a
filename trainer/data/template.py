"""Template: the text around the turns of a conversation, as a language model knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from schemas.errors import ConfigError
from trainer.data.annotation import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Text before and after a turn; the `stop` after a supervised turn is supervised too."""

    name: str
    before: dict[Role, str]
    stop: str
    """Ends a turn; empty: the tokenizer's end of text."""
    after: str = ""
    """Between turns, said by nobody."""
    begin: str = ""
    """Before the first turn."""


_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")

CHATML = Template(
    name="chatml",
    before={role: f"<|im_start|>{role}\n" for role in _ROLES},
    stop="<|im_end|>",
    after="\n",
)
"""Qwen 2, 2.5 and 3, SmolLM2 and others."""
LLAMA3 = Template(
    name="llama3",
    before={role: f"<|start_header_id|>{role}<|end_header_id|>\n\n" for role in _ROLES},
    stop="<|eot_id|>",
    begin="<|begin_of_text|>",
)
TAGS = Template(
    name="tags", before={"system": "", "user": "<q>", "assistant": "<a>", "tool": "<q>"}, stop=""
)
"""For tokenizers that have one token for a question and one for an answer."""
PLAIN = Template(
    name="plain",
    before={"system": "", "user": "User: ", "assistant": "Assistant: ", "tool": "Tool: "},
    stop="",
    after="\n",
)
"""For language models without turns."""
TEMPLATES = {one.name: one for one in (CHATML, LLAMA3, TAGS, PLAIN)}
_SIGNS = (("<|im_start|>", CHATML), ("<|start_header_id|>", LLAMA3), ("<q>", TAGS))


def choose_template(name: str, *, knows: Callable[[str], bool]) -> Template:
    """The template of that name; `auto`: the one whose tokens the tokenizer `knows`.

    ConfigError: it does not know the tokens of the one that was named.
    """
    if name == "auto":
        return next((template for sign, template in _SIGNS if knows(sign)), PLAIN)
    template = TEMPLATES[name]
    for sign, needs in _SIGNS:
        if needs is template and not knows(sign):
            raise ConfigError(
                f"model.template = {name!r}: the tokenizer has no token {sign}",
                hint="use another template, or auto",
            )
    return template
