"""SQLite as a target: each chunk is one transaction with its line in the ledger, the line last.

Writers take the database's only lock when their first rows are there, and queue up for it. Numbers with a fixed point
and times are kept as text, in columns whose declared type says so (`DECIMAL TEXT(12,2)`): SQLite would make floats of
them. Definitions are transactional, too, so what was built apart takes its place together with the last line.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.api.bulk import (
    PLAIN,
    AlreadyWritten,
    Column,
    Excuse,
    Job,
    Language,
    Left,
    Mode,
    Pieces,
    Range,
    StorageError,
    Table,
    bad_name,
)
from headgate.connectors.sql import ledger
from headgate.connectors.sql.quoting import quoted
from headgate.connectors.sqlite.catalog import columns_of, table_info
from headgate.connectors.sqlite.ranges import Value, condition
from headgate.connectors.sqlite.schema import WHOLE, check, copied_shape, create, index_like, refuse_triggers
from headgate.connectors.sqlite.session import Session, tidying_up
from headgate.connectors.sqlite.types import FAMILY
from headgate.connectors.values.convert import Normalizes
from headgate.connectors.values.kinds import Kind
from headgate.errors import Refused

_LEDGER = ledger.Statements(
    lambda number: "?",
    f"""dump TEXT NOT NULL, target TEXT NOT NULL, {ledger.KEY} TEXT NOT NULL, lo TEXT NOT NULL, hi TEXT NOT NULL,
    rows INTEGER NOT NULL, at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP""",
    rest="WITHOUT ROWID",
)
_MOST_LOOKED_AT = 100_000


class SqliteWriter(Normalizes):
    """One session that writes."""

    languages: Sequence[Language] = (Language.ARROW,)
    csv = PLAIN
    transactional = True
    family = FAMILY

    def __init__(self, url: str) -> None:
        self._session = Session(url, "rwc")

    def name_for(self, plain: str) -> str:
        """The same: a name is never taken apart here."""
        return plain

    async def place_of(self, table: str) -> str:
        """SQLite does not tell names apart by the case of ASCII letters."""
        if not table or "\0" in table or table.lower().startswith("sqlite_") or table.lower() == ledger.TABLE:
            raise bad_name(table, "a table")
        return "".join(one.lower() if one.isascii() else one for one in table)

    async def look(self, table: str) -> Table | None:
        """The table as it is now."""
        if not self._session.path.exists():
            return None
        return await self._session.run(_look, table)

    async def prepare(self, job: Job) -> Table:
        """The table that chunks go into, and the ledger."""
        return await self._session.run(_prepare, job)

    async def done(self, job: Job) -> dict[Range, int]:
        """What the ledger has."""
        return ledger.rows_by_range(await self._lines(_LEDGER.done, str(job.dump), job.target))

    async def unfinished(self, target: str) -> list[UUID]:
        """Dumps of this table that are not finished."""
        return [UUID(dump) for dump, _ in await self._lines(_LEDGER.unfinished_of, target)]

    async def _lines(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        def read(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
            has = table_info(connection, ledger.TABLE) is not None
            return connection.execute(query, values).fetchall() if has else []

        return await self._session.run(read) if self._session.path.exists() else []

    def accepts(self, table: Table, job: Job) -> Sequence[Language]:
        """Batches."""
        return self.languages

    async def write(
        self, job: Job, table: Table, range: Range, language: Language, pieces: Pieces, *, again: bool = False
    ) -> int:
        """One chunk and its line."""
        insert = _insert(job, table)
        run = self._session.run
        rows, is_begun = 0, False
        try:
            async for piece in pieces:
                if not is_begun:
                    await run(_begin, job, table, range, again)
                    is_begun = True
                await run(_put, insert, piece.data, job.source.columns)
                rows += piece.data.num_rows
            if not is_begun:
                await run(_begin, job, table, range, again)
            await run(_commit, job, range, rows)
        except BaseException:
            with tidying_up():
                await run(_roll_back)
            raise
        return rows

    async def undo(self, job: Job, table: Table, range: Range) -> None:
        """Nothing to undo: a transaction leaves nothing."""

    async def finish(self, job: Job) -> None:
        """Put what was built apart in its place, indexes, and the last line: one transaction."""
        await self._session.run(_finish, job)

    async def index(self, job: Job) -> list[Left]:
        """Indexes that a table of another kind of database had. Returns those that cannot be made."""
        return await self._session.run(_index, job)

    async def drop(self, job: Job) -> None:
        """Remove what was built apart, and its lines."""
        await self._session.run(_drop, job)

    async def clean(self, dump: UUID, targets: Sequence[str]) -> None:
        """Remove the dump's lines, and the ledger after the last of all lines."""
        if self._session.path.exists():
            await self._session.run(_clean, dump)

    async def close(self) -> None:
        """End the session."""
        await self._session.close()


def _look(connection: sqlite3.Connection, name: str) -> Table | None:
    found = table_info(connection, name)
    if found is None:
        return None
    count = f"SELECT count(*) FROM (SELECT 1 FROM {quoted(name)} LIMIT {_MOST_LOOKED_AT})"
    rows = connection.execute(count).fetchone()[0]
    keys = sorted((place, column) for column, _, _, place in found[0] if place)
    columns = columns_of(connection, name, found[0])
    return Table(name, columns, tuple(column for _, column in keys), rows=rows, family=FAMILY)


# A table, and the one that is built apart.


def _prepare(connection: sqlite3.Connection, job: Job) -> Table:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    with _Transaction(connection):
        connection.execute(_LEDGER.create)
        old = _look(connection, job.target)
        name = job.target
        if job.is_apart and not _is_finished(connection, job):
            name = job.apart_name
            if _look(connection, name) is None:
                connection.execute(copied_shape(connection, job) if old else create(job, name))
        elif old is None:
            connection.execute(create(job, name))
        table = _look(connection, name)
        assert table is not None, name
        check(connection, job, table)
        if old is not None and job.mode not in (Mode.REPLACE, Mode.ABSENT):
            refuse_triggers(connection, job.target)
        return table


class _Transaction:
    """All or nothing; the lock is taken at once, so that nothing fails halfway because another writer has it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK" if error else "COMMIT")


# A chunk.


def _insert(job: Job, table: Table) -> str:
    names = [column.name for column in job.source.columns]
    listed = ", ".join(map(quoted, names))
    sql = f"INSERT INTO {quoted(table.name)} ({listed}) VALUES ({', '.join('?' * len(names))})"
    key = job.key or job.source.key
    if job.mode is Mode.APPEND or job.mode is Mode.REPLACE:
        return sql
    others = [f"{quoted(name)} = excluded.{quoted(name)}" for name in names if name not in key]
    action = f"UPDATE SET {', '.join(others)}" if others and job.mode is Mode.UPSERT else "NOTHING"
    return f"{sql} ON CONFLICT ({', '.join(map(quoted, key))}) DO {action}"


def _begin(connection: sqlite3.Connection, job: Job, table: Table, range: Range, again: bool) -> None:
    connection.execute("BEGIN IMMEDIATE")
    line = (str(job.dump), job.target, ledger.key_of(range))
    if again:
        where, values = _erasable(job, range)
        connection.execute(f"DELETE FROM {quoted(table.name)} WHERE {where}", values)
        connection.execute(_LEDGER.forget_one, line)
    elif connection.execute(_LEDGER.has, line).fetchone():
        raise AlreadyWritten(f"{job.target} already has this chunk")


def _erasable(job: Job, range: Range) -> tuple[str, list[Value]]:
    """The rows of a range in this table. Only where SQLite has the same order as the source."""
    key = job.source.key
    kinds = {column.type.kind for column in job.source.columns if column.name in key}
    if job.source.family != FAMILY and not kinds <= set(WHOLE):
        raise Refused(f"{job.target}: rows of a range cannot be found by ({', '.join(key)})", hint="dump it again")
    if not key or not set(key) <= {column.name for column in job.source.columns}:
        raise Refused(f"{job.target} has no key by which the rows of a range can be found", hint="dump it again")
    return condition(key, range)


def _put(connection: sqlite3.Connection, insert: str, batch: pa.RecordBatch, columns: Sequence[Column]) -> None:
    values = [_values(batch.column(place), column) for place, column in enumerate(columns)]
    connection.executemany(insert, zip(*values, strict=True))


def _values(array: pa.Array, column: Column) -> list[Any]:
    """The values as SQLite keeps them."""
    kind = column.type.kind
    if kind in (Kind.FLOAT32, Kind.FLOAT64) and pc.any(pc.is_nan(array)).as_py():
        raise StorageError(f"column {column.name!r} ({column.type}): SQLite has no NaN, and would make it NULL")
    if kind in (Kind.FLOAT32, Kind.FLOAT64) and pc.any(pc.equal(array, 0.0)).as_py():
        numbers = pc.fill_null(array, 1.0).to_numpy(zero_copy_only=False)
        if ((numbers == 0.0) & np.signbit(numbers)).any():
            raise StorageError(
                f"column {column.name!r} ({column.type}): SQLite has no -0.0, and would make it 0.0",
                hint=f"--column {column.name}=text",
            )
    if kind is Kind.BOOL:
        array = array.cast(pa.int8())
    elif kind in (Kind.DATE, Kind.TIME, Kind.TIMESTAMP):
        array = array.cast(pa.string())
    elif kind is Kind.TIMESTAMPTZ:
        array = pc.binary_join_element_wise(array.cast(pa.timestamp("us")).cast(pa.string()), "Z", "")
    values: list[Any] = array.to_pylist()
    return [None if one is None else format(one, "f") for one in values] if kind is Kind.DECIMAL else values


def _commit(connection: sqlite3.Connection, job: Job, range: Range, rows: int) -> None:
    connection.execute(_LEDGER.write, (str(job.dump), job.target, *ledger.line_of(range), rows))
    connection.execute("COMMIT")


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


# The end.


def _is_finished(connection: sqlite3.Connection, job: Job) -> bool:
    return connection.execute(_LEDGER.has, (str(job.dump), job.target, ledger.FINISHED)).fetchone() is not None


def _finish(connection: sqlite3.Connection, job: Job) -> None:
    connection.execute("PRAGMA legacy_alter_table = ON")  # Views of the old table are views of the new one.
    with _Transaction(connection):
        if _is_finished(connection, job):
            return
        has_old = _look(connection, job.target) is not None
        if job.is_apart:
            name, apart = quoted(job.target), quoted(job.apart_name)
            if has_old and job.mode is not Mode.REPLACE:
                columns = ", ".join(quoted(column.name) for column in job.source.columns)
                connection.execute(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {apart}")
                connection.execute(f"DROP TABLE {apart}")
            else:
                query = "SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND type <> 'table' AND sql IS NOT NULL"
                dress = [sql for (sql,) in connection.execute(query, (job.target,))]
                connection.execute(f"DROP TABLE IF EXISTS {name}")
                connection.execute(f"ALTER TABLE {apart} RENAME TO {name}")
                for sql in dress:
                    connection.execute(sql)
        if job.source.family == FAMILY and (job.created or (job.is_apart and not has_old)):
            for index in job.source.details.get("indexes", []):
                _make_index(connection, job, index)
        connection.execute(_LEDGER.write, (str(job.dump), job.target, *ledger.last_line()))


def _index(connection: sqlite3.Connection, job: Job) -> list[Left]:
    missing: list[Left] = []
    copied = {column.name for column in job.source.columns}
    for one in job.source.indexes if job.source.family != FAMILY else ():
        if not copied >= set(one.columns):
            missing.append(Left("index", one.name, job.target, "its columns were not copied", Excuse.ASKED))
            continue
        name = f"{job.target}_{'_'.join(one.columns)}_{'key' if one.unique else 'idx'}"
        unique, columns = "UNIQUE " if one.unique else "", ", ".join(map(quoted, one.columns))
        try:
            connection.execute(f"CREATE {unique}INDEX IF NOT EXISTS {quoted(name)} ON {quoted(job.target)} ({columns})")
        except sqlite3.IntegrityError as error:
            missing.append(Left("index", one.name, job.target, str(error)))
    return missing


def _make_index(connection: sqlite3.Connection, job: Job, index: dict[str, Any]) -> None:
    """An index of the source. One on expressions, or for some rows, only under the table's own name."""
    query = "SELECT 1 FROM sqlite_schema WHERE name = ? COLLATE NOCASE"
    name = index["name"]
    if name.startswith("sqlite_autoindex") or connection.execute(query, (name,)).fetchone():
        name = f"{job.target}_{'_'.join(one[0] for one in index['columns'] or [['index']])}"
        if connection.execute(query, (name,)).fetchone():
            return
    if index["columns"] is not None:
        if not {one[0] for one in index["columns"]} <= {column.name for column in job.source.columns}:
            return
        parts = [
            f"{quoted(column)} COLLATE {quoted(collation)}{' DESC' if is_down else ''}"
            for column, is_down, collation in index["columns"]
        ]
        unique = "UNIQUE " if index["unique"] else ""
        connection.execute(f"CREATE {unique}INDEX {quoted(name)} ON {quoted(job.target)} ({', '.join(parts)})")
    elif index["sql"] and job.target == job.source.name and (sql := index_like(index["sql"], name, job.target)):
        connection.execute(sql)


def _clean(connection: sqlite3.Connection, dump: UUID) -> None:
    with _Transaction(connection):
        if table_info(connection, ledger.TABLE) is not None:
            connection.execute(_LEDGER.clean, (str(dump),))
            if connection.execute(_LEDGER.any).fetchone() is None:
                connection.execute(_LEDGER.drop)


def _drop(connection: sqlite3.Connection, job: Job) -> None:
    with _Transaction(connection):
        connection.execute(_LEDGER.create)
        if job.is_apart and not _is_finished(connection, job):
            connection.execute(f"DROP TABLE IF EXISTS {quoted(job.apart_name)}")
            connection.execute(_LEDGER.forget, (str(job.dump), job.target))
