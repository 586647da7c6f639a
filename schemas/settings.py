"""Read a tree of frozen dataclasses from a mapping (TOML), strictly.

Unknown keys are refused with the nearest known one; types are checked, never coerced except
int -> float. What it is not: a place for defaults or rules, which live in the dataclasses.
"""

from __future__ import annotations

import bisect
import copy
import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from schemas.errors import RecipeError

T = TypeVar("T")
MAX_COMPARED = 200
MAX_LISTED = 12


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the closest known word, or all of them: "; did you mean 'fps'?"."""
    known = sorted(known)
    if len(known) > MAX_COMPARED:  # keys of a large cache: only neighbours can be near
        place = bisect.bisect(known, name)
        known = known[max(0, place - MAX_COMPARED // 2) : place + MAX_COMPARED // 2]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    shown = [name if name.isprintable() else repr(name) for name in known[:MAX_LISTED]]
    listed = ", ".join(shown) + (", ..." if len(known) > MAX_LISTED else "")
    return f"; known: {listed}" if known else ""


def read_settings(cls: type[T], mapping: Mapping[str, Any], *, path: str = "") -> T:
    """Build `cls` from `mapping`. RecipeError names the field by its dotted path."""
    assert dataclasses.is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        where = f"{path}{key}"
        if key not in fields:
            raise RecipeError(f"{where}: unknown field{nearest(key, fields)}")
        values[key] = _read_value(hints[key], value, where=where)
    missing = [
        name
        for name, field in fields.items()
        if name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise RecipeError(f"{path}{missing[0]}: missing; it has no default")
    return cls(**values)


def _read_value(hint: Any, value: Any, *, where: str) -> Any:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise RecipeError(f"{where} = {value!r} must be a table")
        return read_settings(typing.cast(type[Any], hint), value, path=f"{where}.")
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise RecipeError(f"{where} = {value!r} must be one of {listed}")
        return value
    if origin is dict:
        if not isinstance(value, Mapping):
            raise RecipeError(f"{where} = {value!r} must be a table")
        item = typing.get_args(hint)[1]
        return {key: _read_value(item, one, where=f"{where}.{key}") for key, one in value.items()}
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise RecipeError(f"{where} = {value!r} must be a list")
        item = typing.get_args(hint)[0]
        return tuple(_read_value(item, one, where=f"{where}[{i}]") for i, one in enumerate(value))
    if origin in (types.UnionType, typing.Union):
        inner = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        return None if value is None else _read_value(inner[0], value, where=where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise RecipeError(f"{where} is larger than any float") from None
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise RecipeError(f"{where} = {value!r} must be a {hint.__name__}")
    return value


def set_field(mapping: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """A copy of `mapping` with one "dotted.path=value" applied; the value is read as TOML.

    In an array of tables one is named by its `name`, or by its number from 0. RecipeError where
    there is no "=" or no such table, or the value is not TOML (a bare word counts as a string).
    """
    path, equals, text = assignment.partition("=")
    if not equals or not path:
        raise RecipeError(f"--set {assignment!r} must be FIELD=VALUE, as in sampling.fps=1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    changed: dict[str, Any] = copy.deepcopy(dict(mapping))
    *parents, leaf = path.strip().split(".")
    table: Any = changed
    for parent in parents:
        table = _entry(table, parent) if isinstance(table, list) else table.setdefault(parent, {})
        if not isinstance(table, dict | list):
            raise RecipeError(f"--set {assignment!r}: {parent} is not a table")
    if not isinstance(table, dict):
        raise RecipeError(f"--set {assignment!r}: {parents[-1]} is an array: name one of it")
    table[leaf] = value
    return changed


def _entry(array: list[Any], name: str) -> Any:
    """The table of an array that is meant; None: there is none."""
    for number, one in enumerate(array):
        if isinstance(one, dict) and name in (one.get("name"), str(number)):
            return one
    return None


def to_mapping(settings: Any, *, drop_defaults: bool = False) -> dict[str, Any]:
    """The inverse of `read_settings`; with `drop_defaults` fields at their default are left out.

    Dropping keeps a fingerprint when an optional field is added later.
    """
    result: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if drop_defaults and _is_default(field, value):
            continue
        result[field.name] = _to_plain(value, drop_defaults=drop_defaults)
    return result


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False


def _to_plain(value: Any, *, drop_defaults: bool) -> Any:
    if dataclasses.is_dataclass(value):
        return to_mapping(value, drop_defaults=drop_defaults)
    if isinstance(value, dict):
        return {key: _to_plain(one, drop_defaults=drop_defaults) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_to_plain(one, drop_defaults=drop_defaults) for one in value]
    return value
