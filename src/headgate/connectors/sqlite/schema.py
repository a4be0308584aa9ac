"""Tables that a dump makes in SQLite, and whether a table that exists keeps what is copied into it."""

from __future__ import annotations

import re
import sqlite3

from headgate.connectors.api.bulk import Column, Job, Mode, Table
from headgate.connectors.sql.quoting import quoted
from headgate.connectors.sqlite.catalog import indexes
from headgate.connectors.sqlite.types import FAMILY, OURS, affinity
from headgate.connectors.values.kinds import Kind, holds
from headgate.errors import Refused

WHOLE = (Kind.INT16, Kind.INT32, Kind.INT64)
_NAME = r"""("(?:[^"]|"")*"|'(?:[^']|'')*'|`[^`]*`|\[[^]]*\]|[^\s("'`\[]+)"""
_NAMED = re.compile(rf"CREATE TABLE\s*{_NAME}\s*(?=\()", re.I)
_INDEX = re.compile(
    rf"CREATE\s+(?P<unique>UNIQUE\s+)?INDEX\s+(?:IF\s+NOT\s+EXISTS\s+)?{_NAME}\s+ON\s*{_NAME}\s*(?=\()", re.I
)
_TYPE = re.compile(r"(?:[^\W\d]\w*(?: +\w+)*(?: *\( *[-+]?\d+ *(?:, *[-+]?\d+ *)?\))?)?")
_RESERVED = {"primary", "not", "null", "unique", "check", "default", "collate", "references", "generated", "as"}
_EXACT_DIGITS = 15  # Of a float: SQLite makes one of a number in text, and compares it as equal.


def create(job: Job, name: str) -> str:
    """The table that holds the source's columns."""
    source = job.source
    is_single = len(source.key) == 1
    lines = []
    for column in source.columns:
        if is_single and column.name == source.key[0] and column.type.kind in WHOLE:
            lines.append(f"{quoted(column.name)} INTEGER PRIMARY KEY")
        else:
            collation = source.details.get("collations", {}).get(column.name) if source.family == FAMILY else None
            rest = f"{'' if column.nullable else ' NOT NULL'}{f' COLLATE {quoted(collation)}' if collation else ''}"
            lines.append(f"{quoted(column.name)} {_declared(column, source)}{rest}")
    has_key = {column.name for column in source.columns} >= set(source.key) and source.key
    if has_key and not any(line.endswith("PRIMARY KEY") for line in lines):
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, source.key))})")
    return f"CREATE TABLE {quoted(name)} ({', '.join(lines)})"


def _declared(column: Column, source: Table) -> str:
    if source.family == FAMILY:
        # A declaration may be any text in a file that somebody else made; what is more than a type is left at its kind.
        is_type = _TYPE.fullmatch(column.native) and _RESERVED.isdisjoint(column.native.lower().split())
        return column.native if is_type else affinity(column.native)
    if column.type.kind is Kind.DECIMAL:
        return f"DECIMAL TEXT({column.type.precision},{column.type.scale})"
    return OURS[column.type.kind]


def index_like(sql: str, name: str, table: str) -> str | None:
    """The statement that makes an index of another file on this table. It is ours up to the bracket, and the driver
    runs one statement only: whatever follows is a part of it. None: the text is no index."""
    found = _INDEX.match(sql)
    if found is None:
        return None
    return f"CREATE {'UNIQUE ' if found['unique'] else ''}INDEX {quoted(name)} ON {quoted(table)} {sql[found.end() :]}"


def copied_shape(connection: sqlite3.Connection, job: Job) -> str:
    """The definition of the old table, for the new one."""
    query = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE"
    sql: str = connection.execute(query, (job.target,)).fetchone()[0]
    found = _NAMED.match(sql)
    if found is None:
        raise Refused(f"{job.target} has a definition that cannot be parsed", hint="use append")
    return f"CREATE TABLE {quoted(job.apart_name)} {sql[found.end() :]}"


def check(connection: sqlite3.Connection, job: Job, table: Table) -> None:
    """Each column must be there and keep what comes; SQLite itself would convert silently."""
    there = {column.name: column for column in table.columns}
    for column in job.source.columns:
        if column.name not in there:
            raise Refused(
                f"{job.target} has no column {column.name!r}", code="no_column", hint="add it, or --exclude it"
            )
        target = there[column.name]
        is_same = job.source.family == FAMILY and affinity(column.native) == affinity(target.native)
        if not is_same and not keeps(target, column):
            raise Refused(
                f"{job.target}.{column.name} is {target.native} and cannot hold {column.native or column.type}",
                code="cannot_hold",
                hint="change the target's column; nothing is rounded or cut",
            )
    if job.mode in (Mode.UPSERT, Mode.ABSENT):
        key = job.key or job.source.key
        unique = [table.key] + [
            tuple(name for name, _, _ in one["columns"])
            for one in indexes(connection, table.name)
            if one["unique"] and one["columns"]
        ]
        if not key or sorted(key) not in [sorted(one) for one in unique]:
            raise Refused(
                f"{job.target} has no unique index on ({', '.join(key)})", code="no_key", hint="name another with --key"
            )


def refuse_triggers(connection: sqlite3.Connection, table: str) -> None:
    """Triggers would change what is copied, and SQLite fires them for everybody."""
    query = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE ORDER BY 1"
    if names := [name for (name,) in connection.execute(query, (table,))]:
        raise Refused(
            f"{table} has trigger {', '.join(names[:3])}, which would change what is copied",
            code="triggers",
            hint="drop it for as long as the dump runs",
        )


def keeps(target: Column, source: Column) -> bool:
    """Whether a column keeps what is written for the source's kind, by its affinity."""
    kind, does = source.type.kind, affinity(target.native)
    if does in ("TEXT", "BLOB"):
        is_number = kind in (*WHOLE, Kind.BOOL, Kind.FLOAT32, Kind.FLOAT64)
        return not (does == "TEXT" and is_number) or holds(target.type, source.type)
    if kind is Kind.TEXT:
        return False  # "007" would become 7.
    if kind is Kind.DECIMAL:
        return does != "INTEGER" and source.type.precision <= _EXACT_DIGITS
    if kind is Kind.NUMERIC:
        return False
    if kind in (Kind.FLOAT32, Kind.FLOAT64):
        return does == "REAL" or target.type.kind is Kind.NUMERIC
    if kind is Kind.INT64:
        return does != "REAL"
    return True  # Whole numbers; and text that is not a number's.
