"""Types of SQLite: what a declaration means, and what its values must be.

SQLite gives a type to each value and only an affinity to a column. A column's kind comes from its declared type, by
SQLite's rules and the usual names; where these say too little (no type at all, DATETIME, STRING) from the sorts of
values that are in it. A value that is not of its column's kind ends the chunk with table, column and row: nothing is
converted. NUMERIC and DECIMAL(p,s) are what SQLite has: whole numbers, text, or floats, of which the shortest digits
count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn
from uuid import UUID

import msgspec
import pyarrow as pa

from headgate.connectors.api.bulk import Column
from headgate.connectors.values.arrow import arrow_type
from headgate.connectors.values.convert import at_most_micros
from headgate.connectors.values.kinds import TEXT, Kind, Type, canonical, decimal_type

FAMILY = "sqlite"

OURS = {  # The declared types of tables that we make: text keeps each digit, and the name says what it is.
    Kind.BOOL: "BOOLEAN",
    Kind.INT16: "INT16",
    Kind.INT32: "INT32",
    Kind.INT64: "INTEGER",
    Kind.NUMERIC: "NUMERIC TEXT",
    Kind.FLOAT32: "FLOAT32",
    Kind.FLOAT64: "REAL",
    Kind.TEXT: "TEXT",
    Kind.BYTES: "BLOB",
    Kind.DATE: "DATE TEXT",
    Kind.TIME: "TIME TEXT",
    Kind.TIMESTAMP: "TIMESTAMP TEXT",
    Kind.TIMESTAMPTZ: "TIMESTAMPTZ TEXT",
    Kind.UUID: "UUID TEXT",
    Kind.JSON: "JSON TEXT",
}
_NAMES = {name: kind for kind, name in OURS.items()} | {"BOOL": Kind.BOOL, "UUID": Kind.UUID, "JSON": Kind.JSON}


def affinity(declared: str) -> str:
    """What SQLite does to values of a column with this declared type: its five rules, in its order."""
    name = declared.upper()
    rules = [("INT", "INTEGER"), ("CHAR", "TEXT"), ("CLOB", "TEXT"), ("TEXT", "TEXT"), ("BLOB", "BLOB")]
    rules += [("REAL", "REAL"), ("FLOA", "REAL"), ("DOUB", "REAL")]
    return next((kind for part, kind in rules if part in name), "NUMERIC" if name else "BLOB")


def declared_type(declared: str) -> Type | None:
    """The type that a declaration names. None: it depends on the values."""
    name = " ".join(declared.upper().split())
    if name in _NAMES:
        return Type(_NAMES[name])
    found = re.fullmatch(r"(?:DECIMAL|NUMERIC)(?: TEXT)?(?: ?\( ?(\d+) ?(?:, ?(\d+) ?)?\))?", name)
    if found:
        return decimal_type(int(found[1]), int(found[2] or 0)) if found[1] else Type(Kind.NUMERIC)
    kinds = {"INTEGER": Kind.INT64, "TEXT": Kind.TEXT, "REAL": Kind.FLOAT64}
    if name and affinity(name) == "BLOB":
        return Type(Kind.BYTES)
    return Type(kinds[affinity(name)]) if affinity(name) in kinds else None


def seen_type(sorts: set[str]) -> Type:
    """The type for the sorts of values that a column has."""
    if sorts == {"integer", "real"}:
        return Type(Kind.NUMERIC)
    kinds = {"integer": Kind.INT64, "real": Kind.FLOAT64, "blob": Kind.BYTES}
    return Type(kinds[next(iter(sorts))]) if len(sorts) == 1 and sorts <= kinds.keys() else TEXT


def _refuse(value: object) -> NoReturn:
    raise ValueError(value)


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bytes):
        raise ValueError  # noqa: TRY004 - the caller tells what is wrong
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _bool(value: object) -> bool:
    if value in (0, 1) and isinstance(value, int):
        return value == 1
    raise ValueError


def _instant(value: str) -> datetime:
    found = datetime.fromisoformat(at_most_micros(value))
    return found.astimezone(UTC) if found.tzinfo else _refuse(value)


def _wall(value: str) -> datetime:
    found = datetime.fromisoformat(at_most_micros(value))
    return found if found.tzinfo is None else _refuse(value)


def _json(value: Any) -> str:
    text = value if isinstance(value, str) else _refuse(value) if isinstance(value, bytes) else repr(value)
    msgspec.json.decode(text)
    return text


def _text(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: read(value) if isinstance(value, str) else _refuse(value)


_PLAIN: dict[Kind, type] = {
    Kind.INT16: int,
    Kind.INT32: int,
    Kind.INT64: int,
    Kind.FLOAT32: float,
    Kind.FLOAT64: float,
    Kind.TEXT: str,
    Kind.BYTES: bytes,
}
_AS_TEXT = {Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}  # Arrow reads these strictly, and fast.
_READS: dict[Kind, Callable[[Any], Any]] = {
    Kind.BOOL: _bool,
    Kind.DECIMAL: _decimal,
    Kind.NUMERIC: lambda value: canonical(_decimal(value)),
    Kind.DATE: _text(date.fromisoformat),
    Kind.TIME: _text(
        lambda value: _refuse(value) if (found := time.fromisoformat(at_most_micros(value))).tzinfo else found
    ),
    Kind.TIMESTAMP: _text(_wall),
    Kind.TIMESTAMPTZ: _text(_instant),
    Kind.UUID: _text(lambda value: str(UUID(value))),
    Kind.JSON: _json,
}


def array_of(values: Sequence[object], column: Column) -> pa.Array:
    """The values of one column. Raises ValueError with the number of the first row that does not fit."""
    kind = column.type.kind
    if kind in _AS_TEXT and {type(value) for value in values} <= {str, type(None)}:
        with suppress(pa.ArrowException):  # Value by value, then, to find the one that does not fit.
            return pa.array(values, pa.string()).cast(arrow_type(column.type))
    plain = _PLAIN.get(kind)
    if plain is None or not {type(value) for value in values} <= {plain, type(None)}:

        def same(value: Any) -> Any:
            return value if type(value) is plain else _refuse(value)

        reads = _READS.get(kind, same)
        read = []
        for number, value in enumerate(values):
            try:
                read.append(None if value is None else reads(value))
            except (ValueError, InvalidOperation, msgspec.MsgspecError):
                raise Unfit(number, value) from None
        values = read
    try:
        return pa.array(values, arrow_type(column.type))
    except (pa.ArrowException, OverflowError):
        for number, value in enumerate(values):
            try:
                pa.array([value], arrow_type(column.type))
            except (pa.ArrowException, OverflowError):
                raise Unfit(number, value) from None
        raise


class Unfit(ValueError):
    """A value that is not of its column's kind."""

    def __init__(self, number: int, value: object) -> None:
        super().__init__(f"{type(value).__name__} {str(value)[:40]!r}")
        self.number = number
