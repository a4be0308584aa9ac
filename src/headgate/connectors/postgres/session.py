"""A session with a PostgreSQL server: how it is opened, and what its errors mean for a dump."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import asyncpg

from headgate.connectors.api.bulk import StorageError, StorageGone
from headgate.errors import ConfigError
from headgate.text import one_line

CONNECT_S = 10.0

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
# What the server and the network say when a session has ended or none can be had.
GONE = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.InsufficientResourcesError,
)


def where_is(url: str) -> str:
    """The server and the database, for messages. A password with a sign that ends the host may be anywhere else."""
    parts = urlsplit(url)
    if not url.isprintable() or "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return "the server"
    return f"{parts.hostname or 'a local socket'}{parts.path}"


async def connect(url: str, **settings: str) -> Any:
    """A session with settings of our own."""
    try:
        connection = await asyncpg.connect(
            url, timeout=CONNECT_S, server_settings={**_SETTINGS, **settings}, statement_cache_size=0
        )
        await connection.execute(_PLAIN)
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise ConfigError(f"{where_is(url)} refuses us: {error_text(error)}", hint="check the URL") from None
    except ValueError:  # Its text may hold a piece of the password.
        raise ConfigError(
            "the URL of a PostgreSQL server is wrong", hint="a password's / ? # @ : are written %2F %3F %23 %40 %3A"
        ) from None
    except (*GONE, TimeoutError) as error:
        raise StorageGone(f"{where_is(url)} does not answer: {error_text(error)}") from None
    except asyncpg.PostgresError as error:
        raise ConfigError(f"{where_is(url)} refuses us: {error_text(error)}") from None
    return connection


def is_gone(error: BaseException | None) -> bool:
    """Whether the session has ended. A statement that somebody cancelled is only that."""
    return isinstance(error, GONE) and not isinstance(error, asyncpg.QueryCanceledError)


def error_text(error: BaseException) -> str:
    """What went wrong and, where the server says it, where."""
    where = getattr(error, "context", None) or getattr(error, "where", None)
    return f"{one_line(error)} ({one_line(where, 200)})" if where else one_line(error)


class errors:
    """Turn what the driver raises into what steers a dump."""

    def __init__(self, url: str, what: str) -> None:
        self._url = url
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and is_gone(error):
            raise StorageGone(f"{where_is(self._url)} is gone: {error_text(error)}") from None
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            raise StorageError(f"{self._what}: {error_text(error)}", hint="GRANT it, or use another user") from None
        if isinstance(error, asyncpg.PostgresError):
            raise StorageError(f"{self._what}: {error_text(error)}") from None
