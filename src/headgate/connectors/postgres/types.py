"""Types of PostgreSQL: what they are to others, how their text is had, and what is made for others' columns."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

from asyncpg import Record

from headgate.connectors.api.bulk import Column, Table
from headgate.connectors.values.kinds import TEXT, Kind, Type, decimal_type

if TYPE_CHECKING:
    from headgate.connectors.api import KeyKind

FAMILY = "postgresql"
WHOLE = ("smallint", "integer", "bigint")

_KINDS = {
    "bool": Kind.BOOL,
    "int2": Kind.INT16,
    "int4": Kind.INT32,
    "int8": Kind.INT64,
    "oid": Kind.INT64,
    "float4": Kind.FLOAT32,
    "float8": Kind.FLOAT64,
    "bytea": Kind.BYTES,
    "date": Kind.DATE,
    "time": Kind.TIME,
    "timestamp": Kind.TIMESTAMP,
    "timestamptz": Kind.TIMESTAMPTZ,
    "uuid": Kind.UUID,
    "json": Kind.JSON,
    "jsonb": Kind.JSON,
}
_MADE = {
    Kind.BOOL: "boolean",
    Kind.INT16: "smallint",
    Kind.INT32: "integer",
    Kind.INT64: "bigint",
    Kind.NUMERIC: "numeric",
    Kind.FLOAT32: "real",
    Kind.FLOAT64: "double precision",
    Kind.TEXT: "text",
    Kind.BYTES: "bytea",
    Kind.DATE: "date",
    Kind.TIME: "time",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamptz",
    Kind.UUID: "uuid",
    Kind.JSON: "jsonb",
}
# What the values of a key are compared as, by the type of their column without its sizes.
_KEYS: dict[str, KeyKind] = {
    **dict.fromkeys(WHOLE, "integer"),
    "numeric": "number",
    "double precision": "double",
    "text": "text",
    "character varying": "text",
    "character": "padded",
    "boolean": "boolean",
    "date": "date",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "uuid": "uuid",
}
# The type of a column that first holds such a value. bool comes before int, datetime before date: subclasses.
_OF_VALUES: list[tuple[type, str]] = [
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


def type_of(row: Record) -> Type:
    """The type of a column, from the catalog's row."""
    if row["type"] == "numeric":
        if row["size"] < 4:
            return Type(Kind.NUMERIC)
        size = row["size"] - 4
        scale = size & 0x7FF
        return decimal_type(size >> 16, scale - 0x800 if scale >= 0x400 else scale)
    if row["type"] in ("varchar", "bpchar"):
        return Type(Kind.TEXT, length=max(0, row["size"] - 4))
    if row["type"] == "money":
        return Type(Kind.NUMERIC)
    if row["category"] == "A":
        return Type(Kind.JSON)
    return Type(_KINDS[row["type"]]) if row["type"] in _KINDS else TEXT


def rendered(column: Column, name: str, native: bool) -> str:
    """The SQL for a column's text: the canonical one, or one that only PostgreSQL understands, and better."""
    if column.native == "money":
        return f"{name}::numeric"  # Its own text depends on the server's language.
    match column.type.kind:
        case Kind.BOOL:
            return f"{name}::int"
        case Kind.TIMESTAMPTZ if not native:
            return f"{name} AT TIME ZONE 'UTC'"
        case Kind.JSON if not native and column.native not in ("json", "jsonb", ""):
            return f"to_jsonb({name})"
    return name


def made_type(column: Column, source: Table) -> str:
    """The type of a column that is made for a source's column."""
    if source.family == FAMILY and column.native:
        return column.native
    if column.type.kind is Kind.DECIMAL:
        return f"numeric({column.type.precision},{column.type.scale})"
    if column.type.kind is Kind.TEXT and column.type.length:
        return f"varchar({column.type.length})"
    return _MADE[column.type.kind]


def key_kind(type: str) -> KeyKind:
    """What the values of a key are compared as in a column of this type. A type with a size that rounds is `other`."""
    return _KEYS.get(type, "other")


def type_for_values(values: Iterable[object]) -> str:
    """The type of a column that is made for records: one that holds all these values, and loses nothing."""
    found, is_wide = set(), False
    for value in values:
        if value is not None:
            found.add(next((name for kind, name in _OF_VALUES if isinstance(value, kind)), "text"))
            is_wide = is_wide or (value.__class__ is int and not -(2**63) <= value < 2**63)
    if is_wide:
        found.add("numeric")
    if len(found) < 2:
        return found.pop() if found else "text"
    if found <= {"bigint", "double precision", "numeric"}:
        return "numeric"
    if found <= {"date", "timestamptz"}:
        return "timestamptz"
    return "jsonb" if "jsonb" in found else "text"
