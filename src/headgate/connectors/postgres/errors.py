"""What PostgreSQL's errors mean: each is one `Fault`, and each contract says it in its own words.

A dump wants `StorageError`, which fails a chunk, or `StorageGone`, which stops all of them. A stream wants the errors
that steer its worker (`headgate.errors`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

import asyncpg

from headgate.connectors.api.bulk import StorageError, StorageGone
from headgate.errors import BadRecord, Cause, ConnectorError, NotConnected
from headgate.text import one_line


class Fault(Enum):
    """Whose turn it is to do something."""

    GONE = auto()  # The session has ended, or none can be had: try again later.
    BUSY = auto()  # Another transaction was in the way, or somebody cancelled the statement: try again.
    DENIED = auto()  # The user may not.
    CONFIG = auto()  # There is no such database, schema, table or column.
    DATA = auto()  # A value does not fit, or breaks a constraint.
    OTHER = auto()  # Anything else that the server says.


def fault_of(error: BaseException | None) -> Fault | None:
    """What an error means. None: it is not the driver's."""
    match error:
        case asyncpg.QueryCanceledError() | asyncpg.TransactionRollbackError() | asyncpg.LockNotAvailableError():
            return Fault.BUSY
        case asyncpg.InvalidAuthorizationSpecificationError() | asyncpg.InsufficientPrivilegeError():
            return Fault.DENIED
        case (
            asyncpg.InvalidCatalogNameError()
            | asyncpg.SyntaxOrAccessError()
            | asyncpg.InvalidSchemaNameError()
            | asyncpg.ClientConfigurationError()
        ):
            return Fault.CONFIG
        case asyncpg.DataError() | asyncpg.IntegrityConstraintViolationError():
            return Fault.DATA
        case (
            OSError()
            | asyncpg.PostgresConnectionError()
            | asyncpg.OperatorInterventionError()
            | asyncpg.InterfaceError()
            | asyncpg.InternalClientError()
            | asyncpg.InsufficientResourcesError()
        ):
            return Fault.GONE
        case asyncpg.PostgresError():
            return Fault.OTHER
    return None


def error_text(error: BaseException) -> str:
    """What went wrong and where, in one line."""
    where = getattr(error, "context", None) or getattr(error, "where", None)
    return f"{one_line(error)} ({one_line(where, 200)})" if where else one_line(error)


@contextmanager
def translate_errors(where: str, what: str) -> Iterator[None]:
    """For a dump."""
    try:
        yield
    except Exception as error:
        match fault_of(error):
            case None:
                raise
            case Fault.GONE:
                raise StorageGone(f"{where} is gone: {error_text(error)}") from None
            case Fault.DENIED:
                raise StorageError(f"{what}: {error_text(error)}", hint="GRANT it, or use another user") from None
        raise StorageError(f"{what}: {error_text(error)}") from None


@contextmanager
def steer_worker(address: str, table: str) -> Iterator[None]:
    """For a stream. What a value of its records makes the driver raise is their fault, too."""
    try:
        yield
    except ConnectorError:
        raise
    except Exception as error:
        text = one_line(error)
        fault = Fault.DATA if isinstance(error, TypeError | OverflowError) else fault_of(error)
        if fault is None and isinstance(error, ValueError):  # About the URL: its text may hold a part of the password.
            raise ConnectorError("the URL cannot be used", cause=Cause.CONFIG) from None
        match fault:
            case None:
                raise
            case Fault.DENIED:
                raise ConnectorError(text, cause=Cause.AUTH) from error
            case Fault.CONFIG:
                raise ConnectorError(f"{table}: {text}", cause=Cause.CONFIG) from error
            case Fault.DATA:
                raise BadRecord(f"{table}: {text}") from error
            case Fault.BUSY:
                raise NotConnected(text) from error
        raise NotConnected(f"PostgreSQL at {address}: {text}") from error
