"""Values of records on their way into PostgreSQL: the forms that the driver and the server want."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from headgate.connectors.postgres.types import WHOLE

FLOATS = ("real", "double precision")
LONGEST_JSON = 64 * 2**20  # Characters of one statement's rows. A message to the server may have a gigabyte.

_WIDE = 2**64


class Unfit(TypeError):
    """A value that neither the driver nor the server may get, because it would be cut."""


def fitted(rows: list[Any], index: int, type: str, *, as_json: bool) -> list[Any]:
    """The rows with one column in the form that is wanted, where the driver or the server would fail or round.

    What can be written by COPY can be written as JSON, too. So it depends on a record alone whether it can be written.
    """
    if type in ("json", "jsonb"):
        if as_json:
            return rows
        fit: Callable[[object], object] = _json_text
    elif type in WHOLE:
        if {row[index].__class__ for row in rows}.isdisjoint((float, bool, Decimal)):
            return rows
        fit = _integer_of
    elif (is_numeric := type.partition("(")[0] == "numeric") or (as_json and type in FLOATS):
        found = {row[index].__class__ for row in rows}
        if not (found & {bool} or (is_numeric and not as_json and float in found)):
            return rows
        fit = _number_of if as_json else _decimal_of
    else:
        return rows
    return [(*row[:index], fit(row[index]), *row[index + 1 :]) for row in rows]


def _decimal_of(value: object) -> object:
    """0.1 as people write it, not as the machine holds it."""
    return Decimal(repr(value)) if value.__class__ is float else _number_of(value)


def _number_of(value: object) -> object:
    return int(value) if value.__class__ is bool else value


def _integer_of(value: object) -> object:
    """The driver would cut a fraction off without a word."""
    match value:
        case bool():
            return int(value)
        case float() if not value.is_integer():
            raise Unfit("a fraction in a column of integers")
        case Decimal() if not value.is_finite() or value.adjusted() > 30 or value != value.to_integral_value():
            raise Unfit("a fraction in a column of integers, or far too large for it")
        case float() | Decimal():
            return int(value)
    return value


def only(field: str) -> Callable[[dict[str, Any]], tuple[Any]]:
    return lambda record: (record[field],)


def key_of(row: Sequence[Any], places: Sequence[Any]) -> tuple[Any, ...]:
    """What tells a row's key from others. A number that is wider than the machine's goes as text: of those, a sender
    can find any number whose hashes are equal."""
    return tuple([hashed(row[place]) for place in places])


def hashed(value: Any) -> Any:
    """The value, or what stands for it in a set: an object or a list can be in none."""
    kind = value.__class__
    if kind is int and not -_WIDE < value < _WIDE:
        return str(value)
    return msgspec.json.encode(value, enc_hook=str) if kind is dict or kind is list else value


def _json_text(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value, enc_hook=str).decode()


def _plain(value: Any) -> Any:
    """For values that JSON has no word for, or another one, the text that PostgreSQL reads. It is called for each value
    of an upsert, and comparing classes is quicker than asking for instances."""
    kind = value.__class__
    if kind is float and value - value != 0:  # NaN and infinities: JSON would make them null.
        return str(value)
    return "\\x" + value.hex() if kind is bytes else value


def as_json_rows(columns: Sequence[str], rows: Sequence[Any]) -> str:
    """The rows as one JSON text."""
    records = [dict(zip(columns, map(_plain, row), strict=True)) for row in rows]
    return msgspec.json.encode(records, enc_hook=str).decode()


def json_texts(columns: Sequence[str], rows: Sequence[Any]) -> Iterator[str]:
    """The rows as JSON texts, each of which the server can be sent."""
    text = as_json_rows(columns, rows)
    if len(text) <= LONGEST_JSON or len(rows) == 1:
        yield text
        return
    middle = len(rows) // 2
    yield from json_texts(columns, rows[:middle])
    yield from json_texts(columns, rows[middle:])


def text_of(value: Any) -> str:
    """What the server reads where the value is in a JSON text and its column is none of JSON."""
    plain = _plain(value)
    if plain.__class__ is str:
        return plain
    text = msgspec.json.encode(plain, enc_hook=str).decode()
    return str(msgspec.json.decode(text)) if text.startswith('"') else text
