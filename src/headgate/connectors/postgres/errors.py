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
from headgate.errors import BatchRefused, Cause, ConnectorError, NotConnected
from headgate.text import one_line

# What the driver raises for a value that it cannot send.
DRIVERS = (TypeError, ValueError, ArithmeticError, AttributeError)


class Fault(Enum):
    """Whose turn it is to do something."""

    GONE = auto()  # The session has ended, or none can be had: try again later.
    BUSY = auto()  # Another transaction was in the way, or somebody cancelled the statement: try again.
    DENIED = auto()  # The user may not.
    CONFIG = auto()  # There is no such database, schema, table or column.
    DATA = auto()  # A value does not fit, breaks a constraint, or is refused by a trigger.
    OTHER = auto()  # Anything else that the server says.


def fault_of(error: BaseException | None) -> Fault | None:
    """What an error means. None: it is not the driver's."""
    match error:
        case asyncpg.QueryCanceledError() | asyncpg.TransactionRollbackError() | asyncpg.LockNotAvailableError():
            return Fault.BUSY
        case asyncpg.InsufficientPrivilegeError(server_source_function="ExecWithCheckOptions"):
            return Fault.DATA  # A row that a policy of the table refuses; others are welcome.
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
            return Fault.DATA if is_of_record(error.sqlstate or "") else Fault.OTHER
    return None


# Classes of codes that the server has for failures that no record can be blamed for. A trigger may raise any other.
OF_SERVER = (
    "00",
    "01",
    "02",
    "03",
    "08",
    "0A",
    "25",
    "28",
    "2D",
    "3D",
    "3F",
    "40",
    "42",
    "53",
    "55",
    "57",
    "58",
    "XX",
)
_OF_RECORD = {"22": "a value does not fit", "54": "the row, or its key in an index, is too large"}


def is_of_record(code: str) -> bool:
    """Whether an error with this code may be a record's fault: of its values, of a constraint, or of a trigger."""
    return len(code) == 5 and code[:2] not in OF_SERVER and code not in ("54001", "54023")


def reason_of(code: str, constraint: str | None, column: str | None) -> str:
    """Why the server refuses a row, without its message, which repeats values and may be a trigger's own."""
    match code:
        case "23502":
            return "must not be null" if column else "a column must not be null"
        case _ if constraint:
            return f"breaks the constraint {constraint}"
        case "44000":
            return "is not what the view shows"
        case _ if code[:2] in _OF_RECORD:
            return _OF_RECORD[code[:2]]
    return f"is refused by a trigger or a rule of the table ({code})"


def error_text(error: BaseException) -> str:
    """What went wrong and where, in one line. The server's hint is left out: it speaks of our statement."""
    where = getattr(error, "context", None) or getattr(error, "where", None)
    text = one_line(error)
    if isinstance(error, asyncpg.PostgresError) and error.hint:
        text = one_line(f"{error.args[0]}" + (f" DETAIL: {error.detail}" if error.detail else ""))
    return f"{text} ({one_line(where, 200)})" if where else text


def is_missing(error: BaseException) -> bool:
    """Whether there is no such table, sequence, function, type or schema."""
    return isinstance(error, _MISSING)


_MISSING = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedObjectError,
    asyncpg.InvalidSchemaNameError,
)


@contextmanager
def translate_errors(where: str, what: str) -> Iterator[None]:
    """For a dump."""
    try:
        yield
    except Exception as error:
        match fault_of(error):
            case None:
                raise
            case Fault.GONE if isinstance(error, asyncpg.DiskFullError):
                raise StorageGone(f"the disk of {where} is full: {error_text(error)}", hint="make room there") from None
            case Fault.GONE if isinstance(error, asyncpg.InsufficientResourcesError):
                raise StorageGone(f"{where} has not enough of what it needs: {error_text(error)}") from None
            case Fault.GONE:
                raise StorageGone(f"{where} is gone: {error_text(error)}") from None
            case Fault.DENIED:
                raise StorageError(f"{what}: {error_text(error)}", hint="GRANT it, or use another user") from None
            case _ if is_missing(error):
                hint = f"create it in {where} first, or --exclude the column that needs it"
                raise StorageError(f"{what}: {error_text(error)}", hint=hint) from None
        raise StorageError(f"{what}: {error_text(error)}") from None


@contextmanager
def steer_worker(address: str, table: object, *, writes: bool = False) -> Iterator[None]:
    """For a stream. What a value of its records makes the driver raise is their fault, too. `table` is asked for its
    name when something has gone wrong."""
    try:
        yield
    except ConnectorError:
        raise
    except Exception as error:
        text = one_line(error)
        of_values = DRIVERS if writes else (TypeError, ArithmeticError, UnicodeError)
        fault = Fault.DATA if isinstance(error, of_values) else fault_of(error)
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
                raise BatchRefused(f"{table}: {_refusal(error)}") from None
            case Fault.BUSY:
                raise NotConnected(text) from error
        raise NotConnected(f"PostgreSQL at {address}: {text}") from error


def _refusal(error: Exception) -> str:
    """What the server or the driver says of a record, without its values."""
    if not isinstance(error, asyncpg.PostgresError) or error.sqlstate is None:
        return "a value does not fit its column"
    return reason_of(error.sqlstate, error.constraint_name, error.column_name)
