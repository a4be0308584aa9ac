"""Which records of a refused batch have a value that their column cannot hold, told without writing any.

Nobody pays for this while batches are accepted. Of a column the values that are of a class that always fits are judged
together: mostly that is all of them, or all but a few. Of the others each value is fine, or is bad for a reason that
needs no value to be told, or is a text that only the server can read as the column's type: those are `Question`s, and
the server gets them for a whole column in one query (`culprits.py`).

A value is bad if it cannot be written as JSON, which is the more lenient way of the two (`values.py`). What is in doubt
is not bad: then the server refuses the row itself, and is asked for each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from headgate.connectors.postgres.types import WHOLE
from headgate.connectors.postgres.values import FLOATS, text_of

BITS = {"smallint": 15, "integer": 31, "bigint": 63}
LONGEST_FIELD = 2**30 - 2**16  # Bytes. A field may have a gigabyte, with its header and whatever surrounds it.
SURE_DIGITS = 1_000  # Of a number that any column of unlimited numbers holds.

TIMES = ("timestamp with time zone", "timestamp without time zone", "date")
TEXTS = ("text", "character varying", "character", '"char"', "name")
# Those whose values have no parts: an object or a list is none of them, whatever is in it.
_PLAIN = (*WHOLE, *FLOATS, *TIMES, "numeric", "boolean", "uuid", "bytea", "interval", "time without time zone")
_EXPECTED = {
    "boolean": "true or false is expected",
    "uuid": "a UUID is expected",
    "bytea": "bytes are expected",
    "date": "a date is expected",
    **dict.fromkeys(WHOLE, "an integer is expected"),
    **dict.fromkeys((*FLOATS, "numeric"), "a number is expected"),
    **dict.fromkeys(TIMES[:2], "a timestamp is expected"),
}
_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"), (int, "an integer"), (float, "a number"), (Decimal, "a number"), (str, "text"),
    (dict, "an object"), (list, "a list"), (bytes, "bytes"), (datetime, "a timestamp"), (date, "a date"),
    (time, "a time"), (timedelta, "a duration"), (UUID, "a UUID"),
)  # fmt: skip
_CLASSES: dict[str, type] = {
    **dict.fromkeys(TIMES[:2], datetime),
    "double precision": float,
    "boolean": bool,
    "uuid": UUID,
}
# What the server reads for sure. `\d` alone would match digits of other scripts.
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # And no backslash that is followed by this.
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ISO = re.compile(
    r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)

NULL = "must not be null"
NUL = "has a NUL character"
HALF = "has half of a surrogate pair, which is no character"
LARGE = "is larger than a gigabyte"
NOT_OF_TYPE = frozenset((NULL, NUL, HALF, LARGE, "is a part of the key, and must not be null"))
"""Reasons that another type of the column would not help."""

Verdict: TypeAlias = "str | Question | None"
"""Why a value is bad; or what to ask the server; None: it is fine, or in doubt."""


@dataclass(frozen=True, slots=True)
class Question:
    """Whether the server can read this text as the column's type."""

    text: str
    value_kind: str


@dataclass(frozen=True)
class Field:
    """A column as the judge knows it."""

    name: str
    plain: str  # Its type, or that which its domain stands for, with sizes: `character varying(3)`.
    native: str  # Its type as it is declared.
    is_required: bool = False  # A row with NULL in it is refused for sure.

    @cached_property
    def type(self) -> str:
        """The type without its sizes."""
        return self.plain.partition("(")[0].rstrip() if self.plain[-1:] == ")" else self.plain

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Of a text its length; of a number its digits, and those behind the point."""
        return tuple(int(part) for part in re.findall(r"-?\d+", self.plain.partition("(")[2]))


def is_finite(value: int | float | Decimal) -> bool:
    """Whether it is a number. Asked for a signalling NaN, `math` raises."""
    return isinstance(value, int) or (value.is_finite() if isinstance(value, Decimal) else math.isfinite(value))


def is_vast(value: object) -> bool:
    """Whether it is a decimal that no integer column holds: written out, it may have a thousand million digits."""
    return isinstance(value, Decimal) and value.is_finite() and value.adjusted() > SURE_DIGITS


def kind_of(value: object) -> str:
    """What a value is, in words, without the value."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "a value of another kind")


def judge_column(field: Field, values: Sequence[Any], *, as_json: bool = True) -> dict[int, str | Question]:
    """What is wrong with values of one column, or to be asked, by their places. Those of the class that the column has
    are judged together, and one by one only if that leaves a doubt."""
    kind = _class_of(field)
    others: Sequence[int] = [place for place, value in enumerate(values) if value.__class__ is not kind]
    if len(others) < len(values) and not _are_fine(field, [value for value in values if value.__class__ is kind]):
        others = range(len(values))
    judge = _judge_of(field, as_json)
    found: dict[int, str | Question] = {}
    for place in others:
        value = values[place]
        if value is None:
            verdict: Verdict = NULL if field.is_required else None
        else:
            verdict = judge(value)
        if verdict is not None:
            found[place] = verdict
    return found


def _class_of(field: Field) -> type | None:
    """The class whose values always fit, but for what `_are_fine` looks at."""
    if field.type in TEXTS:
        return None if field.sizes else str
    return int if field.type in WHOLE else _CLASSES.get(field.type)


def _are_fine(field: Field, values: Sequence[Any]) -> bool:
    """Whether all these values of the column's class are, for sure."""
    if field.type in TEXTS:
        text = "".join(values)
        return text.isascii() and "\0" not in text and len(text) < LONGEST_FIELD
    if field.type in WHOLE:
        most = 2 ** BITS[field.type]
        return bool(min(values) >= -most and max(values) < most)
    return True


def _judge_of(field: Field, as_json: bool) -> Callable[[Any], Verdict]:
    type = field.type
    if type in WHOLE:
        return lambda value: _whole(field, value)
    if type in (*FLOATS, "numeric"):
        return lambda value: _number(field, value)
    if type in ("json", "jsonb"):
        return lambda value: _json(value, may_have_nul=field.type == "json" and not as_json)
    if type in TEXTS:
        return lambda value: _text(field, value)
    return lambda value: _other(field, value)


def _whole(field: Field, value: Any) -> Verdict:
    if isinstance(value, float | Decimal):
        if not is_finite(value):
            return f"{field.type} has no NaN and no infinity"
        if is_vast(value):
            return f"is too {'large' if value > 0 else 'small'} for {field.type}"
        if value != int(value):
            return "an integer is expected, not a fraction"
        value = int(value)
    if isinstance(value, int):
        most = 2 ** BITS[field.type]
        return None if -most <= value < most else f"is too {'large' if value > 0 else 'small'} for {field.type}"
    if isinstance(value, str) and field.type == "bigint" and _INTEGER.fullmatch(value):
        return None
    return _other(field, value)


def _number(field: Field, value: Any) -> Verdict:
    if isinstance(value, str) and not field.sizes and _NUMBER.fullmatch(value):
        return None
    if not isinstance(value, int | float | Decimal):
        return _other(field, value)
    value = int(value) if isinstance(value, bool) else value
    if is_finite(value):
        sizes = field.sizes
        digits = sizes[0] - (sizes[1] if len(sizes) > 1 else 0) if sizes else SURE_DIGITS
        most = 10**37 if field.type == "real" else 10**300 if field.type in FLOATS else 10 ** max(digits, 0) - 1
        least = 10**-30 if field.type == "real" else 0  # A number of type real may be too small to tell from 0.
        if value == 0 or least <= abs(value) <= most:
            return None
    return Question(text_of(value), kind_of(value))


def _json(value: Any, *, may_have_nul: bool = False) -> str | None:
    """What is wrong with a value as JSON. A text of type json keeps a NUL as it is written, if it comes by COPY."""
    try:
        text = msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:
        return HALF
    if len(text) > LONGEST_FIELD:
        return LARGE
    return NUL if not may_have_nul and _NUL.search(text) else None


def _text(field: Field, value: Any) -> Verdict:
    if isinstance(value, dict | list) and (found := _json(value)) is not None:
        return found
    try:
        text = value if value.__class__ is str else text_of(value)
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return HALF
    if "\0" in text:
        return NUL
    if size > LONGEST_FIELD:
        return LARGE
    most = field.sizes[0] if field.sizes else None
    # Spaces beyond the end are cut, as SQL has it.
    if most is not None and len(text) > most and text[most:].strip(" "):
        return f"is too long for {field.plain}"
    return None


def _other(field: Field, value: Any) -> Verdict:
    """A value that the server reads from its text, unless its class says that it cannot be or must be right."""
    if isinstance(value, dict | list):
        return _unexpected(field, value) if field.type in _PLAIN else None
    if isinstance(value, datetime | date) and field.type in TIMES:
        return None
    if (found := _text(Field(field.name, "text", "text"), value)) is not None:
        return found
    text = text_of(value)
    if value.__class__ is str and _is_read_for_sure(field, text):
        return None
    return Question(text, kind_of(value))


def _is_read_for_sure(field: Field, text: str) -> bool:
    if field.type == "uuid":
        return _UUID.fullmatch(text) is not None
    if field.type in TIMES and _ISO.fullmatch(text) is not None:
        try:
            datetime.fromisoformat(text)
        except ValueError:
            return False
        return True
    return False


def _unexpected(field: Field, value: Any) -> str:
    return unreadable(field, kind_of(value))


def unreadable(field: Field, kind: str) -> str:
    """Why a value of this kind is bad, when the server cannot read it as the column's type."""
    return f"{_EXPECTED.get(field.type, f'{field.native} is expected')}, not {kind}"


def reason_of_answer(field: Field, question: Question, code: str) -> str:
    """The same, by the code of the server's answer. Its message would repeat the value."""
    match code:
        case "22003":
            return f"is out of range for {field.plain}"
        case "22001":
            return f"is too long for {field.plain}"
        case "22P05":
            return "has a character that the database has not"
        case "22008":
            return f"is out of range for {field.native}"
        case "23514" | "23502":
            return f"breaks a rule of the type {field.native}"
        case "54000":
            return "is too large"
    return unreadable(field, question.value_kind) if field.type in _EXPECTED else f"is no valid {field.native}"
