"""A session with a PostgreSQL server: where it is, how it is opened, and how it is left.

A dump's session is one connection with settings that make text mean the same on every server. The streams of a node
share a pool for each URL; its sessions have the server's own settings, because a user's triggers and defaults may rely
on them. TLS is asyncpg's: `?sslmode=` and its relatives in the URL.

A URL may name several hosts: the newest server that takes writes is used (`headgate.hosts`), for reading, too.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from asyncpg import Connection

from headgate.connectors.api.bulk import StorageGone
from headgate.connectors.guard import OPEN, Guard
from headgate.connectors.postgres.errors import DRIVERS, Fault, error_text, fault_of, steer_worker
from headgate.connectors.postgres.pool import Pool
from headgate.connectors.postgres.walls import WalledSession, leave_own_schema
from headgate.errors import ConfigError, HeadgateError, NotConnected
from headgate.hosts import Hosts

CONNECT_S = 10.0
CHOOSE_S = 8.0  # Less than that, so that the error says what each host is and not that it took too long.
CLOSE_S = 2.0

_SETTINGS = {
    "application_name": "headgate dump",
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "row_security": "off",  # Rows that a policy hides are an error, not a smaller table.
    "lock_timeout": "10000",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# What only newer servers have: limits that would end a session which waits; and help that a plain scan is slower with.
_PLAIN = """
SELECT set_config(name, CASE name WHEN 'jit' THEN 'off' ELSE '0' END, false) FROM pg_settings
WHERE name IN ('transaction_timeout', 'idle_session_timeout', 'jit', 'max_parallel_workers_per_gather')
"""
_DRIVER = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_WRONG_URL = "a password's / ? # @ : are written %2F %3F %23 %40 %3A"


# Where.


def where_is(url: str) -> str:
    """The server and the database, for messages. A password with a sign that ends the host may be anywhere else."""
    parts = urlsplit(url)
    if not url.isprintable() or "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return "the server"
    return f"{parts.netloc.rpartition('@')[2] or 'a local socket'}{parts.path}"


def address_of(url: str) -> str:
    """The server without the database, for messages."""
    parts = urlsplit(url)
    if several := _hosts_in(parts.netloc):
        return several
    return f"{parts.hostname}:{parts.port or 5432}" if parts.hostname else "a local socket"


def _hosts_in(netloc: str) -> str:
    """Several hosts, as they are written; empty if there is one."""
    hosts = netloc.rpartition("@")[2]
    return hosts if "," in hosts else ""


# Opened.


@lru_cache(maxsize=1000)
def _hosts(url: str, only_reads: bool) -> Hosts[Connection]:
    return Hosts(url, _DRIVER, only_reads=only_reads)


async def open_session(url: str, *, only_reads: bool = False, **options: Any) -> Connection:
    """A session with the right one of the URL's hosts. The options are the driver's."""
    return await _hosts(url, only_reads).connect(lambda one: asyncpg.connect(one, **options), CHOOSE_S)


async def connect(url: str, guard: Guard = OPEN, *, only_reads: bool = False, **settings: str) -> Connection:
    """A session of a dump."""
    if only_reads:
        settings["default_transaction_read_only"] = "on"
    try:
        connection = await open_session(
            url,
            only_reads=only_reads,
            timeout=CONNECT_S,
            server_settings={**_SETTINGS, **settings},
            statement_cache_size=0,
            connection_class=WalledSession,
            loop=guard.loop(),
        )
        await connection.execute(_PLAIN)
        await leave_own_schema(connection)
    except ValueError:  # Its text may hold a piece of the password.
        raise ConfigError("the URL of a PostgreSQL server is wrong", hint=_WRONG_URL) from None
    except Exception as error:
        match fault_of(error):
            case None:
                raise
            case Fault.GONE:
                raise StorageGone(f"{where_is(url)} does not answer: {error_text(error)}") from None
            case Fault.DENIED | Fault.CONFIG:
                raise ConfigError(
                    f"{where_is(url)} refuses the connection: {error_text(error)}", hint="check the URL"
                ) from None
        raise ConfigError(f"{where_is(url)} refuses the connection: {error_text(error)}") from None
    return connection


class _Pooled(WalledSession):
    """A session of a pool."""


async def make_pool(url: str, guard: Guard = OPEN) -> Pool:
    """The sessions of a node's streams."""

    async def connect() -> Connection:
        connection = await open_session(url, timeout=CONNECT_S, connection_class=_Pooled, loop=guard.loop())
        try:
            await leave_own_schema(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    return Pool(connect)


async def probe(url: str, guard: Guard) -> None:
    """Whether the server takes writes from us."""
    with steer_worker(address_of(url), "the server"):
        connection = await asyncpg.connect(
            url, timeout=CONNECT_S, connection_class=WalledSession, loop=guard.loop(), statement_cache_size=0
        )
        try:
            if await connection.fetchval("SHOW transaction_read_only") == "on":
                raise NotConnected(f"PostgreSQL at {address_of(url)}: it only reads now")
        finally:
            await close(connection)


# Left.


async def roll_back(connection: Connection, error: BaseException) -> bool:
    """Leave the transaction that this error broke, or else the session. Returns whether the session is still good.

    Nothing is raised: the error that led here is what people must see.
    """
    # A COPY that was broken off, a cancelled task, or a session that is lost are not worth an answer.
    is_answered = isinstance(error, (asyncpg.PostgresError, HeadgateError, *DRIVERS))
    if is_answered and not isinstance(error, StorageGone) and fault_of(error) is not Fault.GONE:
        with suppress(Exception):
            await connection.execute("ROLLBACK")
            return True
    with suppress(Exception):
        connection.terminate()
    return False


async def close(connection: Connection) -> None:
    """End a session, whatever state it is in."""
    with suppress(Exception):
        await connection.close(timeout=CLOSE_S)
