"""The connection to PostgreSQL: one pool, short transactions, and errors that say what to do.

Every session limits how long it can hold others up: a statement, a lock it waits for, and a transaction that a stopped
process left open all end by themselves. `transaction` sets the limits again for its own length, so they also hold
behind a pooler that hands out sessions per transaction. One gap is left: the driver prepares a statement and sends it
in two steps, and to the server a process that was stopped between them is not idle. A session that waits for a lock in
vain ends such sessions (`database/end_stopped.sql`).

A database that is away, restarting or in recovery is normal. Every operation then raises `StoreError`; callers that
loop wait and try again, and only the first failure and the recovery are logged. So it is with one that takes no writes,
because its disk is full or it only reads (`store.sight`).

The URL may name several hosts; `store.hosts` finds the one to use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from headgate.clock import boot_s
from headgate.core.hosts import Answer, Host
from headgate.errors import ConfigError, HeadgateError, StoreError
from headgate.store.hosts import CONNECT_S, hosts, look, open_session, watch
from headgate.store.sight import sight_of
from headgate.text import one_line

IDLE_IN_TRANSACTION_S = 2.0  # A process stopped between lock and save holds nobody up for longer.
LOCK_S = 5.0  # Longer than an idle transaction may live, so that a waiter outlives a stopped holder.
STATEMENT_S = 15.0
POOL_SIZE = 8

_LIMITS = {
    "application_name": "headgate",
    "idle_in_transaction_session_timeout": f"{int(IDLE_IN_TRANSACTION_S * 1000)}",
    "lock_timeout": f"{int(LOCK_S * 1000)}",
    "statement_timeout": f"{int(STATEMENT_S * 1000)}",
    # The server notices a vanished client, and frees its locks, within seconds.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
_SET_LIMITS = "; ".join(f"SET {name} = {value}" for name, value in _LIMITS.items())
_BEGIN = "BEGIN; " + "; ".join(
    f"SET LOCAL {name} = {value}" for name, value in _LIMITS.items() if not name.startswith("tcp_")
)

# What PostgreSQL and the network say when the database is away or cannot answer now.
_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # Shutting down, starting up, in recovery, terminated.
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,  # Deadlock, serialization.
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,  # A standby, or a primary that was demoted.
    asyncpg.InternalClientError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)

# It answers, and nothing can be made durable.
_REFUSES_WRITES = (asyncpg.ReadOnlySQLTransactionError, asyncpg.DiskFullError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far a look has seen: all that transactions before this number have written, in this history of the server."""

    lineage: str
    xid: int


class Row(Protocol):
    """One row as the driver returns it. It never leaves `store/`: what does is frozen and has named fields."""

    def __getitem__(self, column: str, /) -> Any:
        """The value of a column."""

    def get(self, name: str) -> Any:
        """The value of a column; None if there is no such column."""

    def keys(self) -> Iterable[str]:
        """The names of the columns."""

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and values."""


class Session(Protocol):
    """What the store uses of a driver's connection. `Any` stops here: a caller says which type a value has."""

    async def fetch(self, query: str, *args: object) -> list[Row]:
        """All rows."""

    async def fetchrow(self, query: str, *args: object) -> Row | None:
        """The first row."""

    async def fetchval(self, query: str, *args: object) -> Any:
        """The first value of the first row."""

    async def execute(self, query: str, *args: object) -> str:
        """The status, such as `UPDATE 3`."""

    async def add_listener(self, channel: str, callback: Callable[[object, int, str, str], None]) -> None:
        """Call back at each notification."""

    def add_termination_listener(self, callback: Callable[[object], None]) -> None:
        """Call back when the session has ended, from whichever side."""

    async def close(self) -> None:
        """Say goodbye to the server."""

    def is_closed(self) -> bool:
        """Whether the session has ended."""

    def terminate(self) -> None:
        """Close the socket at once."""


class _Pool(Protocol):
    """What the store uses of the driver's pool."""

    async def acquire(self, *, timeout: float) -> Session: ...

    async def release(self, connection: Session) -> None: ...

    async def fetchval(self, query: str) -> object: ...

    async def close(self) -> None: ...

    def terminate(self) -> None: ...


@cache
def sql(name: str) -> str:
    """The text of `sql/<noun>/<verb>.sql`."""
    return _store().joinpath("sql", f"{name}.sql").read_text("utf-8")


@cache
def _store() -> Traversable:
    return resources.files("headgate.store")


def is_away(error: BaseException) -> bool:
    """Whether this error means that the database cannot answer now, and may later."""
    return isinstance(error, _AWAY) and not isinstance(error, asyncpg.QueryCanceledError)


def is_undone(error: StoreError) -> bool:
    """Whether the database is there and a transaction that ended so was rolled back: it may be tried again at once."""
    refused = asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, ValueError  # The driver's, of a value.
    return isinstance(error.__cause__, refused) or _came_late(error.__cause__)


def _came_late(error: BaseException | None) -> bool:
    """Whether the server had ended the session before a statement came: mostly because this process stood still in a
    transaction. The driver, which has read the farewell already, sends nothing then, and says what state it is in."""
    if isinstance(error, asyncpg.InternalClientError):
        return str(error).startswith("cannot switch to state")
    return isinstance(error, asyncpg.IdleInTransactionSessionTimeoutError)


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn what the driver raises when the database is away into `StoreError`."""
    try:
        yield
    except (*_AWAY, asyncpg.QueryCanceledError) as error:
        if _came_late(error):
            raise StoreError("the database ended the session before it was asked", hint="try again") from error
        raise StoreError(f"the database did not answer: {one_line(error)}") from error


@contextmanager
def _refusals() -> Iterator[None]:
    """A wrong name or password will not become right by waiting."""
    try:
        yield
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise ConfigError(
            f"the database refuses the connection: {one_line(error)}", hint="check HEADGATE_DATABASE"
        ) from error


@contextmanager
def refusals_in_words() -> Iterator[None]:
    """What the server refuses becomes a line that people can read; for tools that ask what no store asks."""
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise HeadgateError(f"the database refuses: {one_line(error)}", hint="check the rights of this user") from error


def split_url(url: str) -> tuple[str, bool]:
    """The URL for the driver, and whether `?pooler=transaction` says that sessions are shared per transaction."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError("the database URL must begin with postgresql://", hint="set HEADGATE_DATABASE")
    query = parse_qsl(parts.query, keep_blank_values=True)
    pooled = ("pooler", "transaction") in query
    kept = urlencode([pair for pair in query if pair[0] != "pooler"], safe="/:")
    return urlunsplit(parts._replace(query=kept)), pooled


async def connect(url: str) -> Session:
    """A separate session, outside the pool."""
    dsn, pooled = split_url(url)
    with store_errors(), _refusals():
        connection: Session = await open_session(
            dsn, timeout=CONNECT_S, command_timeout=STATEMENT_S, statement_cache_size=0 if pooled else 100
        )
        await connection.execute(_SET_LIMITS)
        return connection


async def ask(url: str, query: str, *, write: bool) -> list[dict[str, object]]:
    """One statement of a person's, in a transaction that only reads unless it may `write`.

    Columns that share a name are told apart by their place.
    """
    session = await connect(url)
    try:
        await session.execute("BEGIN" if write else "BEGIN READ ONLY")
        rows = await session.fetch(query)
        await session.execute("COMMIT")
    except asyncpg.PostgresError as error:
        hint = "--write" if isinstance(error, asyncpg.ReadOnlySQLTransactionError) else ""
        raise ConfigError(one_line(error), hint=hint) from None
    finally:
        await session.close()
    return [_named(row) for row in rows]


def _named(row: Row) -> dict[str, object]:
    found: dict[str, object] = {}
    for index, (name, value) in enumerate(row.items(), 1):
        found[name if name not in found else f"{name}_{index}"] = value
    return found


Check: TypeAlias = Callable[[Session], Awaitable[None]]
"""Lets a new session work, or raises (`store.lineage`)."""


async def unchecked(session: Session) -> None:
    """Any registry will do."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A pooled session that is not reset between uses: nothing of ours outlives its transaction."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """The pool that everything but the beat and the listener shares."""

    def __init__(self, url: str, dsn: str, pool: _Pool, pooled: bool, check: Check) -> None:
        self.url = url
        self._dsn = dsn
        self._pool = pool
        self._check = check
        self._pooled = pooled  # Behind a transaction pooler even one statement needs a transaction.
        self._sight = sight_of(url)

    @classmethod
    async def open(cls, url: str, *, size: int = POOL_SIZE, check: Check = unchecked) -> Database:
        """Connect. The first connection must succeed, so that a wrong URL is found at once. Each one is checked."""
        dsn, pooled = split_url(url)

        async def prepare(session: Session) -> None:
            await session.execute(_SET_LIMITS)
            await check(session)

        try:
            pool: _Pool = await asyncpg.create_pool(
                dsn,
                connect=open_session,
                min_size=0,
                max_size=size,
                timeout=CONNECT_S,
                command_timeout=STATEMENT_S,
                statement_cache_size=0 if pooled else 100,
                init=prepare,
                connection_class=_Connection,
                max_inactive_connection_lifetime=60.0,
            )
            await pool.fetchval("SELECT 1")
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
            raise ConfigError(
                f"the database refuses the connection: {one_line(error)}", hint="check HEADGATE_DATABASE"
            ) from error
        except _AWAY as error:
            raise StoreError(
                f"the database does not answer: {one_line(error)}", hint="check HEADGATE_DATABASE"
            ) from error
        return cls(url, dsn, pool, pooled, check)

    @property
    def has_several_hosts(self) -> bool:
        """Whether there is another server to go to."""
        return hosts(self._dsn).are_several

    async def survey_hosts(self) -> dict[Host, Answer]:
        """What each of the servers is now."""
        return await look(self._dsn, everyone=True)

    async def watch_hosts(self) -> None:
        """Notice a newer primary although the one in use still answers: its sessions are ended, in all threads."""
        await watch(self._dsn)

    async def close(self) -> None:
        """Close all connections; do not wait forever for one that hangs."""
        try:
            async with asyncio.timeout(5.0):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def transaction(self, settings: str = "") -> AsyncIterator[Session]:
        """A transaction: commits at the end, rolls back on an error, never lasts long. `settings` hold for it alone."""
        with self._watched():
            async with self._session() as connection:
                await connection.execute(_BEGIN + settings)
                try:
                    if self._pooled:  # The pooler may have connected to another server meanwhile.
                        await self._check(connection)
                    yield connection
                    await connection.execute("COMMIT")
                except BaseException:
                    await roll_back(connection)
                    raise

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        """A session of the pool. Whatever keeps us from getting one, the database is away: it may accept us later."""
        try:
            connection = await self._pool.acquire(timeout=CONNECT_S)
        except _AWAY:
            raise
        except (asyncpg.PostgresError, RuntimeError) as error:
            raise StoreError(f"the database accepts no connection: {one_line(error)}") from error
        try:
            yield connection
        except asyncpg.LockNotAvailableError:
            await connection.execute(sql("database/end_stopped"))
            raise
        except (asyncio.CancelledError, TimeoutError):
            _let_go(connection)  # It may be half-open: asking it to cancel could take as long as waiting for it.
            raise
        finally:
            await self._pool.release(connection)

    async def fetch(self, query: str, *args: object) -> list[Row]:
        """One statement, its rows."""
        return await self._one(lambda session: session.fetch(query, *args))

    async def fetchrow(self, query: str, *args: object) -> Row | None:
        """One statement, its first row or None."""
        return await self._one(lambda session: session.fetchrow(query, *args))

    async def fetchval(self, query: str, *args: object) -> Any:
        """One statement, the first value of its first row."""
        return await self._one(lambda session: session.fetchval(query, *args))

    async def execute(self, query: str, *args: object) -> str:
        """One statement, its status."""
        return await self._one(lambda session: session.execute(query, *args))

    async def _one(self, ask: Callable[[Session], Awaitable[T]]) -> T:
        if self._pooled:
            async with self.transaction() as session:
                return await ask(session)
        with self._watched():
            async with self._session() as session:
                return await ask(session)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Map errors, and note what is seen of the database."""
        asked_at_s = boot_s()
        try:
            with store_errors():
                yield
        except StoreError as error:
            if isinstance(error.__cause__, _REFUSES_WRITES):
                self._sight.refused(one_line(error.__cause__))
            else:
                self._sight.failed(asked_at_s, error.message)
            raise
        else:
            self._sight.answered(asked_at_s)

    # Writes.

    @property
    def refusal(self) -> str | None:
        """Why nothing can be made durable now, although the database answers."""
        return self._sight.refusal

    async def try_to_write(self) -> None:
        """Write something that needs room, and take it back: a database that takes this takes writes again."""
        with self._watched():
            async with self._session() as session:
                await session.execute(_BEGIN)
                try:
                    await session.execute(sql("database/need_room"))
                except asyncpg.InsufficientPrivilegeError:
                    pass  # It would have been refused before, if that were the reason.
                finally:
                    await roll_back(session)
        self._sight.took_a_write()


async def roll_back(connection: Session) -> None:
    """Roll back if the session still lives; a session that cannot is closed, which has the same effect."""
    try:
        async with asyncio.timeout(1.0):
            if not connection.is_closed():
                await connection.execute("ROLLBACK")
    except BaseException:
        _let_go(connection)


def _let_go(connection: Session) -> None:
    """Close the socket at once. The pool has done so already if the session broke by itself."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()
