"""What an SQLite file says of its tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from headgate.connectors.api.bulk import Column, Foreign, Index, Left, Table
from headgate.connectors.sql import ledger
from headgate.connectors.sql.quoting import quoted
from headgate.connectors.sqlite.types import FAMILY, declared_type, seen_type
from headgate.connectors.values.kinds import TEXT
from headgate.errors import Refused

Info: TypeAlias = list[tuple[str, str, int, int]]  # Name, declared type, NOT NULL, place in the key.


def tables(connection: sqlite3.Connection) -> list[str]:
    """The names of all tables that can be copied."""
    query = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' ORDER BY name"
    names = [name for (name,) in connection.execute(query)]
    return [name for name in names if not name.startswith("sqlite_") and name != ledger.TABLE]


def inventory(connection: sqlite3.Connection, names: Sequence[str], *, is_whole: bool) -> list[Left]:
    """What a copy of these tables does not have: their triggers; and of the file, its views and virtual tables."""
    query = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE ORDER BY name"
    found = [Left("trigger", trigger, name) for name in names for (trigger,) in connection.execute(query, (name,))]
    if is_whole:
        rows = connection.execute(
            "SELECT CASE type WHEN 'view' THEN type ELSE 'virtual table' END, name FROM pragma_table_list"
            " WHERE schema = 'main' AND type IN ('view', 'virtual') ORDER BY 1, 2"
        )
        found += [Left(kind, name) for kind, name in rows]
    return found


def table_info(connection: sqlite3.Connection, name: str) -> tuple[Info, bool] | None:
    """Columns (name, declared type, NOT NULL, place in the key), and whether there is a rowid. None: no such table."""
    listed = connection.execute("SELECT type, wr FROM pragma_table_list(?) WHERE schema = 'main'", (name,)).fetchone()
    if listed is None or listed[0] != "table":
        return None
    query = 'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid'
    return connection.execute(query, (name,)).fetchall(), not listed[1]


def columns_of(connection: sqlite3.Connection, name: str, info: Info) -> tuple[Column, ...]:
    """The columns with their types; those that no declaration tells, from the values."""
    types = {column: declared_type(declared) for column, declared, _, _ in info}
    unknown = [column for column, type in types.items() if type is None]
    if unknown:
        sorts = ", ".join(f"typeof({quoted(column)})" for column in unknown)
        seen = connection.execute(f"SELECT DISTINCT {sorts} FROM {quoted(name)}").fetchall()
        for place, column in enumerate(unknown):
            types[column] = seen_type({row[place] for row in seen} - {"null"})
    return tuple(
        Column(column, types[column] or TEXT, not is_filled, declared) for column, declared, is_filled, _ in info
    )


def described(connection: sqlite3.Connection, name: str) -> Table | None:
    """What a table looks like, whole. None: there is none."""
    found = table_info(connection, name)
    if found is None:
        return None
    info, has_rowid = found
    keys = sorted((place, column, declared, is_filled) for column, declared, is_filled, place in info if place)
    is_alias = has_rowid and len(keys) == 1 and keys[0][2].upper() == "INTEGER"
    key = tuple(column for _, column, _, _ in keys)
    if not (is_alias or not has_rowid or (keys and all(is_filled for *_, is_filled in keys))):
        key = ()
    columns = columns_of(connection, name, info)
    columns = tuple(Column(one.name, one.type, one.nullable and one.name not in key, one.native) for one in columns)
    details: dict[str, Any] = {
        "cut": list(key) or [_rowid(name, info)],
        "collations": collations(connection, name),
        "indexes": indexes(connection, name),
    }
    rows = connection.execute(f"SELECT count(*) FROM {quoted(name)}").fetchone()[0]
    return Table(
        name,
        columns,
        key,
        rows=rows,
        family=FAMILY,
        details=details,
        counts=key[0] if is_alias else "",
        indexes=tuple(
            Index(one["name"], tuple(column for column, _, _ in one["columns"]), one["unique"])
            for one in details["indexes"]
            if one["columns"] is not None
        ),
        unlike=tuple(
            (one["name"], "it is on an expression, or for some rows only")
            for one in details["indexes"]
            if one["columns"] is None
        ),
        foreign=foreign(connection, name),
    )


def _rowid(table: str, info: Info) -> str:
    taken = {column.lower() for column, *_ in info}
    for name in ("rowid", "_rowid_", "oid"):
        if name not in taken:
            return name
    raise Refused(f"{table} has no key, and columns that hide its rowid", code="no_key", hint="give it a key")


def collations(connection: sqlite3.Connection, name: str) -> dict[str, str]:
    """How the columns of the primary key are compared, where that is not byte by byte."""
    query = """
        SELECT x.name, x.coll FROM pragma_index_list(?) l, pragma_index_xinfo(l.name) x
        WHERE l.origin = 'pk' AND x.key AND x.coll <> 'BINARY'
    """
    return dict(connection.execute(query, (name,)).fetchall())


def foreign(connection: sqlite3.Connection, name: str) -> tuple[Foreign, ...]:
    """The foreign keys of a table. They have no names here, and may leave it at the other table's key."""
    query = 'SELECT id, "table", "from", "to", on_delete, on_update FROM pragma_foreign_key_list(?) ORDER BY id, seq'
    found: dict[int, Foreign] = {}
    for number, refers, column, to, on_delete, on_update in connection.execute(query, (name,)).fetchall():
        one = found.get(number) or Foreign("", (), refers, (), on_delete, on_update)
        found[number] = replace(one, columns=(*one.columns, column), to=one.to if to is None else (*one.to, to))
    keys = "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk"
    return tuple(
        replace(
            one,
            name=f"{name}_{'_'.join(one.columns)}_fkey",
            to=one.to or tuple(key for (key,) in connection.execute(keys, (one.refers,)).fetchall()),
        )
        for one in found.values()
    )


def indexes(connection: sqlite3.Connection, name: str) -> list[dict[str, Any]]:
    """The indexes of a table besides its primary key; those on expressions, or for some rows, as their SQL."""
    found = []
    query = "SELECT name, \"unique\", origin, partial FROM pragma_index_list(?) WHERE origin <> 'pk' ORDER BY seq DESC"
    for index, is_unique, _, is_partial in connection.execute(query, (name,)).fetchall():
        columns = connection.execute(
            'SELECT name, "desc", coll FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno', (index,)
        ).fetchall()
        sql = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ? AND type = 'index'", (index,)).fetchone()
        is_simple = not is_partial and all(column is not None for column, _, _ in columns)
        found.append(
            {
                "name": index,
                "unique": bool(is_unique),
                "columns": [list(one) for one in columns] if is_simple else None,
                "sql": sql[0] if sql else None,
            }
        )
    return found
