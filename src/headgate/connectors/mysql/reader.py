"""MySQL and MariaDB as a storage: the server renders each row as one line of CSV, and the client passes lines on.

    mysql://user:password@host:port/database        mariadb://…

    unix_socket=PATH        sslmode=disable|prefer|require|verify-ca|verify-full   ssl_ca, ssl_cert, ssl_key=PATH
    tinyint1=bool           tinyint(1) is a bool, and a value other than 0 and 1 is refused
    zero_dates=null         0000-00-00 and dates without a month or a day are NULL; else they are refused
    connect_timeout=SECONDS

Sessions of MySQL cannot share a snapshot: each chunk is read as it is at that moment. A table without a key is one
chunk, read in one statement, because no other way of cutting it would see each row once. `mysql.types` says how types
are mapped.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.connectors.api.bulk import Bound, By, Csv, Language, Left, Piece, Pieces, Range, StorageError, Table
from headgate.connectors.mysql import catalog
from headgate.connectors.mysql.inventory import inventory
from headgate.connectors.mysql.lines import EmptyRow, Lines
from headgate.connectors.mysql.options import Where
from headgate.connectors.mysql.session import Session
from headgate.connectors.mysql.types import FAMILY, bound_text, condition, line, refused_columns
from headgate.connectors.sql.keys import plain_order
from headgate.connectors.sql.ledger import TABLE
from headgate.connectors.sql.quoting import backquoted as quoted
from headgate.connectors.sql.quoting import escaped_literal as text_literal
from headgate.errors import NotFound

_SETUP = (
    "SET SESSION sql_mode = '', time_zone = '+00:00'",
    # A target that is slow for a while must not end the statement; one that hangs must, eventually.
    "SET SESSION net_write_timeout = 900, wait_timeout = 3600, lock_wait_timeout = 30",
    "SET SESSION TRANSACTION READ ONLY",
)


class MysqlReader:
    """One session that reads."""

    languages: Sequence[Language] = (Language.CSV,)
    family = FAMILY

    def __init__(self, url: str) -> None:
        self._where = Where(url)
        self._session = Session(self._where, _SETUP, autocommit=True)

    async def tables(self) -> list[str]:
        """All tables of the database that are not ours."""
        database = text_literal(self._where.database)
        query = (
            f"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = {database}"
            f" AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND TABLE_NAME <> '{TABLE}' ORDER BY 1"
        )
        rows = await self._session.run(lambda: self._session.rows(query))
        return [catalog.name_for(str(row[0])) for row in rows]

    async def describe(self, table: str) -> Table:
        """Columns, key, and whatever the schema has."""
        found = await self._session.run(lambda: catalog.described(self._session, table))
        if found is None:
            raise NotFound(f"{self._where.name} has no table {table}", hint="name it as table, or database.table")
        return found

    async def begin(self) -> str | None:
        """None: no other session could read what this one holds. Each chunk is read as it is at that moment."""
        return None

    async def top(self, table: Table) -> Bound | None:
        """The greatest key, or the number of rows."""
        name = catalog.sql_name(self._session, table.name)
        if table.by is not By.KEY:
            count = await self._session.run(lambda: self._session.value(f"SELECT COUNT(*) FROM {name}"))
            return (str(count),) if count else None
        order = ", ".join(f"t.{quoted(one)} DESC" for one in table.key)
        return await self._bound(f"SELECT {_key_texts(table)} FROM {self._from(table)} ORDER BY {order} LIMIT 1")

    async def cut(self, table: Table, after: Bound | None, top: Bound, rows: int) -> Bound:
        """Where that many rows end."""
        if table.by is not By.KEY:
            return top
        order = ", ".join(f"t.{quoted(one)}" for one in table.key)
        query = (
            f"SELECT {_key_texts(table)} FROM {self._from(table)} WHERE {condition(table, Range(after, top))}"
            f" ORDER BY {order} LIMIT 1 OFFSET {rows - 1}"
        )
        return await self._bound(query) or top

    async def _bound(self, query: str) -> Bound | None:
        rows = await self._session.run(lambda: self._session.rows(query))
        return tuple(str(value) for value in rows[0]) if rows else None

    async def order(self, table: Table) -> str | None:
        """Text is put in order by collations that no other database has."""
        return plain_order(table)

    async def inventory(self, tables: Sequence[str], *, is_whole: bool) -> list[Left]:
        """What else these tables have, and what else the database has."""
        return await self._session.run(lambda: inventory(self._session, tables, is_whole=is_whole))

    async def query(self, table: Table, range: Range, language: Language, csv: Csv) -> Pieces:
        """One range. A piece is read ahead while the one before is used."""
        session = self._session
        lines = await session.run(lambda: self._lines(table, range, csv))
        is_read = False
        try:
            ahead = session.submit(lines.piece)
            while (found := await session.ended(ahead)) is not None:
                ahead = session.submit(lines.piece)
                yield Piece(found[0], len(found[0]), found[1])
            is_read = True
        except EmptyRow:
            raise await self._why(table, range) from None
        finally:
            if not is_read:
                session.cut()

    def _lines(self, table: Table, range: Range, csv: Csv) -> Lines:
        connection = self._session.connection()
        text = line(table, csv, self._where.null_dates, self._session.is_mariadb)
        return Lines(connection, f"SELECT {text} FROM {self._from(table)} WHERE {condition(table, range)}")

    def _from(self, table: Table) -> str:
        """The table, read by its key: the server might think that to go over all of it is as good."""
        index = table.details.get("key_index") if table.by is By.KEY else ""
        return f"{catalog.sql_name(self._session, table.name)} AS t" + (
            f" FORCE INDEX ({quoted(index)})" if index else ""
        )

    async def _why(self, table: Table, range: Range) -> StorageError:
        """What it was that the server could not render."""
        for column, is_refused, hint in refused_columns(table, self._where.null_dates):
            query = (
                f"SELECT CAST({quoted(column.name)} AS CHAR) FROM {self._from(table)}"
                f" WHERE ({condition(table, range)}) AND ({is_refused}) LIMIT 1"
            )
            value = await self._session.run(lambda query=query: self._session.value(query))  # type: ignore[misc]
            if value is not None:
                return StorageError(f"{table.name}: column {column.name!r} has the value {value}", hint=hint)
        most = await self._session.run(lambda: self._session.value("SELECT @@max_allowed_packet"))
        return StorageError(
            f"{table.name} has a row of more than {most} bytes", hint="raise max_allowed_packet on the source"
        )

    async def close(self) -> None:
        """End the session."""
        await self._session.close()


def _key_texts(table: Table) -> str:
    return ", ".join(bound_text(table.details["key_types"][name], name) for name in table.key)
