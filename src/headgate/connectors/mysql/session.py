"""One session of MySQL or MariaDB: a connection, and the thread in which it is used.

PyMySQL waits where it stands, so whatever it does is done in that thread, one thing after another. A task that is
cancelled shuts the socket down: the server rolls back, the thread ends what it was at, and the next use connects
again. Nothing that matters lives in a connection between two uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import pymysql
from pymysql.connections import Connection

from headgate.connectors.api.bulk import StorageError, StorageGone
from headgate.connectors.guard import present
from headgate.connectors.mysql.options import Where
from headgate.errors import ConfigError, HeadgateError
from headgate.text import one_line

T = TypeVar("T")

if TYPE_CHECKING:
    _Untyped = Connection[Any]
else:
    _Untyped = Connection  # It says of what kind its cursors are to a type checker only.

_IDLE_S = 30.0  # A connection that was idle for this long is checked before it is used.

# Errors of a server that is gone, or that accepts no connections for now.
_GONE = {0, 1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1317, 1927, 2002, 2003, 2006, 2013, 2055, 4031}
_FULL = {1021, 1114}  # The disk, or a table.
_CONFIG = {1044, 1045, 1049, 1130, 1251, 1275, 1524, 1698, 2026, 2059, 2061}  # While connecting.


class _Connection(_Untyped):
    """A connection that sends no file but the one that is being loaded: the server names it, and could name any."""

    sends: str | None = None

    def _read_query_result(self, unbuffered: bool = False) -> int:
        self._local_infile = self.sends is not None
        return super()._read_query_result(unbuffered)  # type: ignore[misc, no-any-return]

    def _read_packet(self, *args: Any, **kwargs: Any) -> Any:
        packet = super()._read_packet(*args, **kwargs)  # type: ignore[no-untyped-call]
        offered = self.sends
        if offered is not None and packet.is_load_local_packet() and packet.get_all_data()[1:] != offered.encode():
            raise pymysql.OperationalError(2000, "the server asked for a file that it was not offered")
        return packet


class Session:
    """A connection that is made when it is needed, and its thread."""

    def __init__(self, where: Where, setup: Sequence[str], **arguments: Any) -> None:
        self.where = where
        self._setup = setup
        self._guard = present()
        self._arguments = {**where.arguments, **arguments}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mysql")
        self._connection: Connection[Any] | None = None
        self._is_cut = False
        self._is_pinned = False  # A transaction is under way.
        self._used_s = 0.0
        self.is_mariadb = False
        self.version = (0, 0)

    async def run(self, work: Callable[[], T]) -> T:
        """Do this in the thread. If the caller is cancelled, the connection is cut."""
        return await self.ended(self.submit(work))

    async def ended(self, future: Future[T]) -> T:
        """The result of work that was handed to the thread."""
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.cut()
            raise

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Hand work to the thread. It uses the methods below."""
        return self._thread.submit(self._translated, work)

    def cut(self) -> None:
        """End the connection from outside, whatever it is doing."""
        self._is_cut = True
        held = getattr(self._connection, "_sock", None)
        if held is not None:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """End the session."""
        with contextlib.suppress(HeadgateError, RuntimeError):
            await self.run(self._hang_up)
        self._thread.shutdown(wait=False)

    # In the thread.

    def rows(self, sql: str, *values: object) -> tuple[tuple[Any, ...], ...]:
        """The rows that a statement gives. Where there are values, it has %s for each."""
        with self.connection().cursor() as cursor:
            cursor.execute(sql, values or None)
            self._used_s = time.monotonic()
            return tuple(cursor.fetchall())

    def value(self, sql: str) -> Any:
        """The first value of the first row, or None."""
        found = self.rows(sql)
        return found[0][0] if found else None

    def execute(self, sql: str, *values: object) -> tuple[int, int]:
        """Do it. Returns how many rows were changed, and how many warnings there are."""
        with self.connection().cursor() as cursor:
            changed = cursor.execute(sql, values or None)
            self._used_s = time.monotonic()
            return changed, int(getattr(cursor, "warning_count", 0))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, on one connection: one that is lost is not replaced in the middle."""
        self.connection()
        self._is_pinned = True
        try:
            self.execute("START TRANSACTION")
            yield
            self.execute("COMMIT")
        except BaseException:
            try:
                self.execute("ROLLBACK")
            except Exception:
                self._hang_up()  # The server rolls back what has lost its client.
            raise
        finally:
            self._is_pinned = False

    def connection(self) -> Connection[Any]:
        """The connection; a new one if there is none that lives."""
        if self._is_pinned:
            if self._connection is None or self._is_cut or not self._connection.open:
                raise pymysql.OperationalError(2013, "the connection was lost in a transaction")
            return self._connection
        if self._connection is not None and (self._is_cut or not self._connection.open or not self._is_alive()):
            self._hang_up()
        if self._connection is None:
            self._is_cut = False
            self._connection = self._connect()
            self._used_s = time.monotonic()
        return self._connection

    def _is_alive(self) -> bool:
        if time.monotonic() - self._used_s < _IDLE_S or self._connection is None:
            return True
        try:
            self._connection.ping(reconnect=False)
        except (pymysql.MySQLError, OSError):
            return False
        return True

    def _connect(self) -> Connection[Any]:
        try:
            made = _Connection(**self._arguments, defer_connect=True)
            made.connect(self._socket())
        except pymysql.MySQLError as error:
            number, text = said(error)
            if number in _CONFIG:
                raise ConfigError(f"{self.where.name}: {text}") from None
            raise StorageGone(f"{self.where.name} does not answer: {text}") from None
        except (OSError, UnicodeError, RuntimeError) as error:
            raise StorageGone(f"{self.where.name} does not answer: {error}") from None
        version = str(getattr(made, "server_version", "")).removeprefix("5.5.5-")
        self.is_mariadb = "mariadb" in version.lower()
        numbers = version.split("-")[0].split(".")
        self.version = (int(numbers[0]), int(numbers[1]))
        with made.cursor() as cursor:
            for statement in self._setup:
                cursor.execute(statement)
            if not self.is_mariadb and self.version >= (8, 0):
                cursor.execute("SET SESSION information_schema_stats_expiry = 0")
        return made

    def _socket(self) -> socket.socket | None:
        """A connection to an address that was judged. None: none need be judged, the client connects by itself."""
        if not self._guard.judges_addresses or self._arguments.get("unix_socket"):
            return None
        host, port, timeout_s = (self._arguments[name] for name in ("host", "port", "connect_timeout"))
        made = self._guard.connect(host, port, timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return made

    def load(self, sql: str, path: str) -> tuple[int, int]:
        """The same for a statement that has the client send a file: this one, whatever the server asks for."""
        connection = self.connection()
        assert isinstance(connection, _Connection)
        connection.sends = path
        try:
            return self.execute(sql)
        finally:
            connection.sends = None

    def _hang_up(self) -> None:
        held, self._connection = self._connection, None
        if held is None:
            return
        result = getattr(held, "_result", None)
        if result is not None:
            result.unbuffered_active = False  # What was not read is not read any more.
        with contextlib.suppress(Exception):
            held.close()

    def _translated(self, work: Callable[[], T]) -> T:
        """Do the work, and say in our own words what went wrong."""
        try:
            return work()
        except HeadgateError:
            raise
        except pymysql.MySQLError as error:
            number, text = said(error)
            if number in _GONE:
                self._hang_up()
                raise StorageGone(f"{self.where.name} no longer answers: {text or 'no connection'}") from None
            hint = "make room there and resume" if number in _FULL else ""
            raise StorageError(f"{self.where.name}: {text} ({number})", hint=hint) from None
        except Exception as error:
            if isinstance(error, OSError) or self._connection is None or not self._connection.open or self._is_cut:
                self._hang_up()
                raise StorageGone(f"{self.where.name} no longer answers: {error}") from None
            self._hang_up()
            raise


def said(error: pymysql.MySQLError) -> tuple[int, str]:
    """The server's number for an error, and its text in one line."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    return number, one_line(text, 300)


def number_of(error: BaseException) -> int:
    """The server's number for an error."""
    return said(error)[0] if isinstance(error, pymysql.MySQLError) else 0


def is_gone(error: BaseException) -> bool:
    """Whether the server is, and not only what it was asked for."""
    return number_of(error) in _GONE
