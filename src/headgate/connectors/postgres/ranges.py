"""Ranges of rows in PostgreSQL: by key, or by block within one snapshot."""

from __future__ import annotations

from functools import partial

from asyncpg import Connection

from headgate.connectors.api.bulk import Bound, By, Range, Table
from headgate.connectors.sql.keys import between, row_of
from headgate.connectors.sql.quoting import literal, quoted


def relation(table: Table) -> str:
    """What to select from. A table that others inherit from gives its own rows only: theirs are copied with them."""
    return f"ONLY {table.name}" if table.details.get("only") else table.name


def condition(table: Table, range: Range) -> str:
    """The rows of a range, in SQL."""
    if table.by is By.OFFSET:
        return "true"
    if table.by is By.BLOCK:
        begin = int(range.lo[0]) + 1 if range.lo else 0
        return f"ctid >= '({begin},0)' AND ctid < '({int(range.hi[0]) + 1},0)'"
    return between(range, partial(_compared, table))


def _compared(table: Table, operator: str, bound: Bound) -> str:
    """A comparison of the whole key, in the order of its index."""
    natives = table.details["key_types"]
    values = [f"{literal(text)}::{natives[name]}" for name, text in zip(table.key, bound, strict=True)]
    return f"{row_of([*map(quoted, table.key)])} {operator} {row_of(values)}"


def key_texts(table: Table) -> str:
    """The key as text. Its columns are ordered by `t.…`: a bare name would mean this text."""
    return ", ".join(f"t.{quoted(name)}::text" for name in table.key)


async def edge(connection: Connection, table: Table, direction: str) -> Bound | None:
    """The first key in that direction."""
    order = ", ".join(f"t.{quoted(name)} {direction}" for name in table.key)
    row = await connection.fetchrow(f"SELECT {key_texts(table)} FROM {relation(table)} AS t ORDER BY {order} LIMIT 1")
    return None if row is None else tuple(row)
