"""BSON values as the values of columns, and back.

    read                                             written
    string, ObjectId (24 hex digits)  TEXT           TEXT          string
    int, long                         INT64          INT16, INT32  int;  INT64: long
    double                            FLOAT64        FLOAT32/64    double
    Decimal128                        NUMERIC        DECIMAL, NUMERIC  Decimal128, up to 34 digits
    bool                              BOOL           BOOL          bool
    date                              TIMESTAMPTZ    TIMESTAMPTZ   date, which has milliseconds (see `Micros`)
    binary of subtype 4               UUID           UUID          binary of subtype 4
    other binary                      BYTES          BYTES         binary
    everything else                   JSON           JSON          document, array or value
                                                     DATE, TIME, TIMESTAMP   ISO text: BSON has no such type

A field that has several types becomes the widest of them, or JSON. In JSON every value keeps its type: what JSON has no
word for is MongoDB's relaxed extended JSON, such as `{"$oid": "…"}` or `{"$date": "…"}`. That is also what becomes of a
regular expression, code, a timestamp, a DBRef, MinKey and MaxKey. A field that is absent and one that is null are both
NULL. What fits neither way is refused with the field's name.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time
from decimal import Context, Decimal, DecimalException
from enum import StrEnum
from typing import Any, NoReturn, TypeAlias
from uuid import UUID

import bson
import msgspec
from bson import json_util
from bson.binary import Binary, UuidRepresentation
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument

from headgate.connectors.api.bulk import Bound, Column
from headgate.connectors.values.kinds import TEXT, JsonNull, Kind, Type, type_of_value, widest

FAMILY = "mongodb"
Document: TypeAlias = dict[str, Any]  # As BSON has it: the values are whatever its types are in Python.

# Dates that Python cannot hold are decoded as numbers, so that the error can name the field.
CODEC: CodecOptions[Document] = CodecOptions(
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument,
    tz_aware=True,
    uuid_representation=UuidRepresentation.STANDARD,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
_OPTIONS: dict[str, Any] = {
    "tz_aware": True,
    "uuid_representation": UuidRepresentation.STANDARD,
    "datetime_conversion": DatetimeConversion.DATETIME_AUTO,
}
_CANONICAL = json_util.JSONOptions(json_mode=json_util.JSONMode.CANONICAL, **_OPTIONS)
_RELAXED = json_util.JSONOptions(json_mode=json_util.JSONMode.RELAXED, **_OPTIONS)
_CONTEXT = Context(prec=40, Emin=-9999, Emax=9999)  # Wider than any Decimal128: nothing is rounded.
_EXACT = "$bson"  # For the few values whose extended JSON would be read as something else.

Making: TypeAlias = tuple[type | None, Callable[[Any], object]]


# Bounds.


def bound_of(id: object) -> Bound:
    """An `_id` as text, from which the same value can be made."""
    text = json_util.dumps(id, json_options=_CANONICAL)
    data = bson.encode({"": id}, codec_options=CODEC)
    try:
        is_exact = bson.encode({"": json_util.loads(text, json_options=_CANONICAL)}, codec_options=CODEC) == data
    except Exception:  # Such as a document with a field `$oid` that is none.
        is_exact = False
    return (text if is_exact else msgspec.json.encode({_EXACT: data.hex()}).decode(),)


def id_of(bound: Bound) -> Any:
    """The `_id` of a bound."""
    if bound[0].startswith(f'{{"{_EXACT}"'):
        return bson.decode(bytes.fromhex(msgspec.json.decode(bound[0])[_EXACT]), codec_options=CODEC)[""]
    return json_util.loads(bound[0], json_options=_CANONICAL)


def extended(value: object) -> str:
    """Any BSON value as canonical extended JSON."""
    return json_util.dumps(value, json_options=_CANONICAL)


def from_extended(text: str) -> Any:
    """The value of canonical extended JSON."""
    return json_util.loads(text, json_options=_CANONICAL)


def shown(id: object) -> str:
    """An `_id` for a message."""
    text = str(id) if isinstance(id, (ObjectId, UUID)) else json_util.dumps(id, json_options=_RELAXED)
    return text if len(text) <= 100 else text[:100] + "…"


# Reading.


def type_of(value: object) -> Type | None:
    """The type for a BSON value. None: it is null, and says nothing."""
    match value:
        case Code():
            return Type(Kind.JSON)
        case ObjectId():
            return TEXT
        case Decimal128():
            return Type(Kind.NUMERIC)
        case DatetimeMS():
            return Type(Kind.TIMESTAMPTZ)
        case None | str() | bool() | int() | float() | bytes() | datetime() | UUID():
            return type_of_value(value)
    return Type(Kind.JSON)


def name_of(value: object) -> str:
    """What MongoDB calls the type of a value."""
    names = {
        ObjectId: "objectId",
        Decimal128: "decimal",
        Int64: "long",
        int: "int",
        float: "double",
        str: "string",
        bool: "bool",
        datetime: "date",
        DatetimeMS: "date",
        UUID: "uuid",
        Binary: "binData",
        bytes: "binData",
        dict: "object",
        list: "array",
    }
    return names.get(type(value), type(value).__name__.lower())


def together(one: Type | None, other: Type | None) -> Type | None:
    """A type for a field that has values of both. JSON keeps the type of each."""
    if one is None or other is None:
        return one or other
    return widest(one, other) or Type(Kind.JSON)


def flat(document: Document, prefix: str = "") -> Iterator[tuple[str, object]]:
    """The fields of a document with those of the documents in it, dotted. An empty one stays, and so does `_id`."""
    for name, value in document.items():
        if type(value) is dict and value and (prefix or name != "_id"):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def readers(columns: Iterable[Column]) -> dict[str, Making]:
    """For each column the type of values that need nothing, and what makes a value of the others."""
    return {column.name: _READERS.get(column.type.kind, (None, _unreadable)) for column in columns}


def _unreadable(value: object) -> NoReturn:
    raise ValueError("MongoDB has no values of this kind")


def _text(value: object) -> str:
    if isinstance(value, ObjectId) or type(value) is str:
        return str(value)
    raise ValueError(f"{name_of(value)} is not text")


def _whole(value: object) -> int:
    number = value.to_decimal() if isinstance(value, Decimal128) else value
    if isinstance(number, bool) or not isinstance(number, (int, float, Decimal)):
        raise ValueError(f"{name_of(value)} is not a number")  # noqa: TRY004 - one error for all that does not fit.
    if not math.isfinite(number) or number != int(number):
        raise ValueError(f"{number} is not a whole number")
    return int(number)


def _double(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name_of(value)} is not a double")  # noqa: TRY004
    if int(float(value)) != value:
        raise ValueError(f"{value} would be rounded")
    return float(value)


def decimal_of(value: Decimal128) -> Decimal:
    """The same number. The client's own way goes digit by digit, and takes ten times as long."""
    bits = int.from_bytes(value.bid, "little")
    if bits >> 125 & 3 == 3:  # Infinite, no number, or not in the usual form.
        number = value.to_decimal()
        return Decimal("NaN") if number.is_nan() else number
    number = _CONTEXT.scaleb(Decimal(bits & (1 << 113) - 1), (bits >> 113 & 0x3FFF) - 6176)
    return number.copy_negate() if bits >> 127 else number


def _decimal(value: object) -> Decimal:
    if isinstance(value, Decimal128):
        return decimal_of(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    raise ValueError(f"{name_of(value)} is not a decimal number")


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return bytes(value)
    raise ValueError(f"{name_of(value)} is not binary")


def _refused(wanted: str) -> Callable[[Any], object]:
    def refuse(value: object) -> NoReturn:
        if isinstance(value, DatetimeMS):
            raise ValueError(f"the date {int(value)} ms is outside the years 1 to 9999")  # noqa: TRY004
        raise ValueError(f"{name_of(value)} is not {wanted}")

    return refuse


def json_of(value: Any) -> Any:
    """A value as JSON has it: relaxed extended JSON where it has no word."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is dict:
        return {name: json_of(one) for name, one in value.items()}
    if kind is list:
        return [json_of(one) for one in value]
    if kind is float:
        return value if math.isfinite(value) else json_util.default(value, _RELAXED)
    if kind is Int64:
        return int(value)
    if isinstance(value, UUID):
        value = Binary.from_uuid(value)
    if isinstance(value, bytes):
        subtype = getattr(value, "subtype", 0)
        return {"$binary": {"base64": base64.b64encode(value).decode(), "subType": f"{subtype:02x}"}}
    return json_of(json_util.default(value, _RELAXED))


_READERS: dict[Kind, Making] = {
    Kind.TEXT: (str, _text),
    Kind.BOOL: (bool, _refused("a bool")),
    Kind.INT16: (int, _whole),
    Kind.INT32: (int, _whole),
    Kind.INT64: (int, _whole),
    Kind.FLOAT32: (float, _double),
    Kind.FLOAT64: (float, _double),
    Kind.DECIMAL: (None, _decimal),
    Kind.NUMERIC: (None, _decimal),
    Kind.BYTES: (bytes, _bytes),
    Kind.TIMESTAMPTZ: (datetime, _refused("a date")),
    Kind.UUID: (UUID, _refused("a UUID")),
    Kind.JSON: (None, json_of),
}


# Writing.


class Micros(StrEnum):
    """What becomes of a time with microseconds, when a BSON date has milliseconds only."""

    REFUSE = "refuse"
    TEXT = "text"  # Columns of times with a zone are ISO text.
    TRUNCATE = "truncate"


def writers(columns: Iterable[Column], micros: Micros) -> dict[str, Making]:
    """For each column the type of values that need nothing, and what makes a BSON value of the others."""
    made = {column.name: _WRITERS[column.type.kind] for column in columns}
    for column in columns:
        if column.type.kind is Kind.TIMESTAMPTZ and micros is Micros.TEXT:
            made[column.name] = (None, _iso)
        elif column.type.kind is Kind.TIMESTAMPTZ and micros is Micros.TRUNCATE:
            made[column.name] = (None, _truncated)
    return made


def _must_be(*types: type) -> Callable[[Any], object]:
    def check(value: object) -> object:
        if not isinstance(value, types) or isinstance(value, bool) != (bool in types):
            raise ValueError(f"{type(value).__name__} is not {types[0].__name__}")
        return value

    return check


def _long(value: object) -> Int64:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise ValueError(f"{value!r} is not a whole number of 64 bits")
    return Int64(value)


def _decimal128(value: object) -> Decimal128:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise ValueError(f"{type(value).__name__} is not a decimal number")  # noqa: TRY004
    number = Decimal(value)
    try:
        return Decimal128(number)
    except DecimalException:
        raise ValueError(f"{str(number)[:50]} does not fit a Decimal128") from None


def _blob(value: object) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ValueError(f"{type(value).__name__} is not bytes")  # noqa: TRY004
    return bytes(value)


def _zoned(value: object) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"{type(value).__name__} is not a time with a zone")
    return value


def _moment(value: Any) -> datetime:
    if _zoned(value).microsecond % 1000:
        raise ValueError(
            f"{value.isoformat()} has microseconds, and a MongoDB date has milliseconds"
            " (?micros=text or ?micros=truncate in the URL)"
        )
    return value  # type: ignore[no-any-return]


def _truncated(value: Any) -> datetime:
    moment = _zoned(value)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _iso(value: object) -> str:
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, str):
        return value
    raise ValueError(f"{type(value).__name__} is not a date or a time")


def _uuid(value: object) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


_JSON = msgspec.json.Decoder(float_hook=Decimal)


def _embedded(value: Any) -> Any:
    """A JSON value as BSON. A number that a double does not hold exactly is a Decimal128."""
    match value:
        case None | bool() | float() | UUID() | datetime() | bytes():
            return value
        case JsonNull():
            return None
        case int():
            return value if -(2**63) <= value < 2**63 else _decimal128(value)
        case str():
            return value if type(value) is str else _embedded(_JSON.decode(value))  # Marked as JSON, not yet read.
        case Decimal():
            number = float(value)
            return number if Decimal(repr(number)) == value else _decimal128(value)
        case dict():
            if any("\0" in name for name in value):
                raise ValueError("the name of a field contains the character 0")
            return {name: _embedded(one) for name, one in value.items()}
        case list() | tuple():
            return [_embedded(one) for one in value]
        case date() | time():
            return value.isoformat()
    raise ValueError(f"{type(value).__name__} is not JSON")


_WRITERS: dict[Kind, Making] = {
    Kind.BOOL: (bool, _must_be(bool)),
    Kind.INT16: (int, _must_be(int)),
    Kind.INT32: (int, _must_be(int)),
    Kind.INT64: (None, _long),
    Kind.FLOAT32: (float, _double),
    Kind.FLOAT64: (float, _double),
    Kind.DECIMAL: (None, _decimal128),
    Kind.NUMERIC: (None, _decimal128),
    Kind.TEXT: (str, _must_be(str)),
    Kind.BYTES: (bytes, _blob),
    Kind.DATE: (None, _iso),
    Kind.TIME: (None, _iso),
    Kind.TIMESTAMP: (None, _iso),
    Kind.TIMESTAMPTZ: (None, _moment),
    Kind.UUID: (UUID, _uuid),
    Kind.JSON: (None, _embedded),
}
