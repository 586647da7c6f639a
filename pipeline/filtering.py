"""Filter rows of a table by an expression, such as `static < 0.9 and codec != "gif"`.

The syntax is a part of Python's; the expression is walked, never run. Values may be null: what
cannot be told of them is null (the logic of Kleene).
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import UsageError
from schemas.settings import nearest

MAX_CHARACTERS = 10_000
HINT = (
    'written as in `static < 0.9 and not truncated`, `0.2 <= brightness <= 0.8 or codec == "gif"`,'
    ' `"/holidays/" in uri`, `codec in ("h264", "hevc")`, `blur is not null`'
)
Kind: TypeAlias = Literal["a number", "text", "true or false", "null"]

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: pc.add,
    ast.Sub: pc.subtract,
    ast.Mult: pc.multiply,
    ast.Div: pc.divide,
}
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class _Value:
    """A column, or one value for all rows."""

    values: Any
    kind: Kind
    text: str
    """As it is written."""


def where_mask(table: pa.Table, text: str) -> pa.BooleanArray:
    """(N,) of the rows: true where the expression holds, null where nulls leave it open.

    Comparisons, `and`, `or`, `not`, `in`, `is null`, + - * / and parentheses over columns, numbers,
    texts, true, false. UsageError: it is no such expression, names no column, or compares what
    cannot be compared.
    """
    try:
        value = _Walk(table).evaluate(_parse(text))
    except RecursionError:
        raise UsageError(f"--where {text[:60]!r}...: nested too deeply", hint=HINT) from None
    if value.kind != "true or false":
        raise UsageError(
            f"--where {text!r} is {value.kind}, and has to be true or false", hint=HINT
        )
    mask = value.values
    if isinstance(mask, pa.Scalar):
        mask = pa.repeat(mask, table.num_rows)
    return mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask


def _parse(text: str) -> ast.expr:
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"longer than {MAX_CHARACTERS} characters")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of `x is 1`, which is refused below
            return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise UsageError(
            f"--where {text!r} is no expression: {error.msg} (== compares; and, or, not are written"
            " small; text stands in quotes)",
            hint=HINT,
        ) from error
    except (ValueError, MemoryError) as error:
        what = str(error) or "nested too deeply"
        raise UsageError(f"--where {text[:60]!r} is no expression: {what}", hint=HINT) from error


class _Walk:
    """Evaluates one expression over a table."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def evaluate(self, node: ast.expr) -> _Value:
        text = ast.unparse(node)
        match node:
            case ast.Name(id=name) if name in _WORDS:
                return _constant(_WORDS[name], text)
            case ast.Name(id=name):
                return self._column(name)
            case ast.Constant(value=value):
                return _constant(value, text)
            case ast.BoolOp(op=op, values=operands):
                combine = pc.and_kleene if isinstance(op, ast.And) else pc.or_kleene
                parts = [self._expect(operand, "true or false") for operand in operands]
                result = parts[0].values
                for part in parts[1:]:
                    result = combine(result, part.values)
                return _Value(result, "true or false", text)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self._expect(operand, "true or false").values
                return _Value(pc.invert(value), "true or false", text)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
                value = _as_float(self._expect(operand, "a number").values)
                negative = isinstance(op, ast.USub)
                return _Value(pc.negate(value) if negative else value, "a number", text)
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
                sides = [_as_float(self._expect(n, "a number").values) for n in (left, right)]
                return _Value(_ARITHMETIC[type(op)](*sides), "a number", text)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                result = None
                for comparison, right in zip(ops, comparators, strict=True):
                    one = self._compare(left, comparison, right, text=text)
                    result = one if result is None else pc.and_kleene(result, one)
                    left = right
                return _Value(result, "true or false", text)
        raise UsageError(f"--where: {text!r} is not understood", hint=HINT)

    def _column(self, name: str) -> _Value:
        names = self._table.schema.names
        if name not in names:
            raise UsageError(
                f"--where: no column {name!r}{nearest(name, names)}",
                hint=f"the columns are {', '.join(names)}; texts stand in quotes",
            )
        column = self._table.column(name)
        kind = _kind_of(column.type)
        if kind is None:
            raise UsageError(
                f"--where: the column {name!r} holds lists, which cannot be compared", hint=HINT
            )
        return _Value(column, kind, name)

    def _expect(self, node: ast.expr, kind: Kind) -> _Value:
        value = self.evaluate(node)
        if value.kind == "null":
            return _Value(_typed_null(kind), kind, value.text)
        if value.kind != kind:
            raise UsageError(
                f"--where: {value.text} is {value.kind}, where {kind} is needed", hint=HINT
            )
        return value

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr, *, text: str) -> Any:
        if isinstance(op, ast.Is | ast.IsNot):
            if self.evaluate(right).kind != "null":
                raise UsageError(f"--where: {text!r}: only `is null` and `is not null`", hint=HINT)
            check = pc.is_null if isinstance(op, ast.Is) else pc.is_valid
            return check(self.evaluate(left).values)
        if isinstance(op, ast.In | ast.NotIn):
            found = self._contains(left, right)
            return pc.invert(found) if isinstance(op, ast.NotIn) else found
        first, second = self.evaluate(left), self.evaluate(right)
        if "null" in (first.kind, second.kind):
            raise UsageError(
                f"--where: {text!r}: nothing equals null; write `is null` or `is not null`",
                hint=HINT,
            )
        if first.kind != second.kind:
            raise UsageError(
                f"--where: {first.text} is {first.kind} and {second.text} is {second.kind}",
                hint=HINT,
            )
        if first.kind == "true or false" and not isinstance(op, ast.Eq | ast.NotEq):
            raise UsageError(f"--where: {text!r}: true and false have no order", hint=HINT)
        sides = first.values, second.values
        if first.kind == "a number" and not sides[0].type.equals(sides[1].type):
            sides = _as_float(sides[0]), _as_float(sides[1])
        return _COMPARISONS[type(op)](*sides)

    def _contains(self, left: ast.expr, right: ast.expr) -> Any:
        if isinstance(right, ast.Tuple | ast.List):
            result: Any = pa.scalar(value=False)
            for one in right.elts:
                result = pc.or_kleene(result, self._compare(left, ast.Eq(), one, text="in (...)"))
            return result
        part, whole = self._expect(left, "text").values, self._expect(right, "text").values
        if not isinstance(part, pa.Scalar) or not part.is_valid:
            raise UsageError("--where: before `in` stands a text, or after it a list", hint=HINT)
        return pc.match_substring(whole, part.as_py())


def _constant(value: object, text: str) -> _Value:
    kinds: Mapping[type, Kind] = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        type(None): "null",
    }
    kind = kinds.get(type(value))
    if kind is None:
        raise UsageError(f"--where: {text} is neither a number nor text", hint=HINT)
    try:
        return _Value(pa.scalar(value), kind, text)
    except (OverflowError, pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise UsageError(f"--where: {text[:60]} is out of range", hint=HINT) from error


def _kind_of(dtype: pa.DataType) -> Kind | None:
    if pa.types.is_boolean(dtype):
        return "true or false"
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        return "a number"
    return "text" if pa.types.is_string(dtype) or pa.types.is_large_string(dtype) else None


def _as_float(values: Any) -> Any:
    # Neither overflows nor an error of division by zero.
    return values.cast(pa.float64(), safe=False)


def _typed_null(kind: Kind) -> pa.Scalar:
    types = {"a number": pa.float64(), "text": pa.string(), "true or false": pa.bool_()}
    return pa.scalar(None, type=types[kind])
