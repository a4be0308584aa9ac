"""The kinds of values that travel between storages, and the one text that each value has.

A storage maps its own types to these kinds when it is read, and these kinds to its own types when it is written. Each
kind has one canonical text, which is what a CSV piece holds and what PostgreSQL and MySQL render and read by
themselves, so a value is never rounded on its way:

    BOOL         1 or 0
    INT16/32/64  decimal digits
    DECIMAL      digits with at most `scale` after the point; `precision` in all, up to 76
    NUMERIC      any number of digits; also NaN
    FLOAT32/64   the shortest digits that give the same number back; NaN, Infinity, -Infinity
    TEXT         itself; at most `length` characters, if that is set
    BYTES        \\x and two hexadecimal digits for each byte
    DATE         2026-11-16
    TIME         13:45:00.123456
    TIMESTAMP    2026-11-16 13:45:00.123456, a wall clock without a zone
    TIMESTAMPTZ  the same, in UTC, without a suffix
    UUID         lower case, with dashes
    JSON         the document as the source writes it

What a kind cannot hold is refused with the column's name: never rounded, never cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import StrEnum
from uuid import UUID


class JsonNull:
    """The JSON document `null` among Python values, where None is SQL's NULL."""

    def __repr__(self) -> str:
        return "null"


JSON_NULL = JsonNull()
MOST_DIGITS = 76  # Of an Arrow decimal. What has more travels as NUMERIC.


class Kind(StrEnum):
    """What sort of value a column holds."""

    BOOL = "bool"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    DECIMAL = "decimal"
    NUMERIC = "numeric"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Type:
    """A kind, and its size where it has one."""

    kind: Kind
    precision: int = 0
    scale: int = 0
    length: int = 0  # In characters; 0: any.

    def __str__(self) -> str:
        if self.kind is Kind.DECIMAL:
            return f"decimal({self.precision},{self.scale})"
        return f"{self.kind}({self.length})" if self.length else str(self.kind)


TEXT = Type(Kind.TEXT)


def decimal_type(precision: int, scale: int) -> Type:
    """A decimal of this size, or an unbounded number where Arrow has none so large."""
    if 0 < precision <= MOST_DIGITS and 0 <= scale <= precision:
        return Type(Kind.DECIMAL, precision, scale)
    return Type(Kind.NUMERIC)


def type_from_text(text: str) -> Type:
    """The type that a person or a manifest names: `int64`, `decimal(12,2)`, `text(20)`. Raises ValueError."""
    found = re.fullmatch(r"\s*([a-z0-9]+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*", text.lower())
    if found is None or found[1] not in set(Kind):
        raise ValueError(f"{text!r} is not a type (one of {', '.join(Kind)})")
    kind, first, second = Kind(found[1]), int(found[2] or 0), int(found[3] or 0)
    if kind is Kind.DECIMAL:
        if not 0 < first <= MOST_DIGITS or second > first:
            raise ValueError(f"{text!r} is not a decimal (digits in all, up to {MOST_DIGITS}, and after the point)")
        return Type(kind, first, second)
    if found[3] is not None or (found[2] is not None and kind not in (Kind.TEXT, Kind.BYTES)):
        raise ValueError(f"{text!r} has a size, but {kind} takes none")
    return Type(kind, length=first)


def type_of_value(value: object) -> Type | None:
    """The type for a Python value from a source that has no schema. None: it is None, and says nothing."""
    match value:
        case None:
            return None
        case bool():
            return Type(Kind.BOOL)
        case int():
            return Type(Kind.INT64) if -(2**63) <= value < 2**63 else Type(Kind.NUMERIC)
        case float():
            return Type(Kind.FLOAT64)
        case Decimal():
            return Type(Kind.NUMERIC)
        case bytes() | bytearray() | memoryview():
            return Type(Kind.BYTES)
        case datetime():
            return Type(Kind.TIMESTAMP if value.tzinfo is None else Kind.TIMESTAMPTZ)
        case date():
            return Type(Kind.DATE)
        case time():
            return Type(Kind.TIME)
        case UUID():
            return Type(Kind.UUID)
        case dict() | list() | tuple():
            return Type(Kind.JSON)
    return TEXT


def widest(one: Type, other: Type) -> Type | None:
    """A type that holds the values of both. None: nothing short of text does."""
    if one == other:
        return one
    kinds = {one.kind, other.kind}
    if kinds <= {Kind.INT16, Kind.INT32, Kind.INT64}:
        return Type(Kind.INT64)
    if kinds <= {Kind.INT16, Kind.INT32, Kind.INT64, Kind.DECIMAL, Kind.NUMERIC}:
        return Type(Kind.NUMERIC)
    if kinds <= {Kind.FLOAT32, Kind.FLOAT64}:
        return Type(Kind.FLOAT64)
    if Kind.JSON in kinds:
        return Type(Kind.JSON)
    return TEXT if kinds == {Kind.TEXT} else None


def canonical(value: object) -> str | None:
    """A Python value as its canonical text, or None."""
    match value:
        case None | str():
            return value
        case JsonNull():
            return None  # What JSON writes as null.
        case bool():
            return "1" if value else "0"
        case float():
            return "NaN" if value != value else {1e999: "Infinity", -1e999: "-Infinity"}.get(value) or repr(value)
        case bytes() | bytearray() | memoryview():
            return "\\x" + bytes(value).hex()
        case datetime():
            return str(value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None))
        case Decimal() if value.is_finite():
            return format(value, "f")
    return str(value)


_WHOLE = (Kind.INT16, Kind.INT32, Kind.INT64)
_DIGITS = {Kind.INT16: 5, Kind.INT32: 10, Kind.INT64: 19}


def holds(target: Type, source: Type) -> bool:
    """Whether a column of the target's type keeps each value of the source's, or refuses it with an error.

    A database may round silently where a type is smaller. Where that can happen, the answer is no.
    """
    kind, given = target.kind, source.kind
    if kind is given and kind is not Kind.DECIMAL:
        return True
    if kind is Kind.TEXT:
        return True
    if given is Kind.TEXT:  # Not silent: the text is read strictly, see `is_read_strictly`.
        return True
    if given in _WHOLE:
        if kind in _WHOLE or kind is Kind.NUMERIC:
            return True  # A number that is too large is refused by every database.
        if kind is Kind.DECIMAL:
            return target.precision - target.scale >= _DIGITS[given]
        return kind is Kind.FLOAT64 and given is not Kind.INT64
    if given is Kind.DECIMAL:
        if kind is Kind.DECIMAL:
            fits = target.precision - target.scale >= source.precision - source.scale
            return fits and target.scale >= source.scale
        return kind is Kind.NUMERIC
    if given is Kind.FLOAT32:
        return kind is Kind.FLOAT64
    return given is Kind.BOOL and kind in _WHOLE


def is_read_strictly(source: Type, target: Type) -> bool:
    """Whether such a value must be read by us first: the database would round it, or cut a part off."""
    if source.kind is Kind.NUMERIC:
        return target.kind is Kind.DECIMAL
    dated = (Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
    return source.kind is Kind.TEXT and target.kind in (Kind.DECIMAL, *dated)
