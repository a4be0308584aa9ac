"""PostgreSQL sink: rows, dead letters and the stream's position in one transaction, fenced by the epoch.

The position and the fence are in `positions.py`, letters in `letters.py`, the table itself in `tables.py`.

Rows go in by binary COPY; a single record, and a few rows of JSON, in one statement with the position (`at_once.py`).
Where a value does not fit its column's type as it is (text for a timestamp, say), and for upserts, the batch goes as
JSON and PostgreSQL converts it by its own rules. Of records of one key an upsert writes the last, be it a row or a
deletion.

A batch is written as if nothing were wrong with it. Only if it is refused are its records judged (`culprits.py`). Then
all bad ones are named at once, nothing is written, and the worker comes back with the others and with the letters.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

from asyncpg import Connection

from headgate.connectors.api import Context, Grant, KeyKind, Letter, LetterOutcome, Outgoing, Progress, SourceStream
from headgate.connectors.postgres import at_once, letters, positions
from headgate.connectors.postgres.catalog import quoted_path
from headgate.connectors.postgres.culprits import savepoint
from headgate.connectors.postgres.errors import steer_worker
from headgate.connectors.postgres.options import PostgresOptions
from headgate.connectors.postgres.pieces import Piece, by_stream, in_order
from headgate.connectors.postgres.pool import Pool
from headgate.connectors.postgres.positions import Kept, lock_key
from headgate.connectors.postgres.session import CONNECT_S, address_of, close, make_pool, open_session, roll_back
from headgate.connectors.postgres.several import Cut, Tables, changed, refuse_own
from headgate.connectors.postgres.tables import Table
from headgate.connectors.postgres.values import as_json_rows
from headgate.connectors.postgres.walls import WalledSession, leave_own_schema
from headgate.connectors.postgres.writing import is_refusal
from headgate.errors import BadRecords, Cause, ConnectorError

__all__ = ["PostgresOptions", "PostgresSink", "lock_key"]

OPEN_S = 15.0

# Between two statements of a search much may be worked out, of a large batch or on a busy node. A successor need not
# wait for its end: it ends the session.
_SEARCH = "SET LOCAL idle_in_transaction_session_timeout = 30000"
_REHEARSE = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 5000; SET LOCAL lock_timeout = 2000"


class PostgresSink:
    """Writes one stream of ours into one table, or into one for each stream that its source names."""

    def __init__(self, options: PostgresOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._url = options.url.get_secret_value()
        self._address = address_of(self._url)
        self._guard = context.guard
        self._share = "postgres " + hashlib.sha256(f"{self._url} {self._guard}".encode()).hexdigest()
        self._pool: Pool | None = None
        self._grant: Grant | None = None
        self._kept = Kept(has_totals=False, has_letters=False)
        self._tables = Tables(options, context)

    async def check(self) -> None:
        """Connect, and see that the table is there or may be made."""
        with steer_worker(self._address, self._options.table):
            async with self._own_session() as connection:
                await self._look(connection)
                only = self._tables.only
                if only is None:
                    await Table(self._options, self._context).declared(connection)
                elif not only.table.columns:
                    if not self._options.create:
                        raise only.table.absent()
                    await only.table.declared(connection)

    async def open(self, grant: Grant) -> Progress | None:
        """Fence every older run; return where the data stand."""
        self._grant = grant
        self._pool = await self._context.shared.get(self._share, self._make_pool)
        with steer_worker(self._address, self._options.table):
            async with asyncio.timeout(OPEN_S), self._session() as connection:
                await self._keep_out(connection)
                self._kept = await positions.ensure(connection)
                await positions.set_mark(connection)
                progress = await positions.raise_epoch(connection, grant, self._kept)
                await self._look(connection)
                return progress

    async def write(self, batch: Outgoing) -> None:
        """Rows, letters and position, in one transaction. Cancelled, it lets go of the session at once."""
        grant = self._grant
        assert grant is not None
        if batch.letters or batch.replays:
            self._must_keep_letters()
        self._tables.at = None
        with steer_worker(self._address, self._tables, writes=True):
            async with self._session() as connection:
                await self._keep_out(connection)
                while not await self._written(connection, grant, batch):
                    pass

    async def rehearse(self, batch: Outgoing) -> None:
        """Do what a write does to the table, and take it back. It need not be open, and fences nobody."""
        tables = Tables(self._options, self._context)
        with steer_worker(self._address, tables, writes=self._pool is not None):
            async with self._session() if self._pool is not None else self._own_session() as connection:
                await self._keep_out(connection)
                await connection.execute(_REHEARSE)
                if tables.only is not None:
                    await tables.only.table.look(connection)
                while not await _rehearsed(connection, tables, batch):
                    pass
                await connection.execute("ROLLBACK")

    async def mark(self) -> str | None:
        """That of the positions next to the data: they move together. The pool is that of all who write there."""
        with steer_worker(self._address, self._options.table):
            pool = await self._context.shared.get(self._share, self._make_pool)
            try:
                async with asyncio.timeout(OPEN_S), self._session(pool) as connection:
                    return await positions.read_mark(connection)
            finally:
                await self._context.shared.give_back(self._share)

    async def columns(self) -> Sequence[str]:
        """Those that the table has now; none if there is no table yet, or if there are several."""
        with steer_worker(self._address, self._options.table):
            async with self._own_session() as connection:
                await self._look(connection)
                return [] if self._tables.only is None else list(self._tables.only.table.columns)

    async def outcomes(self) -> dict[UUID, LetterOutcome]:
        """Of all letters of this stream that are still there."""
        found: dict[UUID, LetterOutcome] = await self._of_letters(letters.outcomes, {})
        return found

    async def letters(self, ids: Sequence[UUID]) -> list[Letter]:
        """Those of these that are still there. The content of one that is not open is gone."""
        work = partial(letters.read, ids=ids)
        found: list[Letter] = await self._of_letters(work, [])
        return found

    async def resolve(self, ids: Sequence[UUID], outcome: LetterOutcome) -> None:
        """Those of these that are open have had this outcome."""

        async def resolve(connection: Connection, grant: Grant) -> None:
            found = await letters.lock(connection, grant, ids, ())
            await letters.resolve(connection, grant, [letter.id for letter in found], outcome)

        await self._change_letters(resolve)

    async def rewrite(self, changed: Sequence[Letter]) -> None:
        """Those of these that are open get this content."""

        async def rewrite(connection: Connection, grant: Grant) -> None:
            await letters.lock(connection, grant, [letter.id for letter in changed], ())
            await letters.rewrite(connection, grant, changed)

        await self._change_letters(rewrite)

    async def key_kinds(self, key: Sequence[str], stream: SourceStream | None = None) -> Sequence[KeyKind]:
        """As far as the table is known by now. That of a stream is looked at when it is first asked for."""
        if self._tables.only is not None:
            return self._tables.only.key_kinds(key)
        if stream is None:
            return ()
        if self._tables.knows(stream):
            return self._tables.of(stream).key_kinds(key)
        with steer_worker(self._address, self._options.table):
            async with self._session() as connection:
                return await self._tables.key_kinds(connection, key, stream)

    async def forget(self, installation: UUID, streams: Sequence[UUID]) -> None:
        """Remove positions and letters of streams that are gone. It need not be open."""
        with steer_worker(self._address, self._options.table):
            async with asyncio.timeout(OPEN_S), self._own_session() as connection:
                await positions.forget(connection, installation, streams)

    async def close(self) -> None:
        """Give the pool back."""
        if self._pool is not None:
            self._pool = None
            await self._context.shared.give_back(self._share)

    # Sessions.

    @asynccontextmanager
    async def _session(self, pool: Pool | None = None) -> AsyncIterator[Connection]:
        """A borrowed session. Whatever goes wrong inside, its transaction has ended when this returns, and what went
        wrong is what is raised: leaving a broken session must not hide it."""
        pool = pool or self._pool
        assert pool is not None, "the sink is open"
        connection = await pool.acquire()
        try:
            yield connection
        except BaseException as error:
            await roll_back(connection, error)
            raise
        finally:
            pool.release(connection)

    @asynccontextmanager
    async def _own_session(self) -> AsyncIterator[Connection]:
        """A session for something that is done once."""
        connection = await open_session(
            self._url, timeout=CONNECT_S, connection_class=WalledSession, loop=self._guard.loop()
        )
        try:
            await leave_own_schema(connection)
            yield connection
        finally:
            await close(connection)

    async def _make_pool(self) -> Pool:
        return await make_pool(self._url, self._guard)

    async def _keep_out(self, connection: Connection) -> None:
        """Stay outside of what is Headgate's own. Where there are several tables, this is about their schema."""
        only = self._tables.only
        await refuse_own(connection, quoted_path(self._options.table) if only is None else only.table.path)

    async def _look(self, connection: Connection) -> None:
        await self._keep_out(connection)
        if self._tables.only is not None:
            await self._tables.only.table.look(connection)

    def _must_keep_letters(self) -> None:
        if not self._kept.has_letters:
            raise ConnectorError(
                f"the table {letters.TABLE} is missing, or this user has no right on it",
                cause=Cause.AUTH,
                hint=f"GRANT SELECT, INSERT, UPDATE, DELETE ON {letters.TABLE}, or CREATE on its schema; then restart",
            )

    async def _of_letters(self, work: Callable[[Connection, Grant], Any], otherwise: Any) -> Any:
        if not self._kept.has_letters:
            return otherwise
        assert self._grant is not None
        with steer_worker(self._address, self._options.table):
            async with self._session() as connection:
                return await work(connection, self._grant)

    async def _change_letters(self, work: Callable[[Connection, Grant], Awaitable[None]]) -> None:
        async def change(connection: Connection, grant: Grant) -> None:
            await positions.begin(connection, grant)
            await positions.hold(connection, grant)
            await work(connection, grant)
            await connection.execute("COMMIT")

        await self._of_letters(change, None)

    # Writing.

    async def _written(self, connection: Connection, grant: Grant, batch: Outgoing, cut: Cut = by_stream) -> bool:
        """Write the batch. False: something about a table or our ways has changed, and it is worth another try."""
        tables = self._tables
        pieces, cut = await tables.ready(connection, grant, batch, cut)
        try:
            is_ours = await self._commit(connection, grant, batch, pieces, cut)
        except Exception as error:
            if not _is_refusal(error, pieces) or not await roll_back(connection, error):
                raise
            if len(pieces) > 1 and await tables.relink(connection):
                return False  # Somebody has added a foreign key: its table comes later now.
            await positions.begin(connection, grant, _SEARCH)
            misfits = await tables.isolated(connection, pieces, error, cut)
            await connection.execute("ROLLBACK")
            if misfits is None and (len(pieces) == 1 or cut is in_order):
                raise
            if misfits is None:  # They may be good in the order in which they came.
                return await self._written(connection, grant, batch, in_order)
            await changed(connection, grant, misfits)
            return False
        if not is_ours:
            raise positions.fenced(grant)
        return True

    async def _commit(
        self, connection: Connection, grant: Grant, batch: Outgoing, pieces: Sequence[Piece], cut: Cut
    ) -> bool:
        supersedes = batch.supersedes is not None and self._tables.is_upsert and self._kept.has_letters
        number, self._tables.at = len(batch.records), None
        if not (batch.letters or batch.replays or batch.deletes or len(pieces) > 1) and (
            number <= 1 or (pieces[0].writing.as_json and number <= at_once.MOST_ROWS)
        ):
            done = await self._commit_at_once(connection, grant, batch.progress, pieces, supersedes and number > 0)
            if done or (done is not None and not supersedes):
                return done
        return await self._commit_in_steps(connection, grant, batch, pieces, cut, supersedes)

    async def _commit_at_once(
        self, connection: Connection, grant: Grant, progress: Progress, pieces: Sequence[Piece], supersedes: bool
    ) -> bool | None:
        """None: it takes more than one statement, because records that others replace have to be tried, too."""
        insert = ""
        values: Sequence[Any] = ()
        if pieces and pieces[0].batch.records:
            writing, batch, columns = pieces[0].writing, pieces[0].batch, pieces[0].columns
            rows = await writing.rows(columns, batch.records)
            if writing.as_json:
                statements = writing.statements(columns, batch)
                insert = statements.insert(f"${at_once.FIRST}::json", at_once.IF_MOVED)
                last = writing.last(columns, rows, batch)
                if len(last) < len(rows) and not await writing.are_earlier_good(connection, columns, batch):
                    return None
                values = [as_json_rows(columns, last)]
            else:
                insert, values = at_once.of_row(writing.table.path, tuple(columns)), rows[0]
        return await at_once.write(connection, grant, progress, self._kept, insert, values, supersedes=supersedes)

    async def _commit_in_steps(
        self,
        connection: Connection,
        grant: Grant,
        batch: Outgoing,
        pieces: Sequence[Piece],
        cut: Cut,
        supersedes: bool,
    ) -> bool:
        also = letters.any_with_keys(f"'{grant.installation}'", f"'{grant.datasource}'") if supersedes else ""
        has_keys = await positions.begin(connection, grant, also) == "SELECT 1" and supersedes
        gone: list[UUID] = []
        if batch.replays and batch.letters:  # They come from another database.
            await letters.keep(connection, grant, batch.letters)
        if has_keys or batch.replays:
            told = [batch.records, batch.streams] if batch.streams else [batch.records]
            keys: list[bytes | None] = list(map(batch.supersedes, *told)) if has_keys and batch.supersedes else []
            if batch.replays and batch.letters:  # Of those it is not known whether they are older than others.
                keys = letters.none_of(keys, batch.replays, batch.letters)
            locked = await letters.lock(connection, grant, batch.replays, [key for key in keys if key is not None])
            if gone := letters.superseded(locked, keys, batch.replays if keys else ()):
                await letters.resolve(connection, grant, gone, "superseded")
            if batch.replays:
                still_open = {letter.id for letter in locked}
                pieces = [piece.open_only(still_open) for piece in pieces]
        await self._tables.put(connection, pieces, cut)
        if batch.replays:
            replayed = {id for piece in pieces for id in piece.batch.replays}
            await letters.resolve(connection, grant, list(replayed), "replayed")
        elif batch.letters:
            await letters.keep(connection, grant, batch.letters)
        if not await positions.advance(connection, positions.position_of(grant, batch.progress), self._kept):
            return False
        await connection.execute("COMMIT")
        if gone:
            self._context.letters_resolved()
        return True


def _is_refusal(error: Exception, pieces: Sequence[Piece]) -> bool:
    """Whether a record may be at fault. Of several tables one alone cannot tell: what it lacks may be in another."""
    return is_refusal(error) or (isinstance(error, BadRecords) and len(pieces) > 1)


async def _rehearsed(connection: Connection, tables: Tables, batch: Outgoing, cut: Cut = by_stream) -> bool:
    """Write rows inside a transaction that will not be committed. False: it is worth another try."""
    pieces, cut = await tables.ready(connection, None, batch, cut)
    try:
        async with savepoint(connection):
            await tables.put(connection, pieces, cut)
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except Exception as error:
        if not _is_refusal(error, pieces):
            raise
        misfits = await tables.isolated(connection, pieces, error, cut)
        if misfits is None and (len(pieces) == 1 or cut is in_order):
            raise
        if misfits is None:
            return await _rehearsed(connection, tables, batch, in_order)
        await changed(connection, None, misfits)
        return False
    return True
