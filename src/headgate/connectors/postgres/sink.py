"""PostgreSQL sink: rows and the stream's position in one transaction, fenced by the epoch.

`headgate_position`, next to the data, holds for each stream (installation, stream): epoch, generation, commits and
position.

`open` raises the epoch in a separate transaction, before the source is opened. From then on no older run can commit:
the last statement of every write is an update of that row `WHERE epoch = mine`, and a write that updates nothing rolls
back. Reading the position without raising the epoch would not do: an older run's transaction, open at that moment,
could still commit after it.

A process that is stopped inside its transaction must not block its successor. Between statements the server ends such
a transaction after a second; inside a COPY that limit does not count, so every write first takes an advisory lock on
its stream, and `open` ends the session that holds it.

Rows go in by binary COPY; a single record, and a few rows of JSON, in one statement with the position (`at_once.py`).
Where a value does not fit its column's type as it is (text for a timestamp, say), and for
upserts, the batch goes as JSON and PostgreSQL converts it by its own rules.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import chain
from operator import itemgetter
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
from asyncpg import Connection, Pool

from headgate.connectors.api import Context, Grant, Outgoing, Progress
from headgate.connectors.postgres import at_once
from headgate.connectors.postgres.at_once import Position
from headgate.connectors.postgres.catalog import columns_of, find, quoted_path
from headgate.connectors.postgres.declared import parse_type, resolve
from headgate.connectors.postgres.errors import steer_worker
from headgate.connectors.postgres.options import PostgresOptions
from headgate.connectors.postgres.session import CONNECT_S, address_of, close, make_pool, roll_back
from headgate.connectors.postgres.types import type_for_value
from headgate.connectors.postgres.values import as_json_rows, fitted, key_of, only
from headgate.connectors.postgres.walls import WalledSession, keep_out, leave_own_schema
from headgate.connectors.sql.quoting import quoted
from headgate.errors import BadRecord, Cause, ConnectorError, Fenced, Refused

OPEN_S = 15.0
VALUES_AT_ONCE = 40_000  # What goes to the driver in one go: five milliseconds by COPY, ten as JSON.
ROWS_AT_ONCE = 1_000  # What is made ready for it in one go. Values may be long, and are JSON by then.
LONGEST = 63  # Bytes of a name. PostgreSQL would cut a longer one, and not find it again.

# The columns `edits` and `n` are the generation and the commits. They keep these names: existing tables have them, and
# a user who may write to such a table need not be its owner, who alone could rename them.
_CREATE_POSITION = """
CREATE TABLE IF NOT EXISTS headgate_position (
    installation uuid NOT NULL, stream uuid NOT NULL, epoch bigint NOT NULL,
    edits integer NOT NULL, n bigint NOT NULL, position json,
    PRIMARY KEY (installation, stream)
) WITH (fillfactor = 50)
"""
_READ_EPOCH = "SELECT epoch FROM headgate_position WHERE installation = $1 AND stream = $2"
_END_HOLDERS = """
SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid <> pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (classid::bigint << 32 | objid::bigint) = $1
"""
# A new row has a lower generation than any registry has, so the registry decides where its stream begins.
_RAISE_EPOCH = """
INSERT INTO headgate_position AS p (installation, stream, epoch, edits, n) VALUES ($1, $2, $3, -1, 0)
ON CONFLICT (installation, stream) DO UPDATE SET epoch = excluded.epoch WHERE p.epoch < excluded.epoch
RETURNING edits, n, position
"""
_BEGIN = """
BEGIN; SET LOCAL synchronous_commit = on; SET LOCAL idle_in_transaction_session_timeout = 1000;
SET LOCAL lock_timeout = 5000; SELECT pg_advisory_xact_lock({key})
"""
_ADVANCE = """
UPDATE headgate_position SET edits = $4, n = $5, position = $6
WHERE installation = $1 AND stream = $2 AND epoch = $3
"""


def lock_key(installation: UUID, stream: UUID) -> int:
    """The advisory lock of one stream's writes, below 2^63 so that both halves are plain numbers."""
    digest = hashlib.sha256(b"headgate-sink" + installation.bytes + stream.bytes).digest()
    return int.from_bytes(digest[:8]) >> 1


class PostgresSink:
    """Writes one stream into one table."""

    def __init__(self, options: PostgresOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._url = options.url.get_secret_value()
        self._address = address_of(self._url)
        self._guard = context.guard
        self._share = "postgres " + hashlib.sha256(f"{self._url} {self._guard}".encode()).hexdigest()
        self._pool: Pool | None = None
        self._grant: Grant | None = None
        self._columns: dict[str, str] = {}
        self._as_json = options.mode == "upsert"

    async def check(self) -> None:
        """Connect, and see that the table is there or may be made."""
        with steer_worker(self._address, self._options.table):
            connection = await asyncpg.connect(
                self._url, timeout=CONNECT_S, connection_class=WalledSession, loop=self._guard.loop()
            )
            try:
                await leave_own_schema(connection)
                await self._look(connection)
                if not self._columns:
                    if not self._options.create:
                        raise self._no_table()
                    await self._declared_types(connection)
            finally:
                await close(connection)

    async def open(self, grant: Grant) -> Progress | None:
        """Fence every older run; return where the data stand."""
        self._grant = grant
        self._pool = await self._context.shared.get(self._share, lambda: make_pool(self._url, self._guard))
        with steer_worker(self._address, self._options.table):
            async with asyncio.timeout(OPEN_S), self._session() as connection:
                await self._keep_out(connection)
                await self._ensure_position_table(connection)
                progress = await self._raise_epoch(connection, grant)
                await self._look(connection)
                return progress

    async def write(self, batch: Outgoing) -> None:
        """Rows and position, in one transaction. Cancelled, it lets go of the session at once."""
        grant = self._grant
        assert grant is not None
        with steer_worker(self._address, self._options.table):
            try:
                await self._write(grant, batch)
            except (asyncpg.DataError, TypeError, OverflowError, asyncpg.DatatypeMismatchError) as error:
                if self._as_json or isinstance(error, asyncpg.PostgresError):
                    raise
                self._as_json = True  # A value needs converting: let PostgreSQL do it, from now on.
                await self._write(grant, batch)

    async def close(self) -> None:
        """Give the pool back."""
        if self._pool is not None:
            self._pool = None
            await self._context.shared.give_back(self._share)

    async def _ensure_position_table(self, connection: Connection) -> None:
        if await connection.fetchval("SELECT to_regclass('headgate_position')") is None:
            # Two sessions that create at once collide in the catalog: one after the other, then.
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('headgate_position', 0))")
                await connection.execute(_CREATE_POSITION)

    async def _raise_epoch(self, connection: Connection, grant: Grant) -> Progress:
        present = await connection.fetchval(_READ_EPOCH, grant.installation, grant.stream)
        if present is not None and present >= grant.epoch:
            raise Fenced(f"epoch {grant.epoch} is fenced by epoch {present}")
        await connection.execute(_END_HOLDERS, lock_key(grant.installation, grant.stream))
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = 5000")
            row = await connection.fetchrow(_RAISE_EPOCH, grant.installation, grant.stream, grant.epoch)
        if row is None:
            raise Fenced(f"epoch {grant.epoch} is fenced by a newer one")
        position = None if row["position"] is None else msgspec.json.decode(row["position"])
        return Progress(row["edits"], row["n"], position)

    async def _keep_out(self, connection: Connection) -> None:
        """No stream touches what is Headgate's own, or the server's."""
        try:
            await keep_out(connection, quoted_path(self._options.table))
        except Refused as error:
            raise ConnectorError(error.message, cause=Cause.CONFIG, hint=error.hint) from None

    async def _look(self, connection: Connection) -> None:
        """Read the table's columns."""
        self._columns = {}
        await self._keep_out(connection)
        found = await find(connection, quoted_path(self._options.table))
        if found is not None:
            _, details = await columns_of(connection, found["oid"])
            plain: dict[str, str] = details["plain"]
            self._columns = {name: type for name, type in plain.items() if name not in details["generated"]}

    async def _write(self, grant: Grant, batch: Outgoing) -> None:
        if not all(batch.records):
            raise BadRecord("the record has no fields")
        async with self._session() as connection:
            await self._keep_out(connection)
            if batch.records and not self._columns:
                await self._create_table(connection, batch)
            if batch.records:
                columns = self._columns_of(batch.records)
                rows = await self._rows(columns, batch.records)
            progress = batch.progress
            text = msgspec.json.encode(progress.position).decode()
            stream = (grant.installation, grant.stream)
            position = (*stream, grant.epoch, progress.generation, progress.commits, text)
            if not batch.records:
                is_ours = await at_once.write(connection, position, lock_key(*stream))
            elif len(rows) == 1 or (self._as_json and len(rows) <= at_once.MOST_ROWS):
                is_ours = await self._write_at_once(connection, position, columns, rows, batch)
            else:
                is_ours = await self._write_in_steps(connection, position, columns, rows, batch)
            if not is_ours:
                raise Fenced(f"epoch {grant.epoch} is fenced: another run has the stream")

    async def _write_at_once(
        self, connection: Connection, position: Position, columns: list[str], rows: list[Any], batch: Outgoing
    ) -> bool:
        table, key = quoted_path(self._options.table), lock_key(*position[:2])
        if not self._as_json:
            return await at_once.write(connection, position, key, at_once.of_row(table, columns), rows[0])
        text = at_once.of_json(table, columns, self._conflict(columns, batch.key))
        values = [as_json_rows(columns, self._last(columns, rows, batch))]
        return await at_once.write(connection, position, key, text, values)

    async def _write_in_steps(
        self, connection: Connection, position: Position, columns: list[str], rows: list[Any], batch: Outgoing
    ) -> bool:
        await connection.execute(_BEGIN.format(key=lock_key(*position[:2])))
        await self._insert(connection, columns, rows, batch)
        if await connection.execute(_ADVANCE, *position) != "UPDATE 1":
            return False
        await connection.execute("COMMIT")
        return True

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Connection]:
        """A borrowed session. Whatever goes wrong inside, its transaction has ended when this returns, and what went
        wrong is what is raised: leaving a broken session must not hide it."""
        pool = self._pool
        assert pool is not None, "the sink is open"
        # One that is idle is had at once: to limit the wait for it would cost more than it does.
        connection = await (pool.acquire() if pool.get_idle_size() else pool.acquire(timeout=CONNECT_S))
        try:
            yield connection
        except BaseException as error:
            await roll_back(connection, error)
            raise
        finally:
            with suppress(Exception):
                await pool.release(connection)

    def _columns_of(self, records: list[dict[str, Any]]) -> list[str]:
        """The fields of all records, which the table must have."""
        columns = list(records[0])
        if len(set().union(*records)) > len(columns):
            columns = list(dict.fromkeys(chain.from_iterable(records)))
        if unknown := [column for column in columns if column not in self._columns]:
            raise ConnectorError(
                f"table {self._options.table} has no column {unknown[0]!r}",
                cause=Cause.CONFIG,
                hint=f"ALTER TABLE {quoted_path(self._options.table)} ADD COLUMN {quoted(unknown[0])} …, then restart",
            )
        return columns

    async def _rows(self, columns: list[str], records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        """The batch as tuples. One payload may have become any number of records: others have turns in between."""
        most = min(ROWS_AT_ONCE, _most_rows(columns))
        rows = self._some_rows(columns, records[:most])
        for begin in range(most, len(records), most):
            await asyncio.sleep(0)
            rows += self._some_rows(columns, records[begin : begin + most])
        return rows

    def _some_rows(self, columns: list[str], records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        """Records usually have the same fields; a missing one is NULL."""
        pick: Callable[[dict[str, Any]], Any] = itemgetter(*columns) if len(columns) > 1 else only(columns[0])
        try:
            rows = list(map(pick, records))
        except KeyError:
            rows = [tuple(map(record.get, columns)) for record in records]
        if not self._as_json:
            for index, column in enumerate(columns):
                rows = fitted(rows, index, self._columns[column])
        return rows

    async def _insert(self, connection: Connection, columns: list[str], rows: list[Any], batch: Outgoing) -> None:
        schema, _, table = self._options.table.rpartition(".")
        rows = self._last(columns, rows, batch)
        most = _most_rows(columns)
        for begin in range(0, len(rows), most):
            some = rows[begin : begin + most]
            if self._as_json:
                await connection.execute(self._statement(columns, batch.key), as_json_rows(columns, some))
            else:
                await connection.copy_records_to_table(table, schema_name=schema or None, columns=columns, records=some)

    def _last(self, columns: list[str], rows: list[Any], batch: Outgoing) -> list[Any]:
        """Of rows that replace each other, the last one."""
        if self._options.mode != "upsert":
            return rows
        places = [columns.index(field) for field in batch.key]
        return list({key_of(row, places): row for row in rows}.values())

    def _statement(self, columns: list[str], key: tuple[str, ...]) -> str:
        table, names = quoted_path(self._options.table), ", ".join(map(quoted, columns))
        text = f"INSERT INTO {table} ({names}) SELECT {names} FROM json_populate_recordset(NULL::{table}, $1::json)"
        return text + self._conflict(columns, key)

    def _conflict(self, columns: list[str], key: tuple[str, ...]) -> str:
        if self._options.mode != "upsert":
            return ""
        others = [f"{quoted(c)} = excluded.{quoted(c)}" for c in columns if c not in key]
        action = f"UPDATE SET {', '.join(others)}" if others else "NOTHING"
        return f" ON CONFLICT ({', '.join(map(quoted, key))}) DO {action}"

    async def _create_table(self, connection: Connection, batch: Outgoing) -> None:
        """Make the table from the first batch, unless somebody has made it meanwhile."""
        await self._look(connection)
        if self._columns:
            return
        if not self._options.create:
            raise self._no_table()
        fields = dict.fromkeys(field for record in batch.records for field in record)
        for field in fields:
            if len(field.encode()) > LONGEST:
                raise ConnectorError(
                    f"field {field[:80]!r} has a name of more than {LONGEST} bytes", cause=Cause.CONFIG
                )
        declared = await self._declared_types(connection)
        lines = [f"{quoted(field)} {declared.get(field) or _guessed(field, batch.records)}" for field in fields]
        if self._options.mode == "upsert":
            lines.append(f"PRIMARY KEY ({', '.join(map(quoted, batch.key))})")
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", self._options.table)
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {quoted_path(self._options.table)} ({', '.join(lines)})"
            )
        self._context.log.info("table created", table=self._options.table)
        await self._look(connection)

    async def _declared_types(self, connection: Connection) -> dict[str, str]:
        """The types of the option `columns` as the server knows them."""
        found = {}
        for field, text in self._options.columns.items():
            type = await resolve(connection, parse_type(text))
            if type is None:
                raise ConnectorError(
                    f"columns: {field!r}: the server has no type {text!r}", cause=Cause.CONFIG, hint="create it first"
                )
            found[field] = type
        return found

    def _no_table(self) -> ConnectorError:
        return ConnectorError(
            f"table {self._options.table} does not exist", cause=Cause.CONFIG, hint="create it, or set create: true"
        )


def _most_rows(columns: list[str]) -> int:
    """How many rows of these columns go to the driver in one go."""
    return max(1, VALUES_AT_ONCE // len(columns))


def _guessed(field: str, records: list[dict[str, Any]]) -> str:
    """The type of the first value."""
    return type_for_value(next((record[field] for record in records if record.get(field) is not None), None))
