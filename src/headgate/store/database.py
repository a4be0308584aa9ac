"""The connection to PostgreSQL: one pool, short transactions, and errors that say what to do.

Every session limits how long it can hold others up: a statement, a lock it waits for, and a transaction that a stopped
process left open all end by themselves. `transaction` sets the limits again for its own length, so they also hold
behind a pooler that hands out sessions per transaction. One gap is left: the driver prepares a statement and sends it
in two steps, and to the server a process that was stopped between them is not idle. Whoever waits for a lock in vain
ends such sessions (`database/end_stopped.sql`).

A database that is away, restarting or in recovery is normal. Every operation then raises `StoreError`; callers that
loop wait and try again, and only the first failure and the recovery are logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
import structlog

from headgate.errors import ConfigError, StoreError
from headgate.text import one_line

IDLE_IN_TRANSACTION_S = 2.0  # A process stopped between lock and save holds nobody up for longer.
LOCK_S = 5.0  # Longer than an idle transaction may live, so that a waiter outlives a stopped holder.
STATEMENT_S = 15.0
CONNECT_S = 5.0
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

log = structlog.get_logger()


@cache
def sql(name: str) -> str:
    """The text of `sql/<noun>/<verb>.sql`."""
    return resources.files("headgate.store").joinpath("sql", f"{name}.sql").read_text("utf-8")


def is_away(error: BaseException) -> bool:
    """Whether this error means that the database cannot answer now, and may later."""
    return isinstance(error, _AWAY) and not isinstance(error, asyncpg.QueryCanceledError)


@contextmanager
def store_errors() -> Any:
    """Turn what the driver raises when the database is away into `StoreError`."""
    try:
        yield
    except (*_AWAY, asyncpg.QueryCanceledError) as error:
        raise StoreError(f"the database did not answer: {one_line(error)}") from error


@contextmanager
def _refusals() -> Any:
    """A wrong name or password will not become right by waiting."""
    try:
        yield
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise ConfigError(
            f"the database refuses the connection: {one_line(error)}", hint="check HEADGATE_DATABASE"
        ) from error


def split_url(url: str) -> tuple[str, bool]:
    """The URL for the driver, and whether `?pooler=transaction` says that sessions are shared per transaction."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError("the database URL must begin with postgresql://", hint="set HEADGATE_DATABASE")
    query = parse_qsl(parts.query, keep_blank_values=True)
    pooled = ("pooler", "transaction") in query
    kept = urlencode([pair for pair in query if pair[0] != "pooler"], safe="/:")
    return urlunsplit(parts._replace(query=kept)), pooled


async def connect(url: str) -> Any:
    """One session of its own, outside the pool."""
    dsn, pooled = split_url(url)
    with store_errors(), _refusals():
        connection = await asyncpg.connect(
            dsn, timeout=CONNECT_S, command_timeout=STATEMENT_S, statement_cache_size=0 if pooled else 100
        )
        await connection.execute(_SET_LIMITS)
        return connection


async def _set_limits(connection: Any) -> None:
    await connection.execute(_SET_LIMITS)


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A pooled session that is not reset between uses: nothing of ours outlives its transaction."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """The pool that everything but the beat and the listener shares."""

    def __init__(self, url: str, pool: Any, pooled: bool) -> None:
        self.url = url
        self._pool = pool
        self._pooled = pooled  # Behind a transaction pooler even one statement needs a transaction.
        self._away = False

    @classmethod
    async def open(cls, url: str, *, size: int = POOL_SIZE) -> Database:
        """Connect. The first connection must succeed, so that a wrong URL is found at once."""
        dsn, pooled = split_url(url)
        try:
            pool = await asyncpg.create_pool(
                dsn,
                min_size=0,
                max_size=size,
                timeout=CONNECT_S,
                command_timeout=STATEMENT_S,
                statement_cache_size=0 if pooled else 100,
                init=_set_limits,
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
        return cls(url, pool, pooled)

    async def close(self) -> None:
        """Close all connections; do not wait for ever for one that hangs."""
        try:
            async with asyncio.timeout(5.0):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def transaction(self, settings: str = "") -> AsyncIterator[Any]:
        """A transaction: commits at the end, rolls back on an error, never lasts long. `settings` hold for it alone."""
        with self._watched():
            async with self._session() as connection:
                await connection.execute(_BEGIN + settings)
                try:
                    yield connection
                    await connection.execute("COMMIT")
                except BaseException:
                    await _roll_back(connection)
                    raise

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        """A session of the pool. Whatever keeps us from getting one, the database is away: it may let us in again."""
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

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        """One statement, its rows."""
        return await self._one("fetch", query, *args)  # type: ignore[no-any-return]

    async def fetchrow(self, query: str, *args: Any) -> Any:
        """One statement, its first row or None."""
        return await self._one("fetchrow", query, *args)

    async def fetchval(self, query: str, *args: Any) -> Any:
        """One statement, the first value of its first row."""
        return await self._one("fetchval", query, *args)

    async def execute(self, query: str, *args: Any) -> str:
        """One statement, its status."""
        return await self._one("execute", query, *args)  # type: ignore[no-any-return]

    async def _one(self, method: str, query: str, *args: Any) -> Any:
        if self._pooled:
            async with self.transaction() as connection:
                return await getattr(connection, method)(query, *args)
        with self._watched():
            async with self._session() as connection:
                return await getattr(connection, method)(query, *args)

    @contextmanager
    def _watched(self) -> Any:
        """Map errors; log when the database goes away and when it is back, and nothing in between."""
        try:
            with store_errors():
                yield
        except StoreError as error:
            if not self._away:
                self._away = True
                log.warning("database away", error=error.message)
            raise
        else:
            if self._away:
                self._away = False
                log.info("database back")


async def _roll_back(connection: Any) -> None:
    """Roll back if the session still lives; a session that cannot is closed, which has the same effect."""
    try:
        async with asyncio.timeout(1.0):
            if not connection.is_closed():
                await connection.execute("ROLLBACK")
    except BaseException:
        _let_go(connection)


def _let_go(connection: Any) -> None:
    """Close the socket at once. The pool has done so already if the session broke by itself."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()
