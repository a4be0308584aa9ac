"""COPY from one PostgreSQL server to another, passed on unread.

What a server sends for COPY TO is, message by message, what another takes for COPY FROM. So the bytes that come from
one connection go to the other as they are. A driver would take them apart, a message for each row, and put them
together again, which is most of what a client does, on cores that the servers may need.

That leaves one thing to find: where the rows end. The COPY is followed, in the same command, by a question whose answer
is a random word. The last bytes are always held back, and when they are that answer, the rows have ended before it. No
row can be mistaken for it: the word is not older than the command. A server that gives up sends an error instead, and
then nothing more.

The driver opens the connection, and has it back when the COPY is over. If anything goes wrong before that, nobody knows
in the middle of which message the two servers are, and the session is ended.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import asyncpg
from asyncpg import Connection

from headgate.connectors.api.bulk import Csv, Piece, Pieces
from headgate.connectors.sql.quoting import literal, quoted

Data: TypeAlias = Any  # Bytes, or the buffers of a piece that holds messages already.

HELD = 8 << 10  # Bytes held back: the longest end there is, an error with its details.
SMALL = 128 << 10  # After a read that brought less than this,
BREATH_S = 0.001  # the server fills the socket while we wait: fewer turns for both sides.
AHEAD = 4  # Reads that may wait for the writer: enough to bridge another task's turn.
ROOM = 1 << 20  # Bytes that a local socket may hold, where the system allows that: what the target consumes meanwhile.
QUIET_S = 1.0  # An error is the end if nothing follows it. Rows that look like one are followed by others.

_DONE = b"c\x00\x00\x00\x04"  # CopyDone, from either side.
_READY = b"Z\x00\x00\x00\x05"  # ReadyForQuery, but for its last byte, the state of the transaction.


@asynccontextmanager
async def copy_out(connection: Connection, query: str) -> AsyncIterator[Pieces]:
    """The rows of a query, as binary COPY in the messages that the server sends. A piece is a few buffers."""
    async with _asked(connection, query, "FORMAT binary") as pieces:
        yield pieces


@asynccontextmanager
async def copy_out_text(
    connection: Connection, query: str, csv: Csv, in_quotes: bool | Sequence[str]
) -> AsyncIterator[Pieces]:
    """The rows of a query as CSV, out of their messages. A row of any size comes in parts, and is never held: a driver
    would wait for its end. `in_quotes`: these columns have quotes that do not need them; True: all."""
    how = f"FORMAT csv, NULL {literal(csv.null)}, DELIMITER {literal(csv.delimiter)}"
    if in_quotes:
        names = "*" if in_quotes is True else f"({', '.join(map(quoted, in_quotes))})"
        how += f", FORCE_QUOTE {names}"

    async def contents(pieces: Pieces) -> Pieces:
        body = _Body()
        async for piece in pieces:
            data = b"".join(part for parts in piece.data for part in body.parts(parts))
            yield Piece(data, len(data), piece.rows)

    async with _asked(connection, query, how) as pieces:
        yield contents(pieces)


@asynccontextmanager
async def _asked(connection: Connection, query: str, how: str) -> AsyncIterator[Pieces]:
    source = _Source(connection)
    with _lent(source):
        source.ask(f"COPY ({query}) TO STDOUT ({how}); SELECT '{source.word}'")
        yield source.pieces()


class _Body:
    """What is in messages of COPY, which come in parts that end anywhere."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0  # Bytes of the message that have not come,
        self._is_row = False  # and whether they are wanted.

    def parts(self, data: bytes | memoryview) -> Iterator[memoryview]:
        """What is in this part."""
        view, at = memoryview(data), 0
        while at < len(view):
            if self._left:
                part = view[at : at + self._left]
                self._left -= len(part)
                at += len(part)
                if self._is_row:
                    yield part
                continue
            more = view[at : at + 5 - len(self._head)]
            self._head += more
            at += len(more)
            if len(self._head) == 5:
                self._is_row, self._left = self._head[:1] == b"d", int.from_bytes(self._head[1:], "big") - 4
                self._head = b""


async def copy_in(connection: Connection, statement: str, pieces: Pieces, *, in_messages: bool) -> int:
    """Run a COPY FROM STDIN with these pieces, which are messages already or only what is in them. Returns its rows."""
    target = _Target(connection)
    with _lent(target):
        target.ask(statement)
        await target.until(lambda: target.accepts)
        async for piece in pieces:
            await target.until(lambda: target.has_room)
            if piece.data:
                target.send(piece.data, in_messages)
        await target.until(lambda: target.has_room)
        target.transport.write(_DONE)
        await target.until(lambda: target.is_over)
    return target.rows


class _Borrower(asyncio.Protocol):
    """Has a connection in the place of its driver."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.transport: asyncio.Transport = connection._transport
        self.driver: asyncio.BaseProtocol = self.transport.get_protocol()
        assert not isinstance(self.driver, _Borrower), "a session is used for one thing at a time"
        self.is_over = False  # The server has answered, and waits for the next command.
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def ask(self, statement: str) -> None:
        """Send a command."""
        text = statement.encode() + b"\x00"
        self.transport.write(b"Q" + _length(text) + text)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until this is true. Raises the error that came first."""
        while True:
            if self._error is not None:
                raise self._error
            if is_so():
                return
            self._changed.clear()
            await self._changed.wait()

    def change(self) -> None:
        """Wake the tasks that wait for a change."""
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """Nothing more comes."""
        if not self.is_over:
            self._error = self._error or error
        self.change()

    def connection_lost(self, error: Exception | None) -> None:
        """The driver must know as well."""
        self.driver.connection_lost(error)
        self.fail(error or ConnectionResetError("the server has closed the connection"))


@contextmanager
def _lent(borrower: _Borrower) -> Iterator[None]:
    """Have the connection of a driver; give it back in the state in which it was, or end it."""
    transport = borrower.transport
    if transport.is_closing():
        raise ConnectionResetError("the connection has been closed")
    transport.set_protocol(borrower)
    try:
        yield
    finally:
        transport.set_protocol(borrower.driver)
        if not borrower.is_over:
            borrower.connection.terminate()
        elif not transport.is_closing():
            transport.resume_reading()


class _Source(_Borrower):
    """Takes what a server sends for COPY TO."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.word = secrets.token_hex(16)
        word = self.word.encode()
        row = b"\x00\x01" + len(word).to_bytes(4, "big") + word
        done = b"SELECT 1\x00"
        self._answer = b"D" + _length(row) + row + b"C" + _length(done) + done + _READY
        self._begun = False
        self._held = b""
        self._ready: deque[Piece] = deque()
        self._breathing: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None

    async def pieces(self) -> Pieces:
        """All rows, as they come."""
        while not (self.is_over and not self._ready):
            await self.until(lambda: bool(self._ready))
            yield self._ready.popleft()
            self._read_on()

    def data_received(self, data: bytes) -> None:
        """Keep the end, and pass the rest on."""
        size = len(data)
        if self._quiet is not None:
            self._quiet.cancel()
        if not self._begun:
            data, self._held = self._beginning(self._held + data), b""
            if not self._begun:
                self._held = data
                return
        if len(data) < HELD:
            data, self._held = self._held + data, b""
        before, self._held = self._held, data[-HELD:]
        self._pass_on(before, memoryview(data)[:-HELD])  # Most of it is not copied.
        if self._held.endswith(self._answer, 0, -1):
            self._end()
            return
        if self._held[-6:-1] == _READY:
            self._quiet = asyncio.get_running_loop().call_later(QUIET_S, self._give_up)
        self._take_breath(size)

    def _beginning(self, data: bytes) -> bytes:
        """What follows the server's word that it begins; all of it, if that is not there yet."""
        while not self._begun and (found := _message(data)) is not None:
            kind, body, data = found
            self._begun = kind == b"H"  # CopyOutResponse.
            if kind == b"E":
                self.fail(_error(body))
        return data

    def _end(self) -> None:
        """After the last row come CopyDone, the number of rows, and our answer."""
        rows, _, rest = self._held.rpartition(_DONE + b"C")
        counted = rest[4 : rest.index(b"\x00", 4)].split()[-1]
        self.is_over = True
        self._pass_on(rows, rows=int(counted))

    def _pass_on(self, *parts: bytes | memoryview, rows: int = 0) -> None:
        if (size := sum(map(len, parts))) or rows:
            self._ready.append(Piece(parts, size, rows))
        self.change()

    def _take_breath(self, size: int) -> None:
        if size < SMALL or len(self._ready) >= AHEAD:
            self.transport.pause_reading()
        if size < SMALL:
            self._breathing = asyncio.get_running_loop().call_later(BREATH_S, self._breathed)

    def _breathed(self) -> None:
        self._breathing = None
        self._read_on()

    def _read_on(self) -> None:
        has_room = len(self._ready) < AHEAD and self._breathing is None
        if has_room and not self.is_over and not self.transport.is_closing():
            self.transport.resume_reading()

    def _give_up(self) -> None:
        self.fail(_last_error(self._held, len(self._held) - len(_READY) - 1))

    def connection_lost(self, error: Exception | None) -> None:
        """What the server said last is why."""
        self.fail(error or _last_error(self._held, len(self._held)))
        super().connection_lost(error)


class _Target(_Borrower):
    """Gives a server what it wants for COPY FROM."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.accepts = False
        self.has_room = True
        self.rows = 0
        self._rest = b""
        held = self.transport.get_extra_info("socket")
        if held is not None and held.family == socket.AF_UNIX:  # Others grow by themselves.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)

    def send(self, data: Data, in_messages: bool) -> None:
        """Some rows."""
        for part in data if in_messages else (b"d" + _length(data), data):
            self.transport.write(part)

    def data_received(self, data: bytes) -> None:
        """Few and short messages: that it accepts, the number of rows, or an error."""
        data = self._rest + data
        while (found := _message(data)) is not None:
            kind, body, data = found
            match kind:
                case b"G":  # CopyInResponse.
                    self.accepts = True
                case b"C":
                    self.rows = int(body.rstrip(b"\x00").split()[-1])
                case b"E":
                    self.fail(_error(body))
                case b"Z":
                    self.is_over = self._error is None
        self._rest = data
        self.change()

    def pause_writing(self) -> None:
        """The server is slower than we are."""
        self.has_room = False

    def resume_writing(self) -> None:
        """It has taken what there was."""
        self.has_room = True
        self.change()


def _length(body: bytes) -> bytes:
    """What stands before a message's body: its length, and its own."""
    return (len(body) + 4).to_bytes(4, "big")


def _message(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """The kind and the body of the first message, and what follows it. None: it is not there wholly."""
    end = 1 + int.from_bytes(data[1:5], "big")
    return None if len(data) < max(5, end) else (data[:1], data[5:end], data[end:])


def _error(body: bytes) -> BaseException:
    """An error as the driver would raise it: fields, each a letter and a text."""
    fields = {text[:1]: text[1:] for text in body.decode(errors="replace").split("\x00") if text}
    error: BaseException = asyncpg.PostgresError.new(fields)
    return error


def _last_error(data: bytes, end: int) -> BaseException:
    """The error that ends there. Where it begins is not known, but it knows its length."""
    at = data.find(b"E", 0, end - 4)
    while at >= 0:
        if at + 1 + int.from_bytes(data[at + 1 : at + 5], "big") == end:
            return _error(data[at + 5 : end])
        at = data.find(b"E", at + 1, end - 4)
    return ConnectionResetError("the server broke off in the middle of a COPY")
