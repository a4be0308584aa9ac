"""Values of the types that a schema names: JSON has no times and no decimals, but the schemas of taps do.

A schema is never a judge here. Taps announce schemas that their records do not keep, and a record that cannot be taken
as announced is handed on as it came: the mapping and the sink say what does not fit.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import TypeAlias
from uuid import UUID

Convert: TypeAlias = Callable[[object], object]
"""A value as it came to one of the announced type, or to itself."""

DEEPEST = 20
# A number may be an integer of any length, which a float would round.
_WORDS = {"boolean": "bool", "integer": "int", "number": "decimal", "object": "json", "array": "json"}
_DECIMALS = frozenset({"big_number", "decimal", "singer.decimal"})


def converter(schema: object, depth: int = 0) -> Convert | None:
    """For values of this JSON Schema. None: they are right as they come."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return None
    several = [one for word in ("anyOf", "oneOf", "allOf") for one in _list(schema.get(word))]
    found = _of_scalar(schema) or _of_object(schema, depth) or _of_list(schema, depth)
    return found or next(filter(None, (converter(one, depth + 1) for one in several)), None)


def has_decimals(schema: object, depth: int = 0) -> bool:
    """Whether some numbers are decimals: then they must not become floats on the way."""
    if isinstance(schema, list):
        return any(has_decimals(one, depth) for one in schema)
    if not isinstance(schema, dict) or depth > DEEPEST:
        return False
    return _is_decimal(schema) or any(
        has_decimals(inner, depth + 1)
        for word, value in schema.items()
        for inner in (value.values() if word == "properties" and isinstance(value, dict) else [value])
        if word in ("properties", "items", "anyOf", "oneOf", "allOf")
    )


def typed_names(schema: object) -> frozenset[str]:
    """The fields of a record whose values are converted."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return frozenset()
    return frozenset(str(name) for name, one in properties.items() if converter(one, 1) is not None)


def field_types(schema: object) -> dict[str, str]:
    """The types of fields in words, for tables that are made while a field has no value yet."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    found = {str(name): _word_of(one) for name, one in properties.items()} if isinstance(properties, dict) else {}
    return {name: word for name, word in found.items() if word}


def _word_of(schema: object) -> str:
    if not isinstance(schema, dict):
        return ""
    if _is_decimal(schema):
        return "decimal"
    types, format = [one for one in _types(schema) if isinstance(one, str)], _word(schema, "format")
    if "string" in types or format:
        as_bytes = "bytes" if schema.get("contentEncoding") == "base64" else "text"
        return {"date-time": "timestamp", "date": "date", "uuid": "uuid"}.get(format, as_bytes)
    return next((word for one in types if (word := _WORDS.get(one))), "")


def _of_scalar(schema: Mapping[str, object]) -> Convert | None:
    kind, format = _word(schema, "airbyte_type"), _word(schema, "format")
    types = _types(schema)
    if _is_decimal(schema):
        return _decimal
    if "string" in types or format:
        if kind == "timestamp_without_timezone":
            return _local_timestamp
        if format == "date-time":
            return _timestamp
        if format in _FORMATS:
            return _FORMATS[format]
        if schema.get("contentEncoding") == "base64":
            return _bytes
    if kind in ("big_integer", "integer"):
        return _integer
    if "number" in types:
        return _number
    return _integer if "integer" in types else None


def _is_decimal(schema: Mapping[str, object]) -> bool:
    step = schema.get("multipleOf")
    is_fraction = isinstance(step, float | int) and not isinstance(step, bool) and step % 1 != 0
    known = (_word(schema, "airbyte_type"), _word(schema, "format"))
    return (is_fraction and "number" in _types(schema)) or any(one in _DECIMALS for one in known)


def _of_object(schema: Mapping[str, object], depth: int) -> Convert | None:
    properties = schema.get("properties")
    inner = [
        (str(name), found)
        for name, one in (properties.items() if isinstance(properties, dict) else ())
        if (found := converter(one, depth + 1)) is not None
    ]
    if not inner:
        return None

    def convert(value: object) -> object:
        if isinstance(value, dict):
            for name, change in inner:
                if (before := value.get(name)) is not None:
                    value[name] = change(before)
        return value

    return convert


def _of_list(schema: Mapping[str, object], depth: int) -> Convert | None:
    found = converter(schema.get("items"), depth + 1)
    if found is None:
        return None
    change = found
    return lambda value: [change(one) for one in value] if isinstance(value, list) else value


def _types(schema: Mapping[str, object]) -> Iterable[object]:
    found = schema.get("type")
    return found if isinstance(found, list) else [found]


def _word(schema: Mapping[str, object], name: str) -> str:
    found = schema.get(name)
    return found if isinstance(found, str) else ""


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


# Values.


def _timestamp(value: object) -> object:
    found = _parsed(value, datetime.fromisoformat)
    return found.replace(tzinfo=UTC) if isinstance(found, datetime) and found.tzinfo is None else found


def _local_timestamp(value: object) -> object:
    return _parsed(value, datetime.fromisoformat)


def _date(value: object) -> object:
    """Taps announce dates and send midnights."""
    return _parsed(value, lambda text: date.fromisoformat(text[:10]) if text[10:11] in ("", "T", " ") else text)


def _time(value: object) -> object:
    return _parsed(value, time.fromisoformat)


def _uuid(value: object) -> object:
    return _parsed(value, UUID)


def _bytes(value: object) -> object:
    return _parsed(value, lambda text: base64.b64decode(text, validate=True))


def _decimal(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    try:
        return Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        return value


def _number(value: object) -> object:
    """A number that was read as a decimal because another field of the record is one."""
    return float(value) if isinstance(value, Decimal) else value


def _integer(value: object) -> object:
    number = _number(value)
    is_whole = isinstance(number, float) and math.isfinite(number) and number.is_integer()
    return int(value) if is_whole and isinstance(value, float | Decimal) else number


def _parsed(value: object, parse: Callable[[str], object]) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except (ValueError, OverflowError, binascii.Error):
        return value


_FORMATS: Mapping[str, Convert] = {"date": _date, "time": _time, "uuid": _uuid}
