"""PostgreSQL as a storage: read by key or by block within one snapshot, and passed on as COPY.

A session that reads is one transaction in the snapshot that another session exported, or plain statements if there is
none. Rows leave the server as binary COPY, untouched, when the target has the same types; else as canonical CSV, which
the server renders. All sessions run in UTC, so text means the same everywhere.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg import Connection

from headgate.connectors.api.bulk import (
    MASK,
    Bound,
    By,
    Column,
    Csv,
    Digest,
    Index,
    Language,
    Piece,
    Pieces,
    Range,
    SnapshotGone,
    StorageGone,
    Table,
)
from headgate.connectors.api.whole import Definition, Left, Wanted
from headgate.connectors.guard import present
from headgate.connectors.postgres.catalog import (
    about_rows,
    columns_of,
    find,
    foreign_of,
    indexes_of,
    key_of,
    parts_of,
    proper,
    tables,
)
from headgate.connectors.postgres.errors import error_text, translate_errors
from headgate.connectors.postgres.hashing import LEAST_VERSION, Hashed, hashed
from headgate.connectors.postgres.ranges import condition, edge, key_texts, relation
from headgate.connectors.postgres.relay import AHEAD, BREATH_S, SMALL, copy_out, copy_out_text
from headgate.connectors.postgres.schema import defaults_of, details
from headgate.connectors.postgres.session import close, connect, where_is
from headgate.connectors.postgres.types import FAMILY, WHOLE, rendered
from headgate.connectors.postgres.walls import keep_out
from headgate.connectors.sql.keys import other_kinds, plain_order
from headgate.connectors.sql.quoting import literal, quoted
from headgate.connectors.values.kinds import Kind
from headgate.errors import NotFound

if TYPE_CHECKING:
    from headgate.connectors.postgres.whole import WholeDatabase

LARGE = 4 << 20  # Bytes of a value that is not left to the driver.
PIECE = 256 << 10  # Bytes gathered before they are passed on: fewer turns of the loop.
ROWS_OF_A_BLOCK = 50  # Where nobody counted.
GAPS = 2.0  # Keys count if they have no more gaps than numbers: a chunk has half of its rows then.

_UNLIKE = "it is on an expression, for some rows only, or of a kind that PostgreSQL alone has"
_COLLATION = """
SELECT concat_ws(' ', datcollate, coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale', ''),
                 datlocprovider, coalesce(datcollversion, ''))
FROM pg_database d WHERE datname = current_database()
"""


class PostgresReader:
    """One session that reads."""

    languages: Sequence[Language] = (Language.COPY, Language.CSV)
    family = FAMILY

    def __init__(self, url: str, snapshot: str | None) -> None:
        self._url = url
        self._guard = present()
        self._snapshot = snapshot
        self._connection: Connection | None = None
        self._holds = False  # The snapshot that others read.
        self._lowest: dict[str, int] = {}  # The least key of a table, where keys are whole numbers.

    @cached_property
    def _database(self) -> WholeDatabase:
        from headgate.connectors.postgres.whole import WholeDatabase  # Only where all is copied: a start is short.

        return WholeDatabase(self.session, self._url, self._snapshot)

    async def session(self) -> Connection:
        """The connection, in its snapshot if it has one."""
        is_open = self._connection is not None and not self._connection.is_closed()
        if self._holds and not is_open:
            raise StorageGone(f"the session that held the snapshot of {where_is(self._url)} has ended")
        if not is_open:
            connection = await connect(self._url, self._guard, only_reads=True)
            if self._snapshot is not None:
                try:
                    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    await connection.execute(f"SET TRANSACTION SNAPSHOT {literal(self._snapshot)}")
                except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                    connection.terminate()
                    raise SnapshotGone(f"the snapshot of {where_is(self._url)} is gone: {error_text(error)}") from None
            self._connection = connection
        return self._connection

    @asynccontextmanager
    async def _asking(self, what: str) -> AsyncIterator[Connection]:
        """The session, for one question. If that fails, the transaction that holds the snapshot goes on all the same:
        one bad table does not stop the others."""
        connection = await self.session()
        with translate_errors(where_is(self._url), what):
            if self._holds:
                await connection.execute("SAVEPOINT question")
            try:
                yield connection
            except Exception:
                if self._holds:
                    with suppress(Exception):  # What failed is what people must see.
                        await connection.execute("ROLLBACK TO question; RELEASE question")
                raise
            if self._holds:
                await connection.execute("RELEASE question")  # Locks stay: nobody may rewrite what is being read.

    async def tables(self) -> list[str]:
        """All tables that are not ours, by the name that finds them."""
        async with self._asking("list tables") as connection:
            return await tables(connection)

    async def describe(self, table: str) -> Table:
        """Columns, key and whatever the schema has."""
        return await self._described(table, is_whole=False)

    async def describe_rows(self, table: str) -> Table:
        """Columns and key: the rest of the schema is copied in its own words."""
        return await self._described(table, is_whole=True)

    async def _described(self, table: str, *, is_whole: bool) -> Table:
        async with self._asking(table) as connection:
            found = await find(connection, table)
            if found is None:
                raise NotFound(
                    f"{where_is(self._url)} has no table {table}",
                    hint="name it as schema.table, with double quotes where letters are capital",
                )
            kind, name = found["kind"], await proper(connection, table)
            columns, more = await columns_of(connection, found["oid"])
            key = await key_of(connection, found["oid"])
            known: dict[str, Any]
            indexes: tuple[Index, ...] = ()
            if is_whole:
                known = {"kind": kind, "defaults": await defaults_of(connection, found["oid"])}
            else:
                known = await details(connection, found)
                indexes = await indexes_of(connection, found["oid"])
            plain = {index.name for index in indexes}
            described = Table(
                name=name,
                columns=columns,
                key=key,
                by=By.KEY if key else By.BLOCK if kind in ("r", "m") and found["is_heap"] else By.OFFSET,
                size=found["size"],
                family=FAMILY,
                details={**more, "only": found["has_children"], **known},
                counts=next((one["name"] for one in known["defaults"] if one["identity"] or one["sequence"]), ""),
                indexes=indexes,
                unlike=tuple((one["name"], _UNLIKE) for one in known.get("indexes", ()) if one["name"] not in plain),
                foreign=() if is_whole else await foreign_of(connection, found["oid"]),
                plain=(await parts_of(connection, name))[-1],
                generated=tuple(more["generated"]),
            )
            return replace(described, rows=await about_rows(connection, found, relation(described)))

    async def begin(self) -> str | None:
        """Export the snapshot of this session. It ends with the session."""
        connection = await self.session()
        with translate_errors(where_is(self._url), "export a snapshot"):
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                snapshot: str = await connection.fetchval("SELECT pg_export_snapshot()")
            except (asyncpg.FeatureNotSupportedError, asyncpg.ObjectNotInPrerequisiteStateError):
                await connection.execute("ROLLBACK")  # A standby that cannot, or a pooler in between.
                return None
            self._holds = True
            return snapshot

    async def top(self, table: Table) -> Bound | None:
        """The greatest key, or the last block."""
        if table.by is By.OFFSET:
            return ("1",)  # No way to cut it: one chunk, read in one statement.
        async with self._asking(table.name) as connection:
            await keep_out(connection, table.name)
            if table.by is By.BLOCK:
                # Read for its lock, which stays until the snapshot ends: a table that is rewritten has other blocks.
                await connection.execute(f"SELECT FROM {relation(table)} LIMIT 0")
                blocks = await connection.fetchval(
                    "SELECT pg_relation_size(to_regclass($1)) / current_setting('block_size')::bigint", table.name
                )
                return (str(blocks - 1),) if blocks else None
            return await edge(connection, table, "DESC")

    async def cut(self, table: Table, after: Bound | None, top: Bound, rows: int) -> Bound:
        """Where that many rows end."""
        if table.by is By.OFFSET:
            return top
        if table.by is By.BLOCK:
            blocks = int(top[0]) + 1
            of_a_block = max(1, (table.rows or ROWS_OF_A_BLOCK * blocks) // blocks)
            begin = int(after[0]) if after else -1
            return (str(min(blocks - 1, begin + max(1, rows // of_a_block))),)
        async with self._asking(table.name) as connection:
            await keep_out(connection, table.name)
            if not table.exact and await self._apart(connection, table, top) <= GAPS:
                begin = self._lowest[table.name] - 1 if after is None else int(after[0])
                return (str(min(int(top[0]), begin + rows)),)
            names, where = ", ".join(map(quoted, table.key)), condition(table, Range(after, top))
            query = f"SELECT {names} FROM {relation(table)} WHERE {where} ORDER BY {names} OFFSET {rows - 1} LIMIT 1"
            # Text is made outside: inside it would be made of every row that is passed over.
            row = await connection.fetchrow(f"SELECT {key_texts(table)} FROM ({query}) AS t")
        return top if row is None else tuple(row)

    async def _apart(self, connection: Connection, table: Table, top: Bound) -> float:
        """How far a key is from the next, on average. Where keys count, rows end at least as many numbers further at
        the earliest, and no row has to be passed over to find a good end."""
        if len(table.key) > 1 or not table.rows or table.details["key_types"][table.key[0]] not in WHOLE:
            return math.inf
        if table.name not in self._lowest:
            lowest = await edge(connection, table, "ASC")
            self._lowest[table.name] = int(lowest[0]) if lowest else 0
        return (int(top[0]) - self._lowest[table.name] + 1) / table.rows

    async def order(self, table: Table) -> str | None:
        """Text is put in order by a collation: both servers must have the same, and so must the columns."""
        if (others := other_kinds(table)) is None:
            return None
        if not others:
            return plain_order(table)
        if others <= {Kind.UUID, Kind.BYTES}:
            return FAMILY
        if any(row.get("collation") for row in table.details.get("defaults", ())):
            return None
        async with self._asking("the collation") as connection:
            return f"{FAMILY} {await connection.fetchval(_COLLATION)}"

    async def forms(self, table: Table) -> tuple[str, ...] | None:
        """How this server hashes the table's columns."""
        connection = await self.session()
        if connection.get_server_version() < LEAST_VERSION:
            return None
        return tuple(one.form for one in self._hashed(connection, table))

    async def digest(self, table: Table, range: Range) -> Digest:
        """One statement, all of whose work is done by the server."""
        async with self._asking(table.name) as connection:
            await keep_out(connection, table.name)
            values = ", ".join(one.sql for one in self._hashed(connection, table))
            nullable = [column.name for column in table.columns if column.nullable]
            counts = "".join(f", count({quoted(name)})" for name in nullable)
            row = await connection.fetchrow(
                f"SELECT count(*), coalesce(sum(hash_record_extended(ROW({values}), 0)), 0)::numeric{counts}"
                f" FROM {relation(table)} WHERE {condition(table, range)}"
            )
        rows = row[0]
        nulls = {name: rows - row[place + 2] for place, name in enumerate(nullable)}
        return Digest(rows, nulls, int(row[1]) & MASK)

    def _hashed(self, connection: Connection, table: Table) -> list[Hashed]:
        encoding = connection.get_settings().server_encoding
        return [hashed(column, table, encoding) for column in table.columns]

    async def query(self, table: Table, range: Range, language: Language, csv: Csv) -> Pieces:
        """One range through COPY."""
        names = [quoted(column.name) for column in table.columns]
        if language is Language.CSV:
            native = csv.native == FAMILY
            names = [rendered(column, name, native) for column, name in zip(table.columns, names, strict=True)]
        query = f"SELECT {', '.join(names)} FROM {relation(table)} WHERE {condition(table, range)}"
        connection = await self.session()
        with translate_errors(where_is(self._url), table.name):
            await keep_out(connection, table.name)
        if language is Language.COPY:
            flowing = copy_out(connection, query)
        else:
            how = _flowing
            if await self._has_large(connection, table, range):
                how = copy_out_text
            flowing = how(connection, query, csv, _in_quotes(table.columns, csv))
        with translate_errors(where_is(self._url), table.name):
            async with flowing as pieces:
                async for piece in pieces:
                    yield piece

    async def _has_large(self, connection: Connection, table: Table, range: Range) -> bool:
        """Whether a chunk has bytes that are too long for the driver, which holds a row's digits twice."""
        sizes = [f"octet_length({quoted(one.name)}) > {LARGE}" for one in table.columns if one.type.kind is Kind.BYTES]
        if not sizes:
            return False
        query = f"SELECT FROM {relation(table)} WHERE {condition(table, range)} AND ({' OR '.join(sizes)}) LIMIT 1"
        with translate_errors(where_is(self._url), table.name):
            return bool(await connection.fetch(query))

    async def inventory(self, tables: Sequence[str], *, is_whole: bool) -> list[Left]:
        """What belongs to these tables, and to the database, besides what is made with a table."""
        from headgate.connectors.postgres.inventory import inventory

        async with self._asking("look at the schema") as connection:
            return await inventory(connection, tables, is_whole=is_whole)

    async def why_not_whole(self) -> str:
        """Why the definitions of the database cannot be had here. Empty: they can."""
        if self._guard.bounds:
            return "pg_dump opens its own connection, which only a dump of an admin may do"
        return await self._database.why_not_whole()

    async def has(self, pattern: str) -> bool:
        """Whether a pattern means a schema or anything in one."""
        return await self._database.has(pattern)

    async def whole_tables(self, wanted: Wanted) -> list[str]:
        """The tables that have rows to copy."""
        return await self._database.whole_tables(wanted)

    async def definitions(self, wanted: Wanted) -> tuple[list[Definition], list[Left]]:
        """The database in its own words."""
        return await self._database.definitions(wanted)

    def statements(self, definition: Definition) -> AsyncIterator[str]:
        """The statements of a long definition."""
        return self._database.statements(definition)

    async def last_definitions(self, wanted: Wanted, after: int) -> list[Definition]:
        """How far sequences have counted."""
        return await self._database.last_definitions(wanted, after)

    async def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await close(connection)


def _in_quotes(columns: Sequence[Column], csv: Csv) -> bool | list[str]:
    """Which values have quotes that do not need them; True: all."""
    if csv.null:
        return True  # Otherwise a text that is the same word would become NULL.
    return [column.name for column in columns if csv.alike and column.type.kind is Kind.TEXT]


@asynccontextmanager
async def _flowing(connection: Connection, query: str, csv: Csv, in_quotes: bool | list[str]) -> AsyncIterator[Pieces]:
    """Rows as CSV, from a COPY that runs a few pieces ahead of the task that takes them."""
    queue: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue(AHEAD)
    held: list[bytes] = []
    size = 0

    async def gather(data: bytes) -> None:
        nonlocal size
        if len(data) < SMALL:
            await asyncio.sleep(BREATH_S)
        held.append(data)
        size += len(data)
        if size >= PIECE:
            await queue.put(Piece(b"".join(held) if len(held) > 1 else data, size))
            held.clear()
            size = 0

    async def run() -> None:
        options: dict[str, Any] = {"format": "csv", "null": csv.null, "delimiter": csv.delimiter}
        if in_quotes:
            options["force_quote"] = in_quotes
        try:
            status = await connection.copy_from_query(query, output=gather, **options)
            await queue.put(Piece(b"".join(held), size, int(status.split()[-1])))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    async def pieces() -> Pieces:
        while (piece := await queue.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    task = asyncio.create_task(run(), name="copy")
    try:
        yield pieces()
    finally:
        if not task.done():
            task.cancel()
            connection.terminate()  # A task that leaves early needs this session no more.
        await asyncio.gather(task, return_exceptions=True)
