"""SQLite as a source: rows in the order of the key, as Arrow batches."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import pyarrow as pa

from headgate.connectors.api.bulk import Bound, Csv, Language, Left, Piece, Pieces, Range, StorageError, Table
from headgate.connectors.sql.keys import WHOLE, plain_order
from headgate.connectors.sql.quoting import quoted
from headgate.connectors.sqlite import catalog
from headgate.connectors.sqlite.ranges import Value, condition, text_of
from headgate.connectors.sqlite.session import Session, tidying_up
from headgate.connectors.sqlite.types import Unfit, array_of
from headgate.connectors.values.arrow import arrow_schema
from headgate.errors import NotFound

FETCH = 10_000  # Rows that are fetched at once.


class SqliteReader:
    """One session that reads."""

    languages: Sequence[Language] = (Language.ARROW,)

    def __init__(self, url: str) -> None:
        self._session = Session(url, "ro")

    async def tables(self) -> list[str]:
        """The names of all tables that can be copied."""
        return await self._session.run(catalog.tables)

    async def describe(self, table: str) -> Table:
        """What the table looks like."""
        found = await self._session.run(catalog.described, table)
        if found is None:
            raise NotFound(f"{self._session.path} has no table {table!r}")
        return found

    async def begin(self) -> str | None:
        """There is no snapshot: each chunk is read as it is at that moment."""
        return None

    async def top(self, table: Table) -> Bound | None:
        """The greatest key."""
        cut = table.details["cut"]
        order = ", ".join(f"{quoted(name)} DESC" for name in cut)
        query = f"SELECT {', '.join(map(quoted, cut))} FROM {quoted(table.name)} ORDER BY {order} LIMIT 1"
        return await self._session.run(self._bound, query, [])

    async def cut(self, table: Table, after: Bound | None, top: Bound, rows: int) -> Bound:
        """The key of the row that many rows further."""
        cut = table.details["cut"]
        where, values = condition(cut, Range(after, top))
        names = ", ".join(map(quoted, cut))
        query = f"SELECT {names} FROM {quoted(table.name)} WHERE {where} ORDER BY {names} LIMIT 1 OFFSET ?"
        return await self._session.run(self._bound, query, [*values, max(1, rows) - 1]) or top

    def _bound(self, connection: sqlite3.Connection, query: str, values: list[Value]) -> Bound | None:
        row = connection.execute(query, values).fetchone()
        return None if row is None else tuple(map(text_of, row))

    async def order(self, table: Table) -> str | None:
        """Numbers with a fraction and times are text here, and their bounds are not what others understand."""
        return plain_order(table, WHOLE)

    async def inventory(self, tables: Sequence[str], *, is_whole: bool) -> list[Left]:
        """What else these tables have, and what else the file has."""
        return await self._session.run(catalog.inventory, tables, is_whole=is_whole)

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
            with tidying_up():
                await run(lambda connection: cursor.close())

    def _batch(
        self,
        connection: sqlite3.Connection,
        cursor: sqlite3.Cursor,
        table: Table,
        schema: pa.Schema,
        rest: str,
        values: list[Value],
        done: int,
    ) -> pa.RecordBatch | None:
        rows = cursor.fetchmany(FETCH)
        if not rows:
            return None
        arrays = []
        for column, some in zip(table.columns, zip(*rows, strict=True), strict=True):
            try:
                arrays.append(array_of(some, column))
            except Unfit as error:
                key = table.details["cut"]
                query = f"SELECT {', '.join(map(quoted, key))} {rest} LIMIT 1 OFFSET {done + error.number}"
                where = ", ".join(map(str, connection.execute(query, values).fetchone() or ("?",)))
                row = f"{table.name}, {', '.join(key)} {where}"
                raise StorageError(f"{row}: column {column.name!r} ({column.type}) cannot hold {error}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    async def close(self) -> None:
        """End the session."""
        await self._session.close()
