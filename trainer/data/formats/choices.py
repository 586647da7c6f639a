"""Choices: questions with options, of which one is right; the answer that is learned is its letter.

Files say the right one by its letter, its text or its number; a whole file does so in one way.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.data.annotation import Message, VideoPart
from trainer.data.formats.row import Row, shown

LETTERS = string.ascii_uppercase
CHOICE_PROMPT = "{question}\n{options}\nAnswer with the letter of the right option."
_LETTERED = re.compile(r"\s*\(?([A-Za-z])\s?[.):](?:\s+|$)(.*)", re.DOTALL)
"""A. text, A) text, (A) text, A: text"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A row as far as it is known before its file's way of saying answers is."""

    row: Row
    question: str
    options: tuple[str, ...]
    answer_field: str | None
    """None: there is no answer."""

    @property
    def readings(self) -> dict[str, int]:
        """Way of saying an answer -> the option that this row's answer says so."""
        assert self.answer_field is not None
        answer, found = self.row.fields[self.answer_field], {}
        if isinstance(answer, int) and not isinstance(answer, bool):
            return {"number": answer} if 0 <= answer < len(self.options) else {}
        if not isinstance(answer, str):
            return {}
        text = answer.strip()
        lettered = _LETTERED.fullmatch(text)
        letter = lettered[1] if lettered else text
        place = LETTERS.find(letter.upper()) if len(letter) == 1 else -1
        says_so = lettered is None or lettered[2].strip() in ("", *self.options[place : place + 1])
        if 0 <= place < len(self.options) and says_so:
            found["letter"] = place
        if text in self.options:
            found["text"] = self.options.index(text)
        if text.isdecimal() and int(text) < len(self.options):
            found["number"] = int(text)
        return found


def settle(questions: Sequence[Question], *, path: str) -> list[int | None]:
    """The right option of each question; None where the row has no answer.

    AnnotationError: an answer is none of the options, or letters, texts and numbers can all be
    meant and say different things.
    """
    readings = [one.readings if one.answer_field else None for one in questions]
    for one, reading in zip(questions, readings, strict=True):
        if reading == {}:
            assert one.answer_field is not None
            answer = one.row.fields[one.answer_field]
            raise one.row.error(
                one.answer_field,
                f"{shown(answer)} is none of the {len(one.options)} options,"
                " neither by its letter nor its text nor its number from 0",
            )
    answered = [reading for reading in readings if reading is not None]
    ways = [way for way in ("letter", "text", "number") if all(way in one for one in answered)]
    if not ways:  # not one way for all: then each row must be plain
        ways = ["letter", "text", "number"]
    for one, reading in zip(questions, readings, strict=True):
        said = {reading[way] for way in ways if way in reading} if reading else set()
        if len(said) > 1:
            raise one.row.error(
                str(one.answer_field),
                f"{shown(one.row.fields[str(one.answer_field)])} can be read as a"
                f" {' and as a '.join(way for way in ways if reading and way in reading)},"
                " which are different options",
                hint=f"say the answers of {path} by letters",
            )
    return [
        None if reading is None else next(reading[way] for way in ways if way in reading)
        for reading in readings
    ]


def read_question(
    row: Row, *, question: str, options: Any, answer_names: Sequence[str]
) -> Question:
    """The question with the options that a field holds, or that its own lines are."""
    if options is None:
        question, lines = split_lettered(question)
        if not lines:
            raise row.error("options", "is missing, and the question has no lines A. ..., B. ...")
        options = lines
    texts = plain_options(row, options)
    return Question(row=row, question=question, options=texts, answer_field=row.first(answer_names))


def choice_messages(
    question: str, options: Sequence[str], right: int | None
) -> tuple[Message, ...]:
    """The question with its options as lines, and the letter."""
    listed = "\n".join(f"{LETTERS[i]}. {option}" for i, option in enumerate(options))
    prompt = CHOICE_PROMPT.format(question=question.strip(), options=listed)
    asked = Message.of("user", VideoPart(), prompt)
    return (asked,) if right is None else (asked, Message.of("assistant", LETTERS[right]))


def choice_meta(question: Question, right: int | None, meta: Mapping[str, Any]) -> dict[str, Any]:
    """`meta` with options, answer and category as all formats call them."""
    meta = {"options": list(question.options), **meta}
    if right is not None:
        meta["answer"] = LETTERS[right]
    for name in ("question_type", "task_type", "question_category", "type"):
        if "category" not in meta and meta.get(name) not in (None, ""):
            meta["category"] = meta[name]
    return meta


def split_lettered(text: str) -> tuple[str, list[str]]:
    """A question and the options that are its last lines, "A. ...", "B. ...", ...; or none."""
    lines = text.rstrip().split("\n")
    for first in range(1, len(lines)):
        options = lines[first:]
        found = [_LETTERED.fullmatch(line) for line in options]
        in_order = [one is not None and one[1] == LETTERS[i : i + 1] for i, one in enumerate(found)]
        if len(options) >= 2 and all(in_order):
            return "\n".join(lines[:first]), options
    return text, []


def plain_options(row: Row, options: Any) -> tuple[str, ...]:
    """Options of a list, an object or text, without letters of their own. AnnotationError."""
    if isinstance(options, str):
        options = _from_text(options)
    if isinstance(options, Mapping):
        options = [options[name] for name in sorted(options, key=_place_of)]
    if not isinstance(options, list | tuple) or not 2 <= len(options) <= len(LETTERS):
        problem = f"must be a list of 2 to {len(LETTERS)} options, not {shown(options)}"
        raise row.error("options", problem)
    texts = [str(one) if isinstance(one, float) else row.as_text("options", one) for one in options]
    found = [_LETTERED.fullmatch(text) for text in texts]
    if all(one is not None and one[1] == LETTERS[i] for i, one in enumerate(found)):
        texts = [one[2] for one in found if one is not None]
    return tuple(text.strip() for text in texts)


def _from_text(text: str) -> Any:
    if text.lstrip().startswith(("[", "{")):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return [line for line in text.split("\n") if line.strip()]


def _place_of(name: Any) -> tuple[int, str]:
    digits = re.sub(r"\D", "", str(name))
    return (int(digits) if digits else -1, str(name))
