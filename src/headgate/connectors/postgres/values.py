"""Values on their way into PostgreSQL: the forms that the driver and the server want, and types for a new table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from headgate.errors import BadRecord

# The type of a new table's column, by the first value seen. bool comes before int, datetime before date: subclasses.
_TYPES: list[tuple[type, str]] = [
    (bool, "boolean"),
    (int, "bigint"),
    (float, "double precision"),
    (Decimal, "numeric"),
    (datetime, "timestamptz"),
    (date, "date"),
    (UUID, "uuid"),
    (bytes, "bytea"),
    (str, "text"),
    (dict, "jsonb"),
    (list, "jsonb"),
]


def type_of(value: Any) -> str:
    """The type of a new column that first holds this value."""
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "text")


def fitted(rows: list[Any], index: int, type: str) -> list[Any]:
    """The rows with one column in the form that the driver wants, where it would fail or round by itself."""
    if type in ("json", "jsonb"):
        fit: Callable[[Any], Any] = _json_text
    elif type in ("int2", "int4", "int8", "numeric") and any(row[index].__class__ is float for row in rows):
        fit = _decimal_of if type == "numeric" else _integer_of
    else:
        return rows
    return [(*row[:index], fit(row[index]), *row[index + 1 :]) for row in rows]


def _decimal_of(value: Any) -> Any:
    """0.1 as people write it, not as the machine holds it."""
    return Decimal(repr(value)) if value.__class__ is float else value


def _integer_of(value: Any) -> Any:
    """The driver would cut a fraction off without a word."""
    if value.__class__ is not float:
        return value
    if not value.is_integer():
        raise BadRecord(f"{value} is not an integer")
    return int(value)


def only(field: str) -> Callable[[dict[str, Any]], tuple[Any]]:
    return lambda record: (record[field],)


def _json_text(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value, enc_hook=str).decode()


def _plain(value: Any) -> Any:
    """For values that JSON has no word for, or another one, the text that PostgreSQL reads."""
    kind = value.__class__
    if kind is float and value - value != 0:  # NaN and infinities: JSON would make them null.
        return str(value)
    return "\\x" + value.hex() if kind is bytes else value


def as_json_rows(columns: list[str], rows: list[Any]) -> str:
    """The rows as one JSON text."""
    records = [dict(zip(columns, map(_plain, row), strict=True)) for row in rows]
    return msgspec.json.encode(records).decode()
