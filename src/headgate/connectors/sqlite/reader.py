"""SQLite as a source, and what both sides know of its types.

SQLite gives a type to each value and only an affinity to a column. A column's kind comes from its declared type, by
SQLite's rules and the usual names; where these say too little (no type at all, DATETIME, STRING) from the sorts of
values that are in it. A value that is not of its column's kind ends the chunk with table, column and row: nothing is
converted. NUMERIC and DECIMAL(p,s) are what SQLite has: whole numbers, text, or floats, of which the shortest digits
count.

A table is cut by its primary key if that is NOT NULL, and else by its rowid, which is not copied. A bound is text: a
whole number in digits, text after a quote, bytes in hexadecimal after `x'`, and a float with its point. SQLite
compares, with the collation of the column.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import msgspec
import pyarrow as pa

from headgate.connectors.api.bulk import (
    Bound,
    Column,
    Csv,
    Foreign,
    Index,
    Language,
    Piece,
    Pieces,
    Range,
    StorageError,
    StorageGone,
    Table,
)
from headgate.connectors.files.reader import path_and_options
from headgate.connectors.sql import ledger
from headgate.connectors.sql.keys import WHOLE, plain_order
from headgate.connectors.values.arrow import arrow_schema, arrow_type
from headgate.connectors.values.convert import fine
from headgate.connectors.values.kinds import TEXT, Kind, Type, canonical, decimal_type
from headgate.errors import NotFound, Refused
from headgate.text import one_line

FAMILY = "sqlite"
FETCH = 10_000  # Rows that are fetched at once.
BUSY_S = 300.0  # Writers queue up behind a chunk; so many of them may wait that it takes minutes.
T = TypeVar("T")


class Session:
    """One connection, and the thread in which it works."""

    def __init__(self, url: str, mode: str) -> None:
        self.path = path_and_options(url, ())[0]
        self._mode = mode
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    def connection(self) -> sqlite3.Connection:
        """The connection, opened when it is first needed. Only in the thread."""
        if self._connection is None:
            if self._mode != "rwc" and not self.path.exists():
                raise NotFound(f"file {self.path} does not exist")
            self._connection = sqlite3.connect(
                f"file:{quote(str(self.path))}?mode={self._mode}",
                uri=True,
                isolation_level=None,
                timeout=BUSY_S,
                check_same_thread=False,
            )
        return self._connection

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Do something in the thread, after what was asked for before."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "sqlite")

        def run() -> T:
            with telling(self.path):
                return work(self.connection(), *args)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    async def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.interrupt()
            await self.run(_closed)
            self._connection = None
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None


def _closed(connection: sqlite3.Connection) -> None:
    """The last session of a file writes the log into it, unless it is still interrupted: a statement ends that."""
    connection.execute("SELECT 1").fetchone()
    connection.close()


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        told = f"{path}: {one_line(error)}"
        if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_READONLY")):
            raise StorageGone(told) from None
        hint = "make room and resume" if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" else ""
        raise StorageError(told, hint=hint) from None


def quoted(name: str) -> str:
    """A name as SQL."""
    return '"' + name.replace('"', '""') + '"'


# Bounds.


def text_of(value: Any) -> str:
    """A value of a key as part of a bound."""
    match value:
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            return f"'{value}"
        case bytes():
            return f"x'{value.hex()}"
    raise Refused("a key has a NULL", code="null_key")


def value_of(text: str) -> Any:
    """The value of that part."""
    if text.startswith("'"):
        return text[1:]
    if text.startswith("x'"):
        return bytes.fromhex(text[2:])
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def condition(names: Sequence[str], range: Range) -> tuple[str, list[Any]]:
    """The rows of a range as SQL, and its parameters."""
    key = f"({', '.join(map(quoted, names))})" if len(names) > 1 else quoted(names[0])
    marks = f"({', '.join('?' * len(names))})" if len(names) > 1 else "?"
    values = [value_of(one) for one in range.hi]
    if range.lo is None:
        return f"{key} <= {marks}", values
    return f"{key} > {marks} AND {key} <= {marks}", [value_of(one) for one in range.lo] + values


# Types.

OURS = {  # The declared types of tables that we make: text keeps each digit, and the name says what it is.
    Kind.BOOL: "BOOLEAN",
    Kind.INT16: "INT16",
    Kind.INT32: "INT32",
    Kind.INT64: "INTEGER",
    Kind.NUMERIC: "NUMERIC TEXT",
    Kind.FLOAT32: "FLOAT32",
    Kind.FLOAT64: "REAL",
    Kind.TEXT: "TEXT",
    Kind.BYTES: "BLOB",
    Kind.DATE: "DATE TEXT",
    Kind.TIME: "TIME TEXT",
    Kind.TIMESTAMP: "TIMESTAMP TEXT",
    Kind.TIMESTAMPTZ: "TIMESTAMPTZ TEXT",
    Kind.UUID: "UUID TEXT",
    Kind.JSON: "JSON TEXT",
}
_NAMES = {name: kind for kind, name in OURS.items()} | {"BOOL": Kind.BOOL, "UUID": Kind.UUID, "JSON": Kind.JSON}


def affinity(declared: str) -> str:
    """What SQLite does to values of a column with this declared type: its five rules, in its order."""
    name = declared.upper()
    rules = [("INT", "INTEGER"), ("CHAR", "TEXT"), ("CLOB", "TEXT"), ("TEXT", "TEXT"), ("BLOB", "BLOB")]
    rules += [("REAL", "REAL"), ("FLOA", "REAL"), ("DOUB", "REAL")]
    return next((kind for part, kind in rules if part in name), "NUMERIC" if name else "BLOB")


def declared_type(declared: str) -> Type | None:
    """The type that a declaration tells. None: look at the values."""
    name = " ".join(declared.upper().split())
    if name in _NAMES:
        return Type(_NAMES[name])
    found = re.fullmatch(r"(?:DECIMAL|NUMERIC)(?: TEXT)?(?: ?\( ?(\d+) ?(?:, ?(\d+) ?)?\))?", name)
    if found:
        return decimal_type(int(found[1]), int(found[2] or 0)) if found[1] else Type(Kind.NUMERIC)
    kinds = {"INTEGER": Kind.INT64, "TEXT": Kind.TEXT, "REAL": Kind.FLOAT64}
    if name and affinity(name) == "BLOB":
        return Type(Kind.BYTES)
    return Type(kinds[affinity(name)]) if affinity(name) in kinds else None


def _seen_type(sorts: set[str]) -> Type:
    """The type for the sorts of values that a column has."""
    if sorts == {"integer", "real"}:
        return Type(Kind.NUMERIC)
    kinds = {"integer": Kind.INT64, "real": Kind.FLOAT64, "blob": Kind.BYTES}
    return Type(kinds[next(iter(sorts))]) if len(sorts) == 1 and sorts <= kinds.keys() else TEXT


def table_info(connection: sqlite3.Connection, name: str) -> tuple[list[tuple[Any, ...]], bool] | None:
    """Columns (name, declared type, NOT NULL, place in the key), and whether there is a rowid. None: no such table."""
    listed = connection.execute("SELECT type, wr FROM pragma_table_list(?) WHERE schema = 'main'", (name,)).fetchone()
    if listed is None or listed[0] != "table":
        return None
    query = 'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid'
    return connection.execute(query, (name,)).fetchall(), not listed[1]


def columns_of(connection: sqlite3.Connection, name: str, info: list[tuple[Any, ...]]) -> tuple[Column, ...]:
    """The columns with their types; those that no declaration tells, from the values."""
    types = {column: declared_type(declared) for column, declared, _, _ in info}
    unknown = [column for column, type in types.items() if type is None]
    if unknown:
        sorts = ", ".join(f"typeof({quoted(column)})" for column in unknown)
        seen = connection.execute(f"SELECT DISTINCT {sorts} FROM {quoted(name)}").fetchall()
        for place, column in enumerate(unknown):
            types[column] = _seen_type({row[place] for row in seen} - {"null"})
    return tuple(
        Column(column, types[column] or TEXT, not is_filled, declared) for column, declared, is_filled, _ in info
    )


def _refuse(value: Any) -> Any:
    raise ValueError(value)


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bytes):
        raise ValueError  # noqa: TRY004 - the caller tells what is wrong
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _bool(value: Any) -> bool:
    if value in (0, 1) and isinstance(value, int):
        return value == 1
    raise ValueError


def _instant(value: str) -> datetime:
    found = datetime.fromisoformat(fine(value))
    return found.astimezone(UTC) if found.tzinfo else _refuse(value)


def _wall(value: str) -> datetime:
    found = datetime.fromisoformat(fine(value))
    return found if found.tzinfo is None else _refuse(value)


def _json(value: Any) -> str:
    text = value if isinstance(value, str) else _refuse(value) if isinstance(value, bytes) else repr(value)
    msgspec.json.decode(text)
    return text


def _text(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: read(value) if isinstance(value, str) else _refuse(value)


_PLAIN: dict[Kind, type] = {
    Kind.INT16: int,
    Kind.INT32: int,
    Kind.INT64: int,
    Kind.FLOAT32: float,
    Kind.FLOAT64: float,
    Kind.TEXT: str,
    Kind.BYTES: bytes,
}
_AS_TEXT = {Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}  # Arrow reads these strictly, and fast.
_READS: dict[Kind, Callable[[Any], Any]] = {
    Kind.BOOL: _bool,
    Kind.DECIMAL: _decimal,
    Kind.NUMERIC: lambda value: canonical(_decimal(value)),
    Kind.DATE: _text(date.fromisoformat),
    Kind.TIME: _text(lambda value: _refuse(value) if (found := time.fromisoformat(fine(value))).tzinfo else found),
    Kind.TIMESTAMP: _text(_wall),
    Kind.TIMESTAMPTZ: _text(_instant),
    Kind.UUID: _text(lambda value: str(UUID(value))),
    Kind.JSON: _json,
}


def array_of(values: Sequence[Any], column: Column) -> Any:
    """The values of one column. Raises ValueError with the number of the first row that does not fit."""
    kind = column.type.kind
    if kind in _AS_TEXT and {type(value) for value in values} <= {str, type(None)}:
        with suppress(pa.ArrowException):  # Value by value, then, to find the one that does not fit.
            return pa.array(values, pa.string()).cast(arrow_type(column.type))
    plain = _PLAIN.get(kind)
    if plain is None or not {type(value) for value in values} <= {plain, type(None)}:

        def same(value: Any) -> Any:
            return value if type(value) is plain else _refuse(value)

        reads = _READS.get(kind, same)
        read = []
        for number, value in enumerate(values):
            try:
                read.append(None if value is None else reads(value))
            except (ValueError, InvalidOperation, msgspec.MsgspecError):
                raise _Unfit(number, value) from None
        values = read
    try:
        return pa.array(values, arrow_type(column.type))
    except (pa.ArrowException, OverflowError):
        for number, value in enumerate(values):
            try:
                pa.array([value], arrow_type(column.type))
            except (pa.ArrowException, OverflowError):
                raise _Unfit(number, value) from None
        raise


class _Unfit(ValueError):
    """A value that is not of its column's kind."""

    def __init__(self, number: int, value: Any) -> None:
        super().__init__(f"{type(value).__name__} {str(value)[:40]!r}")
        self.number = number


# Reading.


class SqliteReader:
    """One session that reads."""

    languages: Sequence[Language] = (Language.ARROW,)

    def __init__(self, url: str) -> None:
        self._session = Session(url, "ro")

    async def tables(self) -> list[str]:
        """The names of all there is to copy."""
        return await self._session.run(self._tables)

    def _tables(self, connection: sqlite3.Connection) -> list[str]:
        query = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' ORDER BY name"
        names = [name for (name,) in connection.execute(query)]
        return [name for name in names if not name.startswith("sqlite_") and name != ledger.TABLE]

    async def describe(self, table: str) -> Table:
        """What the table looks like."""
        return await self._session.run(self._describe, table)

    def _describe(self, connection: sqlite3.Connection, name: str) -> Table:
        found = table_info(connection, name)
        if found is None:
            raise NotFound(f"{self._session.path} has no table {name!r}")
        info, has_rowid = found
        keys = sorted((place, column, declared, is_filled) for column, declared, is_filled, place in info if place)
        is_alias = has_rowid and len(keys) == 1 and keys[0][2].upper() == "INTEGER"
        key = tuple(column for _, column, _, _ in keys)
        if not (is_alias or not has_rowid or (keys and all(is_filled for *_, is_filled in keys))):
            key = ()
        columns = columns_of(connection, name, info)
        columns = tuple(Column(one.name, one.type, one.nullable and one.name not in key, one.native) for one in columns)
        details = {
            "cut": list(key) or [self._rowid(name, info)],
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
            foreign=foreign(connection, name),
        )

    def _rowid(self, table: str, info: list[tuple[Any, ...]]) -> str:
        taken = {column.lower() for column, *_ in info}
        for name in ("rowid", "_rowid_", "oid"):
            if name not in taken:
                return name
        raise Refused(f"{table} has no key, and columns that hide its rowid", code="no_key", hint="give it a key")

    async def begin(self) -> str | None:
        """Each chunk is read as it is at its time."""
        return None

    async def top(self, table: Table) -> Bound | None:
        """The greatest key."""
        cut = table.details["cut"]
        order = ", ".join(f"{quoted(name)} DESC" for name in cut)
        query = f"SELECT {', '.join(map(quoted, cut))} FROM {quoted(table.name)} ORDER BY {order} LIMIT 1"
        return await self._session.run(self._bound, query, [])

    async def cut(self, table: Table, after: Bound | None, top: Bound, rows: int) -> Bound:
        """The key of the row so many rows further."""
        cut = table.details["cut"]
        where, values = condition(cut, Range(after, top))
        names = ", ".join(map(quoted, cut))
        query = f"SELECT {names} FROM {quoted(table.name)} WHERE {where} ORDER BY {names} LIMIT 1 OFFSET ?"
        return await self._session.run(self._bound, query, [*values, max(1, rows) - 1]) or top

    def _bound(self, connection: sqlite3.Connection, query: str, values: list[Any]) -> Bound | None:
        row = connection.execute(query, values).fetchone()
        return None if row is None else tuple(map(text_of, row))

    async def order(self, table: Table) -> str | None:
        """Numbers with a fraction and times are text here, and their bounds are not what others understand."""
        return plain_order(table, WHOLE)

    async def query(self, table: Table, range: Range, language: Language, csv: Csv) -> Pieces:
        """The rows of one range, in the order of the key."""
        cut = table.details["cut"]
        where, values = condition(cut, range)
        names = ", ".join(quoted(column.name) for column in table.columns)
        rest = f"FROM {quoted(table.name)} WHERE {where} ORDER BY {', '.join(map(quoted, cut))}"
        schema = arrow_schema(table.columns)
        run = self._session.run
        cursor = await run(lambda connection: connection.execute(f"SELECT {names} {rest}", values))
        done = 0
        try:
            while (batch := await run(self._batch, cursor, table, schema, rest, values, done)) is not None:
                done += batch.num_rows
                yield Piece(batch, batch.nbytes, batch.num_rows)
        finally:
            with suppress(StorageError):
                await run(lambda connection: cursor.close())

    def _batch(
        self, connection: sqlite3.Connection, cursor: Any, table: Table, schema: Any, rest: str, values: Any, done: int
    ) -> Any:
        rows = cursor.fetchmany(FETCH)
        if not rows:
            return None
        arrays = []
        for column, some in zip(table.columns, zip(*rows, strict=True), strict=True):
            try:
                arrays.append(array_of(some, column))
            except _Unfit as error:
                key = table.details["cut"]
                query = f"SELECT {', '.join(map(quoted, key))} {rest} LIMIT 1 OFFSET {done + error.number}"
                where = ", ".join(map(str, connection.execute(query, values).fetchone() or ("?",)))
                row = f"{table.name}, {', '.join(key)} {where}"
                raise StorageError(f"{row}: column {column.name!r} ({column.type}) cannot hold {error}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    async def close(self) -> None:
        """End the session."""
        await self._session.close()


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
