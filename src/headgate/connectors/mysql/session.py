"""One session of MySQL or MariaDB: a connection, and a thread of its own in which it is used.

PyMySQL waits where it stands, so whatever it does is done in that thread, one thing after another. A task that is
cancelled shuts the socket down: the server rolls back, the thread ends what it was at, and the next use connects
anew. Nothing that matters lives in a connection between two uses.

Rows that are copied come as one value each, which `Lines` takes from the packets as they arrive: a Python object for
each column would cost more than all the rest. The format of a packet: three bytes of length, one number, the data; of
a row with one value: its length (one byte up to 250, else a mark and 2, 3 or 8 bytes), then the value.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.connections import Connection

from headgate.connectors.api.bulk import StorageError, StorageGone
from headgate.connectors.urls import redacted
from headgate.errors import ConfigError, HeadgateError
from headgate.text import one_line

T = TypeVar("T")

PIECE = 1 << 20  # Bytes of rows that are handed on together.
_BLOCK = 1 << 18  # Bytes asked of the socket at once.
_WHOLE = 0xFFFFFF  # A packet of this length is continued in the next one.
_IDLE_S = 30.0  # A connection that was not used for so long is asked whether it lives.
_SSL_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
_OPTIONS = {
    "unix_socket",
    "charset",
    "connect_timeout",
    "sslmode",
    "ssl_ca",
    "ssl_cert",
    "ssl_key",
    "tinyint1",
    "zero_dates",
}

# What the server says when it cannot be talked to any more, or does not let anybody in for now.
_GONE = {0, 1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1317, 1927, 2002, 2003, 2006, 2013, 2055, 4031}
_CONFIG = {1044, 1045, 1049, 1130, 1251, 1275, 1524, 1698, 2026, 2059, 2061}  # When it is met at the door.


class Where:
    """What a URL says: where the server is, and how its types are to be read."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.name = redacted(url)
        self._refuse_unknown(options)
        self.database = unquote(parts.path.lstrip("/"))
        if not self.database:
            raise ConfigError(f"{self.name} names no database", hint="mysql://user:password@host/database")
        self.is_bool = options.get("tinyint1") == "bool"
        self.null_dates = options.get("zero_dates") == "null"
        try:
            port = parts.port or 3306
            timeout_s = float(options.get("connect_timeout", 10))
        except ValueError:
            raise ConfigError(f"{self.name}: the port and connect_timeout are numbers") from None
        self.arguments: dict[str, Any] = {
            "host": parts.hostname or "127.0.0.1",
            "port": port,
            "user": unquote(parts.username or "root"),
            "password": unquote(parts.password or "").encode(),
            "database": self.database,
            "unix_socket": options.get("unix_socket"),
            "connect_timeout": timeout_s,
            "charset": "utf8mb4",
            "program_name": "headgate",
            **self._secured(options),
        }

    def _refuse_unknown(self, options: dict[str, str]) -> None:
        for name, value in options.items():
            if name not in _OPTIONS:
                raise ConfigError(f"{self.name}: there is no option {name!r}", hint=f"one of {', '.join(_OPTIONS)}")
            allowed = {"charset": ("utf8mb4",), "tinyint1": ("bool", "int"), "zero_dates": ("null", "refuse")}
            allowed["sslmode"] = _SSL_MODES
            if name in allowed and value not in allowed[name]:
                raise ConfigError(f"{self.name}: {name}={value}", hint=f"one of {', '.join(allowed[name])}")

    def _secured(self, options: dict[str, str]) -> dict[str, Any]:
        authority = options.get("ssl_ca")
        is_local = "unix_socket" in options
        mode = options.get("sslmode") or ("verify-full" if authority else "disable" if is_local else "prefer")
        if mode == "disable":
            return {"ssl_disabled": True}
        if mode == "prefer":
            return {}
        try:
            context = ssl.create_default_context(cafile=authority)
            context.check_hostname = mode == "verify-full"
            context.verify_mode = ssl.CERT_NONE if mode == "require" else ssl.CERT_REQUIRED
            if "ssl_cert" in options:
                context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
        except OSError as error:
            raise ConfigError(f"{self.name}: the certificates cannot be read: {error}") from None
        return {"ssl": context}


class Session:
    """A connection that is made when it is needed, and its thread."""

    def __init__(self, where: Where, setup: Sequence[str], **arguments: Any) -> None:
        self.where = where
        self._setup = setup
        self._arguments = {**where.arguments, **arguments}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mysql")
        self._connection: Connection[Any] | None = None
        self._is_cut = False
        self._is_pinned = False  # A transaction is under way.
        self._used_s = 0.0
        self.is_mariadb = False
        self.version = (0, 0)

    async def run(self, work: Callable[[], T]) -> T:
        """Do this in the thread. Who is cancelled meanwhile cuts the connection."""
        return await self.ended(self.submit(work))

    async def ended(self, future: Future[T]) -> T:
        """What came of work that was handed to the thread."""
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.cut()
            raise

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Hand work to the thread. It uses the methods below."""
        return self._thread.submit(self._told, work)

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

    def rows(self, sql: str) -> tuple[tuple[Any, ...], ...]:
        """The rows that a statement gives."""
        with self.connection().cursor() as cursor:
            cursor.execute(sql)
            self._used_s = time.monotonic()
            return tuple(cursor.fetchall())

    def value(self, sql: str) -> Any:
        """The first value of the first row, or None."""
        found = self.rows(sql)
        return found[0][0] if found else None

    def execute(self, sql: str) -> tuple[int, int]:
        """Do it. Returns how many rows were changed, and how many warnings there are."""
        with self.connection().cursor() as cursor:
            changed = cursor.execute(sql)
            self._used_s = time.monotonic()
            return changed, int(getattr(cursor, "warning_count", 0))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, on one connection: one that is lost is not made anew in the middle."""
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
        """The connection, made anew if there is none that lives."""
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
            made: Connection[Any] = pymysql.connect(**self._arguments)
        except pymysql.MySQLError as error:
            number, text = _said(error)
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

    def _hang_up(self) -> None:
        held, self._connection = self._connection, None
        if held is None:
            return
        result = getattr(held, "_result", None)
        if result is not None:
            result.unbuffered_active = False  # What was not read is not read any more.
        with contextlib.suppress(Exception):
            held.close()

    def _told(self, work: Callable[[], T]) -> T:
        """Do the work, and say in our own words what went wrong."""
        try:
            return work()
        except HeadgateError:
            raise
        except pymysql.MySQLError as error:
            number, text = _said(error)
            if number in _GONE:
                self._hang_up()
                raise StorageGone(f"{self.where.name} does not answer any more: {text or 'no connection'}") from None
            raise StorageError(f"{self.where.name}: {text} ({number})") from None
        except Exception as error:
            if isinstance(error, OSError) or self._connection is None or not self._connection.open or self._is_cut:
                self._hang_up()
                raise StorageGone(f"{self.where.name} does not answer any more: {error}") from None
            self._hang_up()
            raise


def _said(error: pymysql.MySQLError) -> tuple[int, str]:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    return number, one_line(text, 300)


def number_of(error: BaseException) -> int:
    """The server's number for an error."""
    return _said(error)[0] if isinstance(error, pymysql.MySQLError) else 0


def is_gone(error: BaseException) -> bool:
    """Whether the server is, and not only what it was asked for."""
    return number_of(error) in _GONE


class EmptyRow(Exception):
    """The server has rendered no line for a row: it has a value that may not be copied."""


class Lines:
    """The lines that a statement with one text column gives, as they come from the socket."""

    def __init__(self, connection: Connection[Any], sql: str) -> None:
        connection.query(sql, unbuffered=True)
        self._connection: Any = connection
        self._data = b""
        self._wanted = 1  # Bytes without which nothing more can be taken.
        self._has_ended = False

    def piece(self) -> tuple[bytes, int] | None:
        """About a mebibyte of lines, and how many they are. None: that was all."""
        lines: list[bytes] = []
        size = 0
        while size < PIECE and not self._has_ended:
            self._receive()
            size += self._take(lines)
        if not lines:
            return None
        lines.append(b"")
        return b"\n".join(lines), len(lines) - 1

    def _receive(self) -> None:
        held, size = [self._data], len(self._data)
        while size < self._wanted or len(held) == 1:
            some = self._connection._rfile.read1(_BLOCK)
            if not some:
                raise pymysql.OperationalError(2013, "the connection was lost in the middle of the rows")
            held.append(some)
            size += len(some)
        self._data = b"".join(held)

    def _take(self, lines: list[bytes]) -> int:
        """Take the whole rows that are there. Returns their bytes."""
        data, at, end = self._data, 0, len(self._data)
        add, header = lines.append, _HEADER
        self._wanted = 1
        try:
            while True:
                low, high, _, first = header(data, at)
                stop = at + 4 + low
                if high or first > 250:
                    stop = self._take_long(lines, at)
                    if not stop:
                        break
                elif stop > end:
                    break
                else:
                    add(data[at + 5 : stop])
                at = stop
        except struct.error:  # Less than a header is there.
            pass
        self._data = data[at:]
        return at

    def _take_long(self, lines: list[bytes], at: int) -> int:
        """A packet that is not a short row. Returns where it ends; 0: it is not here yet, or was the last."""
        data, begun = self._data, at
        parts: list[bytes] = []
        length = _WHOLE
        while length == _WHOLE:
            if len(data) < at + 4:
                self._wanted = at + 4 - begun
                return 0
            length = int.from_bytes(data[at : at + 3], "little")
            if len(data) < at + 4 + length:
                self._wanted = at + 4 + length - begun
                return 0
            parts.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        packet = b"".join(parts) if len(parts) > 1 else parts[0]
        match packet[0]:
            case 0xFF:
                self._end()
                pymysql.err.raise_mysql_exception(packet)
            case 0xFB:
                raise EmptyRow
            case 0xFE if len(packet) < 9:
                self._end()
                return 0
        lines.append(packet[{0xFC: 3, 0xFD: 4, 0xFE: 9}.get(packet[0], 1) :])
        return at

    def _end(self) -> None:
        """The result is read to its end; the connection may be used for another."""
        self._has_ended = True
        self._connection._result.unbuffered_active = False
        self._connection._result = None


_HEADER = struct.Struct("<HBBB").unpack_from
