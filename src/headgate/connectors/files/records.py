"""JSON records of files: read into the values of their columns, and written from them.

Numbers keep all of their digits: one with a fraction is a FLOAT64 if the nearest float says the same number, and a
NUMERIC if not. Nested objects and arrays are JSON columns, and so is a field with values of several types. A field that
is absent is NULL.

Written are numbers as numbers, JSON columns as documents, NULL as null, an instant in ISO 8601 with Z, and everything
else in its canonical text. NaN and Infinity are refused: JSON cannot express them. In a JSON column null is a document:
there NULL is a field that is absent, and the manifest says so. A field that a record has twice is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from headgate.connectors.api.bulk import Column, Row, StorageError, Table
from headgate.connectors.values.convert import at_most_micros, bytes_of, is_finite
from headgate.connectors.values.kinds import JSON_NULL, Kind, Type, canonical, type_of_value
from headgate.text import one_line

NOT_JSON = (ValueError, RecursionError, msgspec.MsgspecError)
_FLOATS = (Kind.FLOAT32, Kind.FLOAT64)


def number(text: str) -> float | Decimal:
    """A number with a fraction or an exponent: a float only if that is written with the same digits."""
    found = float(text)
    return found if repr(found) == text else Decimal(text)


DECODER = msgspec.json.Decoder(float_hook=number)


def record(line: bytes) -> Row:
    """One line. Raises ValueError if it is not an object."""
    found = DECODER.decode(line)
    if type(found) is dict:
        return found
    raise ValueError(f"a record must be an object, not {_sort(found)}")


_SPACED = re.compile(rb'"\s+:')


def refuse_twice(data: bytes, rows: Sequence[Row]) -> None:
    """Raise ValueError if an object of these records has a field twice: the parser has kept one of them. Each field is
    a quote and a colon; if there are as many as fields, none was lost, and only else is it worth a closer look."""
    fields = sum(map(len, rows)) if data.count(b"{") == len(rows) else sum(map(_fields, rows))
    if data.count(b'":') != fields or _SPACED.search(data):
        for line in data.split(b"\n"):
            if line.strip():
                json.loads(line, object_pairs_hook=_once)


def _fields(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(_fields(one) for one in value.values() if isinstance(one, dict | list))
    return sum(_fields(one) for one in value) if isinstance(value, list) else 0


def _once(pairs: list[tuple[str, object]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"field {next(name for name in names if names.count(name) > 1)!r} occurs twice")


class Shape:
    """What the records of a table must look like."""

    def __init__(self, table: Table, flattens: bool) -> None:
        self.flattens = flattens
        self._fields = frozenset(table.details["fields"])
        self._names = [column.name for column in table.columns]
        self._all = set(self._names) == self._fields
        is_null = table.details.get("absent", False)
        self._documents = [one.name for one in table.columns if is_null and one.type.kind is Kind.JSON]
        self._reads = [
            (column.name, *_reading(column)) for column in table.columns if column.type.kind is not Kind.JSON
        ]

    def fitted(self, rows: list[Any]) -> list[Row]:
        """The records with the values of their columns. Raises ValueError with the field that does not fit."""
        if self.flattens:
            rows = [flat(row) for row in rows]
        fields = self._fields
        for row in rows:
            if not row.keys() <= fields:
                name = next(name for name in row if name not in fields)
                raise ValueError(f"field {name!r} is new: the first records do not have it (read more with ?sample=)")
        if not self._all:
            rows = [{name: row[name] for name in self._names if name in row} for row in rows]
        for name in self._documents:
            for row in rows:
                if row.setdefault(name, row) is None:
                    row[name] = JSON_NULL
                elif row[name] is row:
                    row[name] = None
        for name, plain, read in self._reads:
            kinds = {type(row.get(name)) for row in rows}
            kinds.discard(type(None))
            if not kinds <= plain:
                _read(rows, name, read)
            elif int in kinds:
                numbers = [value for row in rows if (value := row.get(name)) is not None]
                if max(numbers) > 2**63 - 1 or min(numbers) < -(2**63):
                    _read(rows, name, read)
        return rows


def _read(rows: list[Row], name: str, read: Callable[[Any], object]) -> None:
    for row in rows:
        value = row.get(name)
        if value is not None:
            try:
                row[name] = read(value)
            except (ValueError, ArithmeticError, StorageError) as error:
                raise ValueError(f"field {name!r}: {error}") from None


_RANGES = {Kind.INT16: 2**15, Kind.INT32: 2**31, Kind.INT64: 2**63}


def _reading(column: Column) -> tuple[set[type], Callable[[Any], object]]:
    """The types that are right as they come from JSON, and what reads the others."""
    kind = column.type.kind

    def whole(value: object) -> int:
        if type(value) is int and -_RANGES[kind] <= value < _RANGES[kind]:
            return value
        raise _unfit(value, column)

    def float_of(value: object) -> object:
        if type(value) is float:
            return value
        if type(value) is int and int(float(value)) == value:
            return value
        if type(value) is Decimal and Decimal(repr(float(value))) == value:
            return float(value)
        raise _unfit(value, column)

    def decimal_of(value: Any) -> Decimal:
        if type(value) in (int, float, Decimal):
            return Decimal(repr(value)) if type(value) is float else Decimal(value)
        raise _unfit(value, column)

    def text_of(read: Callable[[str], object]) -> Callable[[Any], object]:
        def of(value: object) -> object:
            if type(value) is str:
                return read(value)
            raise _unfit(value, column)

        return of

    def refuse(value: object) -> object:
        if type(value) in plain:
            return value
        raise _unfit(value, column)

    types: dict[Kind, type] = {Kind.BOOL: bool, Kind.TEXT: str, Kind.INT64: int, Kind.FLOAT64: float}
    plain = {types[kind]} if kind in types else set()
    texts: dict[Kind, Callable[[str], object]] = {
        Kind.BYTES: lambda text: bytes_of(text, column),
        Kind.DATE: date.fromisoformat,
        Kind.TIME: _time,
        Kind.TIMESTAMP: lambda text: _instant(text, is_zoned=False),
        Kind.TIMESTAMPTZ: lambda text: _instant(text, is_zoned=True),
        Kind.UUID: UUID,
    }
    if kind in texts:
        return set(), text_of(texts[kind])
    if kind in _RANGES:
        return plain, whole
    if kind in _FLOATS:
        return plain, float_of
    return (set(), decimal_of) if kind in (Kind.DECIMAL, Kind.NUMERIC) else (plain, refuse)


def _time(text: str) -> time:
    found = time.fromisoformat(at_most_micros(text))
    if found.tzinfo is not None:
        raise ValueError(f"{text!r} has a time zone")
    return found


def _instant(text: str, is_zoned: bool) -> datetime:
    found = datetime.fromisoformat(at_most_micros(text))
    if (found.tzinfo is not None) != is_zoned:
        raise ValueError(f"{text!r} has {'no' if is_zoned else 'a'} time zone")
    return found.astimezone(UTC) if is_zoned and found.tzinfo is not UTC else found


def _unfit(value: Any, column: Column) -> ValueError:
    return ValueError(f"{str(value)[:40]!r} is {_sort(value)}, and the column is {column.type}")


def _sort(value: object) -> str:
    names: dict[type, str] = {dict: "an object", list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def reason_of(error: BaseException) -> str:
    """Why a record is refused."""
    text = one_line(error, 300)
    return f"not JSON: {text}" if isinstance(error, msgspec.MsgspecError | UnicodeError | RecursionError) else text


def flat(record: Row, prefix: str = "") -> Row:
    """Nested objects as separate fields: `user.email`. Raises ValueError if two get the same name."""
    found: Row = {}
    for name, value in record.items():
        some = flat(value, f"{prefix}{name}.") if type(value) is dict else {f"{prefix}{name}": value}
        if not found.keys().isdisjoint(some):
            raise ValueError(f"{next(name for name in some if name in found)!r} occurs twice")
        found |= some
    return found


def type_of(value: object) -> Type | None:
    """The type for a value of JSON: a number that a float says exactly is one."""
    if type(value) is Decimal and Decimal(repr(float(value))) == value:
        return Type(Kind.FLOAT64)
    return type_of_value(value)


class Lines:
    """Rows as lines of JSON."""

    def __init__(self, columns: Sequence[Column]) -> None:
        convert: dict[Kind, Callable[[Any], object]] = {
            Kind.BYTES: canonical,
            Kind.TIMESTAMP: str,
            Kind.TIMESTAMPTZ: lambda value: value if value.tzinfo is UTC else value.astimezone(UTC),
            Kind.FLOAT32: _finite,
            Kind.FLOAT64: _finite,
            Kind.DECIMAL: _finite,
            Kind.NUMERIC: _finite,
            Kind.JSON: _document,
        }
        self._documents = [column.name for column in columns if column.type.kind is Kind.JSON]
        self._conversions = [(column, convert[column.type.kind]) for column in columns if column.type.kind in convert]
        self._encoder = msgspec.json.Encoder(enc_hook=canonical, decimal_format="number")

    def encoded(self, rows: list[Row]) -> bytes:
        """These rows, each with its newline."""
        return self._encoder.encode_lines(self._converted(rows))

    def elements(self, rows: list[Row]) -> bytes:
        """These rows, with commas between them."""
        return b",\n".join(map(self._encoder.encode, self._converted(rows)))

    def _converted(self, rows: list[Row]) -> list[Row]:
        if self._conversions:
            rows = [dict(row) for row in rows]  # The caller may still use them.
        for column, convert in self._conversions:
            name = column.name
            try:
                for row in rows:
                    value = row.get(name)
                    if value is not None:
                        row[name] = convert(value)
            except ValueError as error:
                raise StorageError(f"column {name!r} ({column.type}): {error}") from None
        for name in self._documents:
            for row in rows:
                if row.get(name, row) is None:
                    del row[name]
        return rows


def _finite(value: object) -> object:
    is_number = math.isfinite(value) if type(value) is float else is_finite(value)
    if not is_number:
        raise ValueError(f"{value} is not JSON")
    return value


def _document(value: object) -> object:
    if type(value) not in (str, dict, list) and isinstance(value, str):
        return msgspec.Raw(value.encode())  # JSON that is text already.
    return value if isinstance(value, msgspec.Raw) else _finite(value)
