"""How the server hashes each column of a table, so that rows of two servers can be compared by a few numbers.

`hash_record_extended` calls two values equal if PostgreSQL does, and PostgreSQL calls much equal that a copy must keep
apart: `1 mon` and `30 days`, 0 and -0, `a` and `A` where a collation says so, arrays of other dimensions. Some types
have no hash, and others are hashed by numbers that each database gives out itself, such as enums. So a column is hashed
as it is only if its hash means the value. Floats and money are hashed as they are sent, everything else as its text:
intervals by their fields, enums by their labels, documents by what is written in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headgate.connectors.api.bulk import Column, Table
from headgate.connectors.postgres.types import FAMILY
from headgate.connectors.sql.quoting import quoted

LEAST_VERSION = (14,)  # Of a server that hashes records.

_AS_THEY_ARE = frozenset(
    {
        "boolean",
        "smallint",
        "integer",
        "bigint",
        "oid",
        "numeric",
        "date",
        "time without time zone",
        "time with time zone",
        "timestamp without time zone",
        "timestamp with time zone",
        "uuid",
        "bytea",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
        '"char"',
    }
)
_TEXTS = {"text": "text", "character varying": "text", "character": "character", "name": "name"}
# What their text would lose, or what it would say differently where the server's language is another.
_AS_SENT = {
    "real": "float4send",
    "double precision": "float8send",
    "money": "cash_send",
    "money[]": "array_send",
    "bpchar": "bpcharsend",
}


@dataclass(frozen=True, slots=True)
class Hashed:
    """One column as it is hashed."""

    form: str  # Columns of the same form have equal hashes for equal values.
    sql: str


def hashed(column: Column, table: Table, encoding: str) -> Hashed:
    """How a column is hashed on a server with this encoding. A domain is hashed as what it stands for."""
    name = quoted(column.name)
    type = re.sub(r"\([^)]*\)", "", table.details["plain"][column.name])
    if type in _AS_THEY_ARE:
        return Hashed(f"{FAMILY} {type}", name)
    if type in _TEXTS:  # By its bytes, whatever its own collation takes for the same.
        return Hashed(f"{FAMILY} {_TEXTS[type]} {encoding}", f'{name} COLLATE "C"')
    if type in _AS_SENT:
        return Hashed(f"{FAMILY} {type} {encoding}", f"{_AS_SENT[type]}({name})")
    return Hashed(f"{FAMILY} {type} {encoding}", f"{name}::text")
