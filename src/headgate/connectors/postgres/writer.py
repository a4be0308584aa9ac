"""PostgreSQL as a target: each chunk is one COPY and one line in the ledger, in one transaction, the line last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from uuid import UUID

import asyncpg
from asyncpg import Connection, Record

from headgate.connectors.api.bulk import (
    AlreadyWritten,
    By,
    Column,
    Csv,
    Job,
    Language,
    Left,
    Mode,
    Piece,
    Pieces,
    Range,
    StorageError,
    Table,
)
from headgate.connectors.guard import present
from headgate.connectors.postgres import catalog, links, schema
from headgate.connectors.postgres.catalog import columns_of, find, must_find, parts_of, proper, unique_keys
from headgate.connectors.postgres.definition_writer import MakesDefinitions
from headgate.connectors.postgres.errors import translate_errors
from headgate.connectors.postgres.fit import check, has_binary_forms, is_same
from headgate.connectors.postgres.ranges import condition
from headgate.connectors.postgres.relay import copy_in
from headgate.connectors.postgres.session import close, connect, roll_back, where_is
from headgate.connectors.postgres.swap import copy_shape, dress, refuse_dependents, swap
from headgate.connectors.postgres.triggers import refuse_orphans, silence
from headgate.connectors.postgres.types import FAMILY
from headgate.connectors.postgres.walls import keep_out
from headgate.connectors.sql import ledger
from headgate.connectors.sql.quoting import literal, quoted
from headgate.connectors.values.convert import Normalizes, json_text
from headgate.errors import Refused
from headgate.text import counted

_LEDGER = ledger.Statements(
    lambda number: f"${number}",
    f"""dump uuid NOT NULL, target text NOT NULL, {ledger.KEY} text NOT NULL, lo text NOT NULL, hi text NOT NULL,
    rows bigint NOT NULL, at timestamptz NOT NULL DEFAULT now()""",
)
# Every chunk is in the ledger: a session of this dump that still writes into the table writes what will be refused, and
# is stopped. Other dumps may read the table, or write others.
_END_WRITERS = """
SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = to_regclass($1) AND l.pid <> pg_backend_pid()
  AND starts_with(a.application_name, $2)
"""
# Earlier attempts at a chunk: their process has been stopped, or cut off, and what they have locked stays locked. The
# chunk is ours by now, and whatever they would commit meets our line.
_END_EARLIER = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, $1) AND pid <> pg_backend_pid()
  AND substr(application_name, length($1) + 1)::bigint < $2
"""
_BUILDING = """
SELECT regexp_replace(phase, '^.*: ', '') AS phase, CASE WHEN tuples_total > 0 THEN 100 * tuples_done / tuples_total
       WHEN blocks_total > 0 THEN 100 * blocks_done / blocks_total END AS share
FROM pg_stat_progress_create_index WHERE relid IN (SELECT to_regclass(name)::oid FROM unnest($1::text[]) AS t (name))
ORDER BY pid LIMIT 1
"""


class PostgresWriter(Normalizes, MakesDefinitions):
    """One session that writes."""

    languages: Sequence[Language] = (Language.COPY, Language.CSV)
    csv = Csv(native=FAMILY)
    transactional = True
    family = FAMILY

    def __init__(self, url: str) -> None:
        self.url = url
        self._guard = present()
        self._connection: Connection | None = None

    async def session(self) -> Connection:
        """The connection."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self.url, self._guard, lc_monetary="C")  # Where 1.50 means that.
        return self._connection

    def name_for(self, plain: str) -> str:
        """The name in SQL."""
        return catalog.name_for(plain)

    async def place_of(self, table: str) -> str:
        """Schema and name."""
        connection = await self.session()
        with translate_errors(where_is(self.url), table):
            return await catalog.place_of(connection, table)

    async def look(self, table: str) -> Table | None:
        """The table as it is now."""
        connection = await self.session()
        with translate_errors(where_is(self.url), table):
            found = await find(connection, table)
            if found is None:
                return None
            name = await proper(connection, table)
            has_rows = await connection.fetchval(f"SELECT EXISTS (SELECT FROM {name})")
            there = await self._table(connection, name)
            return replace(there, rows=max(1, found["rows"]) if has_rows else 0)

    async def prepare(self, job: Job) -> Table:
        """The table that chunks go into, and the ledger. All at once: what is refused leaves nothing."""
        with translate_errors(where_is(self.url), job.target):
            async with self.transaction() as connection:
                await keep_out(connection, await proper(connection, job.target))
                await self.make_ledger(connection)
                name = await proper(connection, job.target)
                found = await find(connection, name)
                if found is not None and found["kind"] not in ("r", "p", "f"):
                    raise Refused(f"{job.target} is a view", code="not_a_table", hint="name a table")
                if job.is_apart and not await self._is_finished(connection, job):
                    apart = await self._apart(connection, job)
                    if job.mode is Mode.REPLACE:
                        await refuse_dependents(connection, name)
                    if found is not None:
                        await copy_shape(connection, name, apart)
                    elif await find(connection, apart) is None:
                        await schema.make_table(connection, job, apart)
                    into = await self._table(connection, apart)
                else:
                    if found is None and job.whole:
                        raise StorageError(f"{job.target} could not be made", hint="headgate dumps show says why")
                    if found is None:
                        await schema.make_table(connection, job, name)
                    into = await self._table(connection, name)
                check(job, into)
                for one in {into.name, name} if found is not None else ():
                    await _silenced(connection, job, one)  # Refused now rather than after the first rows.
                if job.mode in (Mode.UPSERT, Mode.ABSENT):
                    await self._check_key(connection, job, found)
                return into

    async def make_ledger(self, connection: Connection) -> None:
        """Have the ledger."""
        if not await self._has_ledger(connection):
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('headgate_dump_chunk', 0))")
            await connection.execute(_LEDGER.create)

    async def _has_ledger(self, connection: Connection) -> bool:
        return await connection.fetchval("SELECT to_regclass($1)", ledger.TABLE) is not None

    async def _apart(self, connection: Connection, job: Job) -> str:
        """The name of the table that is built apart, in the schema of the target."""
        name = await proper(connection, job.target)
        parts, found = await parts_of(connection, name), await find(connection, name)
        parts[-1] = schema.other_name(parts[-1], f"_hg_{job.dump.hex[:8]}")
        if len(parts) == 1 and found is not None:
            parts.insert(0, found["schema"])  # The search path may find the old one elsewhere.
        return ".".join(map(quoted, parts))

    async def _table(self, connection: Connection, name: str) -> Table:
        found = await must_find(connection, name)
        columns, details = await columns_of(connection, found["oid"])
        return Table(name, columns, family=FAMILY, details={**details, "kind": found["kind"]})

    async def _check_key(self, connection: Connection, job: Job, found: Record | None) -> None:
        if not job.key:
            raise Refused(
                f"{job.target} has no key by which rows can be found", code="no_key", hint="name it with --key"
            )
        if found is None:
            return  # The table is made with its key.
        keys = [sorted(key) for key in await unique_keys(connection, found["oid"])]
        if sorted(job.key) not in keys:
            raise Refused(
                f"{job.target} has no unique index on ({', '.join(job.key)})", code="no_key", hint="create one first"
            )

    def accepts(self, table: Table, job: Job) -> Sequence[Language]:
        """COPY only if each column has the same type on both sides; Arrow only if we can make COPY of each column."""
        if job.mode is Mode.ABSENT:
            return (Language.ROWS,)
        if is_same(job, table):
            return self.languages
        return (Language.ARROW, Language.CSV) if has_binary_forms(job, table) else (Language.CSV,)

    async def done(self, job: Job) -> dict[Range, int]:
        """What the ledger has."""
        connection = await self.session()
        with translate_errors(where_is(self.url), ledger.TABLE):
            if not await self._has_ledger(connection):
                return {}
            return ledger.rows_by_range(await connection.fetch(_LEDGER.done, job.dump, job.target))

    async def unfinished(self, target: str) -> list[UUID]:
        """Dumps of this table that are not finished."""
        connection = await self.session()
        with translate_errors(where_is(self.url), ledger.TABLE):
            if not await self._has_ledger(connection):
                return []
            wanted = await self._identity(connection, target)
            rows = await connection.fetch(_LEDGER.unfinished)
            return [row["dump"] for row in rows if await self._identity(connection, row["target"]) == wanted]

    async def _identity(self, connection: Connection, target: str) -> str | int:
        """What tells whether two names mean the same table."""
        found = await find(connection, target)
        identity: str | int = await proper(connection, target) if found is None else found["oid"]
        return identity

    async def write(
        self, job: Job, table: Table, range: Range, language: Language, pieces: Pieces, *, again: bool = False
    ) -> int:
        """One chunk and its line."""
        with translate_errors(where_is(self.url), job.target):
            try:
                async with self.transaction() as connection:
                    await keep_out(connection, table.name)
                    await self._announce(connection, job, range)
                    is_silent = await _silenced(connection, job, table.name)
                    if again:
                        await self.make_ledger(connection)  # A whole dump has left none.
                        await self._erase(connection, job, table, range)
                    rows = await self._copied(connection, job, table, language, pieces)
                    if again and is_silent:
                        await refuse_orphans(connection, table.name)
                    await connection.execute(_LEDGER.write, job.dump, job.target, *ledger.line_of(range), rows)
                    return rows
            except asyncpg.UniqueViolationError:
                # Of the line, or of a key whose rows came with it.
                if again or not await self._has_line(job, range):
                    raise
                raise AlreadyWritten(f"{job.target} already has this chunk") from None

    async def _announce(self, connection: Connection, job: Job, range: Range) -> None:
        """Say which chunk and which attempt this transaction is, and end earlier ones."""
        name = f"{_session_name(job)}{ledger.key_of(range, job.target)[:16]} "
        await connection.execute(f"SET LOCAL application_name = {literal(name + str(self.attempt))}")
        if self.attempt > 1:
            await connection.execute(_END_EARLIER, name, self.attempt)

    async def _has_line(self, job: Job, range: Range) -> bool:
        connection = await self.session()
        return bool(await connection.fetchval(_LEDGER.has, job.dump, job.target, ledger.key_of(range)))

    async def _copied(self, connection: Connection, job: Job, table: Table, language: Language, pieces: Pieces) -> int:
        columns = [column.name for column in job.source.columns]
        if language is Language.ROWS:
            return await self._add_absent(connection, job, table, columns, pieces)
        into, staged = table.name, schema.finds_rows(job) and not job.aside
        if staged:
            into = "headgate_stage"
            await connection.execute(f"CREATE TEMP TABLE {into} (LIKE {table.name}) ON COMMIT DROP")
            for column in table.columns:
                if column.name not in columns and not column.nullable:
                    await connection.execute(f"ALTER TABLE {into} ALTER {quoted(column.name)} DROP NOT NULL")
        if language is Language.ARROW:
            pieces = _as_copy(pieces, job.source.columns, table)
        rows = await self._load(connection, into, columns, language, pieces)
        if staged:
            await connection.execute(_merge(job, table.name, into))
        return rows

    async def _add_absent(
        self, connection: Connection, job: Job, table: Table, columns: Sequence[str], pieces: Pieces
    ) -> int:
        """Records as JSON, read by the server as the live stream's are. A row that is there stays as it is."""
        names, key = ", ".join(map(quoted, columns)), ", ".join(map(quoted, job.key))
        statement = (
            f"INSERT INTO {table.name} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM"
            f" json_populate_recordset(NULL::{table.name}, $1::json) ON CONFLICT ({key}) DO NOTHING"
        )
        rows = 0
        async for piece in pieces:
            rows += len(piece.data)
            await connection.execute(statement, json_text(piece.data))
        return rows

    async def _load(
        self, connection: Connection, into: str, columns: Sequence[str], language: Language, pieces: Pieces
    ) -> int:
        read = 0

        async def counting() -> Pieces:
            nonlocal read
            async for piece in pieces:
                read += piece.rows
                yield piece

        how = "FORMAT binary"
        if language is Language.CSV:
            how = f"FORMAT csv, NULL {literal(self.csv.null)}, DELIMITER {literal(self.csv.delimiter)}"
        statement = f"COPY {into} ({', '.join(map(quoted, columns))}) FROM STDIN ({how})"
        rows = await copy_in(connection, statement, counting(), in_messages=language is Language.COPY)
        if read and read != rows:
            raise StorageError(f"{into}: read {counted(read, 'row')} and wrote {rows:,}")
        return rows

    async def _erase(self, connection: Connection, job: Job, table: Table, range: Range) -> None:
        """Make room for a chunk that is written again. The line goes first: another repair waits there."""
        await connection.execute(_LEDGER.forget_one, job.dump, job.target, ledger.key_of(range))
        if schema.finds_rows(job):
            return  # Its rows are overwritten, and others in between are not ours.
        if job.source.by is not By.KEY:
            raise StorageError(
                f"{job.target} has no key by which a chunk's rows can be found", hint="--mode replace copies it again"
            )
        own = replace(job.source, name=table.name, details=table.details)
        await connection.execute(f"DELETE FROM {table.name} WHERE {condition(own, range)}")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """One transaction. If it breaks the session may be lost, and the next one opens another."""
        connection = await self.session()
        try:
            await connection.execute("BEGIN; SET LOCAL idle_in_transaction_session_timeout = 60000")
            yield connection
            await connection.execute("COMMIT")
        except BaseException as error:
            if not await roll_back(connection, error):
                self._connection = None
            raise

    async def undo(self, job: Job, table: Table, range: Range) -> None:
        """Nothing to undo: a transaction leaves nothing."""

    async def finish(self, job: Job) -> None:
        """Indexes, constraints and sequences; then the swap and the last line, together."""
        connection = await self.session()
        with translate_errors(where_is(self.url), job.target):
            await keep_out(connection, await proper(connection, job.target))
            if await self._is_finished(connection, job):
                return
            name, apart = await proper(connection, job.target), await self._apart(connection, job)
            if job.whole:
                await connection.execute(_END_WRITERS, name, _session_name(job))
                await connection.execute(_LEDGER.write, job.dump, job.target, *ledger.last_line())
                return
            suffix = job.dump.hex[:8]
            exists = await find(connection, name) is not None
            if job.is_apart:
                await connection.execute(_END_WRITERS, apart, _session_name(job))
                if not exists:
                    await schema.complete(connection, job, apart)
                elif job.mode is Mode.REPLACE:
                    await dress(connection, name, apart, suffix)
            elif job.created:
                await connection.execute(_END_WRITERS, name, _session_name(job))
                await schema.complete(connection, job, name)
            async with self.transaction() as connection:
                is_silent = exists and job.mode is not Mode.REPLACE and await _silenced(connection, job, name)
                if job.is_apart and (job.mode is Mode.REPLACE or not exists):
                    await swap(connection, name, apart, suffix)
                elif job.is_apart:
                    await connection.execute(_merge(job, name, apart))
                    await connection.execute(f"DROP TABLE {apart}")
                if is_silent:
                    await refuse_orphans(connection, name)
                await schema.advance(connection, job, name)
                if not await self._is_finished(connection, job):
                    await connection.execute(_LEDGER.write, job.dump, job.target, *ledger.last_line())
            with suppress(asyncpg.PostgresError):
                # The session that has it locked is most likely about to do the same: the server's own housekeeping.
                await connection.execute(f"ANALYZE (SKIP_LOCKED) {name}")

    async def index(self, job: Job) -> list[Left]:
        """Indexes that a table of another kind of database had. Returns those that cannot be made."""
        connection = await self.session()
        with translate_errors(where_is(self.url), job.target):
            return await links.index(connection, job, await proper(connection, job.target))

    async def link(self, job: Job, targets: Mapping[str, str]) -> list[Left]:
        """Foreign keys. Returns those that cannot be made."""
        connection = await self.session()
        with translate_errors(where_is(self.url), job.target):
            return await links.link(connection, job, await proper(connection, job.target), targets)

    async def _is_finished(self, connection: Connection, job: Job) -> bool:
        return bool(await connection.fetchval(_LEDGER.has, job.dump, job.target, ledger.FINISHED))

    async def drop(self, job: Job) -> None:
        """Remove what was built apart, and its lines."""
        connection = await self.session()
        with translate_errors(where_is(self.url), job.target):
            await keep_out(connection, await proper(connection, job.target))
            has_ledger = await self._has_ledger(connection)
            if not (job.is_apart or (job.whole and has_ledger)):
                return
            if has_ledger and await self._is_finished(connection, job):
                return
            name = await proper(connection, job.target) if job.whole else await self._apart(connection, job)
            if job.whole and await find(connection, name) is None:
                return
            await connection.execute(_END_WRITERS, name, _session_name(job))
            async with self.transaction() as connection:
                await connection.execute(f"TRUNCATE ONLY {name}" if job.whole else f"DROP TABLE IF EXISTS {name}")
                if has_ledger:  # It is not there where somebody has made the database again.
                    await connection.execute(_LEDGER.forget, job.dump, job.target)

    async def building(self, job: Job) -> str:
        """How far the index is that another session builds for this table."""
        connection = await self.session()
        with translate_errors(where_is(self.url), job.target):
            names = [await proper(connection, job.target), await self._apart(connection, job)]
            row = await connection.fetchrow(_BUILDING, names)
            return (
                ""
                if row is None
                else f"builds an index, {row['phase']}" + (f", {row['share']} %" if row["share"] else "")
            )

    async def clean(self, dump: UUID, targets: Sequence[str]) -> None:
        """Remove the dump's lines, and the ledger after the last of all lines."""
        with translate_errors(where_is(self.url), ledger.TABLE):
            async with self.transaction() as connection:
                if not await self._has_ledger(connection):
                    return
                await connection.execute(f"LOCK TABLE {ledger.TABLE} IN ACCESS EXCLUSIVE MODE")
                await connection.execute(_LEDGER.clean, dump)
                if not await connection.fetchval(_LEDGER.any):
                    await connection.execute(_LEDGER.drop)

    async def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await close(connection)


def _session_name(job: Job) -> str:
    """How the sessions that write chunks of this dump begin their names."""
    return f"headgate dump {job.dump.hex[:16]} "


async def _silenced(connection: Connection, job: Job, table: str) -> bool:
    """Whether the table has triggers, which now rest, and its foreign keys with them. A backfill's rows go past them,
    as the live stream's do; those of a whole database are made later."""
    if job.quiet:  # Its foreign keys are looked at when the rows of all tables are there.
        await connection.execute("SET LOCAL session_replication_role = replica")
        return False
    return job.mode is not Mode.ABSENT and not job.whole and await silence(connection, table)


async def _as_copy(pieces: Pieces, columns: Sequence[Column], table: Table) -> Pieces:
    """Batches as binary COPY."""
    from headgate.connectors.postgres import binary  # Only where there are batches: it needs Arrow.

    encode = binary.encoder(columns, table)
    yield Piece(binary.HEADER, len(binary.HEADER))
    async for piece in pieces:
        rows = piece.rows
        for data in await asyncio.to_thread(encode, piece.data):
            yield Piece(data, len(data), rows)
            rows = 0
    yield Piece(binary.END, len(binary.END))


def _merge(job: Job, table: str, stage: str) -> str:
    """The statement that puts staged rows into the table."""
    columns = [column.name for column in job.source.columns]
    names = ", ".join(map(quoted, columns))
    insert = f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {stage}"
    if not schema.finds_rows(job):
        return insert
    others = [f"{quoted(name)} = excluded.{quoted(name)}" for name in columns if name not in job.key]
    action = f"UPDATE SET {', '.join(others)}" if others and job.mode is Mode.UPSERT else "NOTHING"
    return f"{insert} ON CONFLICT ({', '.join(map(quoted, job.key))}) DO {action}"
