"""The key of a record, so that a later write of the same key can find the letters that it supersedes.

A letter keeps a hash of its key, because a key is a value of the record. Two records have the same key if the sink
stores the same values for them: `"017"` and 17 are one key in a column of integers, and two in a column of text. So
a value is brought to one spelling first, by the *kind* of field that the sink keeps it in. A value that no such field
takes stays as it is: its record cannot be written, and nothing that is written has that key.

A field that gets wider keeps its keys: an integer is spelled alike in all kinds of numbers, and a day like the moment
at which it begins.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from headgate.core.letters import written

KeyKind: TypeAlias = Literal[
    "integer", "number", "double", "text", "padded", "boolean", "date", "timestamp", "timestamptz", "uuid", "other"
]
"""What a sink keeps a field of a key in. `padded`: text whose last spaces do not count. `other`: none of these."""

LONGEST = 1000  # Characters of a text that is read as a number.

_INTEGER = re.compile(r"\s*([+-]?)(?:([0-9]+(?:_[0-9]+)*)|0[xX](_?[0-9a-fA-F]+)|0[oO](_?[0-7]+)|0[bB](_?[01]+))\s*")
_WORDS = {
    **dict.fromkeys(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"), "true"),
    **dict.fromkeys(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"), "false"),
}
_MIDNIGHT = datetime.time()


def key_hash(values: Sequence[Any] | None, installation: UUID, kinds: Sequence[KeyKind] = ()) -> bytes | None:
    """What tells one key from others without telling it. None if there is none."""
    if not values or any(value is None for value in values):
        return None
    known: Sequence[KeyKind] = kinds if len(kinds) == len(values) else ["other"] * len(values)
    text = "\0".join(map(spelled, values, known))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=installation.bytes).digest()


def spelled(value: Any, kind: KeyKind) -> str:
    """The one spelling of all values that the field stores alike."""
    spell = _SPELL.get(kind)
    try:
        found = None if spell is None else spell(value)
    except (ValueError, InvalidOperation, OverflowError, TypeError, RecursionError):
        found = None
    return _as_it_is(value) if found is None else found


def _as_it_is(value: Any) -> str:
    """`1` and `1.0` are the same where nothing else is known."""
    if value.__class__ is float and value.is_integer():
        value = int(value)
    return written(value) if value.__class__ is int else str(value)


def _integer(value: Any) -> str | None:
    match value:
        case bool() | int():
            return written(int(value))
        case Decimal() if value.adjusted() > LONGEST:
            return None
        case float() | Decimal() if value == value.__trunc__():
            return written(int(value))
        case str() if len(value) <= LONGEST and (found := _INTEGER.fullmatch(value)):
            sign, *digits = found.groups()
            base, text = next((base, text) for base, text in zip((10, 16, 8, 2), digits, strict=True) if text)
            return written(int(f"{sign}{text.replace('_', '')}", base))
    return None


def _number(value: Any) -> str | None:
    match value:
        case bool() | int():
            return written(int(value))
        case float():
            return _decimal(Decimal(repr(value)))
        case Decimal():
            return _decimal(value)
        case str() if len(value) <= LONGEST and value.isascii():
            return _decimal(Decimal(value.strip())) if (whole := _integer(value)) is None else whole
    return None


def _decimal(value: Decimal) -> str | None:
    if not value.is_finite():
        return "nan" if value.is_nan() else "inf" if value > 0 else "-inf"
    if not value.as_tuple().exponent >= -LONGEST or value.adjusted() > LONGEST:  # type: ignore[operator]
        return None
    if value == value.to_integral_value():
        return written(int(value))
    return f"{value:f}".rstrip("0")


def _double(value: Any) -> str | None:
    if not isinstance(value, bool | int | float | Decimal | str) or (isinstance(value, str) and len(value) > LONGEST):
        return None
    return _number(float(value))


def _text(value: Any) -> str | None:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return written(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case bytes():
            return f"\\x{value.hex()}"
        case float() | dict() | list():
            return msgspec.json.encode(value, enc_hook=str).decode()
    return str(value)


def _boolean(value: Any) -> str | None:
    match value:
        case bool():
            return "true" if value else "false"
        case int() if value in (0, 1):
            return "true" if value else "false"
        case str():
            return _WORDS.get(value.strip().lower())
    return None


def _uuid(value: Any) -> str | None:
    return str(value if isinstance(value, UUID) else UUID(value)) if isinstance(value, UUID | str) else None


def _moment(value: Any) -> datetime.datetime | None:
    """A day is the moment at which it begins."""
    match value:
        case datetime.datetime():
            return value
        case datetime.date():
            return datetime.datetime.combine(value, _MIDNIGHT)
        case str():
            return datetime.datetime.fromisoformat(value.strip())
    return None


def _date(value: Any) -> str | None:
    moment = _moment(value)
    return None if moment is None else moment.date().isoformat()


def _timestamp(value: Any) -> str | None:
    """Where a field has no zone, that of the value does not count."""
    moment = _moment(value)
    return None if moment is None else _spelled_moment(moment.replace(tzinfo=None))


def _timestamptz(value: Any) -> str | None:
    """A moment without a zone is taken for one in UTC. Which one a database takes it for, is its own setting."""
    moment = _moment(value)
    if moment is None:
        return None
    zoned = moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment.astimezone(datetime.UTC)
    return _spelled_moment(zoned.replace(tzinfo=None))


def _spelled_moment(moment: datetime.datetime) -> str:
    return (moment.date() if moment.time() == _MIDNIGHT else moment).isoformat()


def _padded(value: Any) -> str | None:
    text = _text(value)
    return None if text is None else text.rstrip(" ")


_SPELL: Mapping[str, Callable[[Any], str | None]] = {
    "integer": _integer,
    "number": _number,
    "double": _double,
    "text": _text,
    "padded": _padded,
    "boolean": _boolean,
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "uuid": _uuid,
}
