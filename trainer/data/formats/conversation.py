"""Conversations of any dialect: turns with roles, a mark where the video stands, tools.

The dialects are the native one, OpenAI's, ms-swift's, LLaMA-Factory's and LLaVA's; they differ in
names only, so one reader knows all of them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from trainer.data.annotation import Annotation, Message, Role, VideoPart
from trainer.data.formats.row import VIDEO_NAMES, Row, shown

_FOR_ROLES: dict[Role, tuple[str, ...]] = {
    "system": ("system", "developer"),
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "model", "function_call", "tool_call"),
    "tool": ("tool", "observation", "function", "function_response", "tool_response"),
}
ROLES = {name: role for role, names in _FOR_ROLES.items() for name in names}
"""How a file says it -> what it is."""
_LISTS_OF_VIDEOS = ("videos", "images")
_SOUND_NAMES = ("audio", "audios")
_VIDEO_TYPES = ("video", "video_url", "image", "image_url")
_SOUND_TYPES = ("audio", "audio_url", "input_audio")
_MARK = re.compile(r"\n?<(?:video|image)>\n?")
"""Where the video stands in text, with the newline that sets it apart: prompts have it alike,
whoever wrote them. A still counts as a video of one frame."""
TOOLS_TEXT = "Tools:\n{tools}"
"""In the system's turn, where a row lists tools."""


def read_conversation(row: Row, name: str, *, default_id: str) -> Annotation:
    """The row whose field `name` is the list of turns. AnnotationError."""
    turns = row.fields.get(name)
    if not isinstance(turns, list) or not turns:
        problem = f"must be a list of turns, not {shown(turns)}"
        raise row.error(name, "has no turns" if turns == [] else problem)
    has_sound = row.first(_SOUND_NAMES) is not None
    videos, video_field = _videos(row)
    messages, extras = [], []
    for number, turn in enumerate(turns, start=1):
        field = f"{name}[{number}]"
        if not isinstance(turn, Mapping):
            raise row.error(field, f"must be an object, not {shown(turn)}")
        message, extra, named = _read_turn(row, field, turn, has_sound=has_sound)
        messages.append(message)
        videos += named
        if extra:
            extras.append({"turn": number, **extra})
    video = _the_video(row, videos, name=name, messages=messages)
    if has_sound and video is None:
        raise row.error(row.first(_SOUND_NAMES) or "", "sound without a video is in no cache")
    used = [name, "id", video_field, "system", "span", "answer_spans", *row.span_names]
    meta = row.rest(*used)
    if extras:
        meta["turn_fields"] = extras
    spans = row.fields.get("answer_spans")
    if spans is None:
        spans = meta.get("gt_windows")
    return Annotation(
        id=row.text("id") if row.first(["id"]) else default_id,
        video=video,
        messages=(*_system(row, messages), *messages),
        span=row.span(),
        answer_spans=() if spans is None else row.as_answer_spans("answer_spans", spans),
        meta=meta,
    )


def _videos(row: Row) -> tuple[list[str], str | None]:
    """The videos that a row names, and in which field."""
    name = row.first((*_LISTS_OF_VIDEOS, *VIDEO_NAMES, "image"))
    if name is None:
        return [], None
    value = row.fields[name]
    values = value if isinstance(value, list) else [value]
    return [row.as_text(name, one) for one in values], name


def _the_video(row: Row, videos: list[str], *, name: str, messages: list[Message]) -> str | None:
    """The one video of a row, after a look at where it stands."""
    others = [one for one in videos if one != videos[0]]
    if others:
        raise row.error(
            "video", f"a row is about one video, not both {videos[0]!r} and {others[0]!r}"
        )
    places = [
        (number, part, message.role)
        for number, message in enumerate(messages, start=1)
        for part in message.content
        if isinstance(part, VideoPart)
    ]
    if places and not videos:
        raise row.error(
            f"{name}[{places[0][0]}]",
            "has a place for a video, but the row names none",
            hint='add "video" to the row, or take the mark out of the text',
        )
    if sum(part.span is None for _, part, _ in places) > 1:
        raise row.error(name, "the video stands in more than one place")
    for number, _, role in places:
        if role in ("assistant", "system"):
            raise row.error(f"{name}[{number}]", f"the video cannot stand in a turn of {role}")
    if videos and not places and not any(message.role == "user" for message in messages):
        raise row.error(name, "has no turn of the user, in which the video could stand")
    return videos[0] if videos else None


def _read_turn(
    row: Row, field: str, turn: Mapping[str, Any], *, has_sound: bool
) -> tuple[Message, dict[str, Any], list[str]]:
    """The turn, its other fields, and the videos that its parts name."""
    extra = dict(turn)
    said = extra.pop("role", None) or extra.pop("from", None)
    role = ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise row.error(f"{field}.role", f"{shown(said)} must be one of {', '.join(ROLES)}")
    name = "value" if "value" in turn else "content"
    value = extra.pop(name, None)
    calls = extra.pop("tool_calls", None)
    videos: list[str] = []
    if isinstance(value, str):
        if has_sound:
            value = value.replace("<audio>", "")  # it comes with the video's clips
        content = (value,) if role == "assistant" else _split(value)
    elif isinstance(value, list):
        content, others, videos = _read_parts(row, f"{field}.{name}", value)
        if others:
            extra["parts"] = others
    elif value is None and calls:
        content = ()
    else:
        raise row.error(f"{field}.{name}", f"must be text or a list of parts, not {shown(value)}")
    if calls:
        content = (*content, _calls_text(row, f"{field}.tool_calls", calls))
    train = role == "assistant"
    for flag in ("train", "loss"):
        if extra.get(flag) is not None:
            if extra[flag] not in (True, False):  # 0 and 1 too
                raise row.error(f"{field}.{flag}", f"{shown(extra[flag])} must be true or false")
            train = bool(extra.pop(flag))
    content = tuple(part for part in content if part != "")
    return Message(role=role, content=content, supervised=train), extra, videos


def _split(text: str) -> tuple[str | VideoPart, ...]:
    first, *others = _MARK.split(text)
    return (first, *(part for other in others for part in (VideoPart(), other)))


def _read_parts(
    row: Row, field: str, parts: list[Any]
) -> tuple[tuple[str | VideoPart, ...], list[dict[str, Any]], list[str]]:
    content: list[str | VideoPart] = []
    others: list[dict[str, Any]] = []
    videos: list[str] = []
    for number, part in enumerate(parts, start=1):
        where = f"{field}[{number}]"
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, Mapping):
            raise row.error(where, f"must be an object, not {shown(part)}")
        rest = {name: value for name, value in part.items() if value is not None}
        kind = rest.pop("type", None)
        if kind in ("text", "input_text"):
            content.append(row.as_text(f"{where}.text", rest.pop("text", None)))
        elif kind in _VIDEO_TYPES:
            span = rest.pop("span", None)
            content.append(VideoPart(span=None if span is None else row.as_span(where, span)))
            for name in (*_VIDEO_TYPES, "path", "url"):
                if name in rest:
                    value = rest.pop(name)
                    value = value.get("url") if isinstance(value, Mapping) else value
                    videos.append(row.as_text(f"{where}.{name}", value))
        elif kind in _SOUND_TYPES:
            rest["type"] = kind  # it comes with the video's clips
        else:
            raise row.error(f"{where}.type", f"{shown(kind)} must be text or video")
        if rest:
            others.append({"part": number, **rest})
    return tuple(content), others, videos


def _calls_text(row: Row, field: str, calls: Any) -> str:
    """Calls of tools as LLaMA-Factory writes them: one JSON object a line."""
    lines = []
    for call in calls if isinstance(calls, list) else [calls]:
        call = call.get("function", call) if isinstance(call, Mapping) else call
        if not isinstance(call, Mapping) or "name" not in call:
            raise row.error(field, f"must be a list of calls with a name, not {shown(calls)}")
        arguments = call.get("arguments", {})
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError):  # then it stays text
                arguments = json.loads(arguments)
        one = {"name": call["name"], "arguments": arguments}
        lines.append(json.dumps(one, ensure_ascii=False))
    return "\n".join(lines)


def _system(row: Row, messages: list[Message]) -> tuple[Message, ...]:
    """What the row says outside of its turns; joined with a turn of the system's, if there is."""
    texts = [row.text("system")] if row.first(["system"]) else []
    tools = row.fields.get("tools")
    if tools:
        listed = tools if isinstance(tools, str) else json.dumps(tools, ensure_ascii=False)
        texts.append(TOOLS_TEXT.format(tools=listed))
    if not texts:
        return ()
    if messages[0].role == "system":
        texts[:0] = [part for part in messages.pop(0).content if isinstance(part, str)]
    return (Message.of("system", "\n\n".join(texts)),)
