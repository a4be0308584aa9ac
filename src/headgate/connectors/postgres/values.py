"""Values of records on their way into PostgreSQL: the forms that the driver and the server want."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from headgate.connectors.postgres.types import WHOLE
from headgate.errors import BadRecord

_WIDE = 2**64


def fitted(rows: list[Any], index: int, type: str) -> list[Any]:
    """The rows with one column in the form that the driver wants, where it would fail or round by itself."""
    if type in ("json", "jsonb"):
        fit: Callable[[object], object] = _json_text
    elif type.partition("(")[0] in (*WHOLE, "numeric") and any(row[index].__class__ is float for row in rows):
        fit = _integer_of if type in WHOLE else _decimal_of
    else:
        return rows
    return [(*row[:index], fit(row[index]), *row[index + 1 :]) for row in rows]


def _decimal_of(value: object) -> object:
    """0.1 as people write it, not as the machine holds it."""
    return Decimal(repr(value)) if value.__class__ is float else value


def _integer_of(value: object) -> object:
    """The driver would cut a fraction off without a word."""
    if value.__class__ is not float:
        return value
    if not value.is_integer():
        raise BadRecord(f"{value} is not an integer")
    return int(value)


def only(field: str) -> Callable[[dict[str, Any]], tuple[Any]]:
    return lambda record: (record[field],)


def key_of(row: Sequence[Any], places: Sequence[int]) -> tuple[Any, ...]:
    """What tells a row's key from others. A number that is wider than the machine's goes as text: of those, a sender
    can find any number whose hashes are equal."""
    return tuple(
        [str(one) if one.__class__ is int and not -_WIDE < one < _WIDE else one for one in map(row.__getitem__, places)]
    )


def _json_text(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value, enc_hook=str).decode()


def _plain(value: Any) -> Any:
    """For values that JSON has no word for, or another one, the text that PostgreSQL reads. It is called for each value
    of an upsert, and comparing classes is quicker than asking for instances."""
    kind = value.__class__
    if kind is float and value - value != 0:  # NaN and infinities: JSON would make them null.
        return str(value)
    return "\\x" + value.hex() if kind is bytes else value


def as_json_rows(columns: list[str], rows: list[Any]) -> str:
    """The rows as one JSON text."""
    records = [dict(zip(columns, map(_plain, row), strict=True)) for row in rows]
    return msgspec.json.encode(records).decode()
