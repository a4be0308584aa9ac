"""The protocol of NATS, as far as a reader and a writer need it: bytes in, messages out.

A client for all purposes makes an object of each message and passes it through a queue and a task. Here a message is a
tuple that goes straight to who waits for its inbox, so that reading costs about as much as cutting the bytes up.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from headgate.text import one_line

MOST_LINE_BYTES = 2**20  # Of a line of the protocol; INFO is the longest.
MOST_MESSAGE_BYTES = 128 * 2**20  # Of a message; a server takes 64 MiB at most.
_DENIED = ("authorization", "authentication", "permissions violation")


class Message(NamedTuple):
    """One message."""

    subject: bytes
    reply: bytes
    headers: bytes  # As they were sent, with the status in the first line; empty if there are none.
    body: bytes


Receive: TypeAlias = Callable[[Message], None]


class Denied(Exception):
    """The server does not accept us."""


class Wire(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        self.gone: Exception | None = None
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []  # What has come and is not a whole message yet,
        self._have = self._need = 0  # and how many bytes that are, and must be at least.
        self._receivers: dict[bytes, Receive] = {}  # By inbox, or by the number of a subscription.
        self._numbers = itertools.count(2)
        self._on_loss: set[asyncio.Future[Any]] = set()
        self._pongs: list[asyncio.Future[None]] = []
        self._informed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # From the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # That of uvloop is no subclass.

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionResetError("the server has closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._have += len(data)
        if self._chunks:
            self._chunks.append(data)
            if self._have < self._need:
                return
            data = b"".join(self._chunks)
        try:
            at, self._need = self._take(data)
        except (ValueError, IndexError, msgspec.MsgspecError):
            self._end(ConnectionError("this is not the protocol of NATS"))
            return
        self._have = len(data) - at
        self._chunks = [data[at:]] if self._have else []

    def _take(self, data: bytes) -> tuple[int, int]:
        """Hand over all messages that are whole. Returns where they end, and how many bytes the next one has."""
        at, receivers = 0, self._receivers
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            start = end + 2
            if line[:4] == b"MSG ":
                words = line.split()
                end = start + int(words[-1])
                if len(data) < end + 2:
                    return at, _no_more_than(end + 2 - at, MOST_MESSAGE_BYTES)
                message = Message(words[1], words[3] if len(words) == 5 else b"", b"", data[start:end])
            elif line[:5] == b"HMSG ":
                words = line.split()
                end, middle = start + int(words[-1]), start + int(words[-2])
                if len(data) < end + 2:
                    return at, _no_more_than(end + 2 - at, MOST_MESSAGE_BYTES)
                reply = words[3] if len(words) == 6 else b""
                message = Message(words[1], reply, data[start:middle], data[middle:end])
            else:
                at = start
                self._control(line)
                continue
            at = end + 2
            # Only requests share a subscription, the first. A message of a consumer keeps the subject it was sent to.
            receive = receivers.get(words[1] if words[2] == b"1" else words[2])
            if receive is not None:
                receive(message)
        return at, _no_more_than(len(data) - at, MOST_LINE_BYTES) + 1

    def _control(self, line: bytes) -> None:
        if line == b"PING":
            self.send(b"PONG\r\n")
        elif line == b"PONG":
            if self._pongs and not (pong := self._pongs.pop(0)).done():
                pong.set_result(None)
        elif line[:5] == b"INFO ":
            self.info = msgspec.json.decode(line[5:])
            if not self._informed.done():
                self._informed.set_result(None)
        elif line[:4] == b"-ERR":
            text = one_line(line[4:].decode("utf-8", "replace").strip(" '"), 200)
            is_denied = any(word in text.lower() for word in _DENIED)
            self._end(Denied(text) if is_denied else ConnectionError(text))
        elif line != b"+OK":
            raise ValueError(line)

    def _end(self, error: Exception) -> None:
        if self.gone is None:
            self.gone = error
        self.abort()
        for waiting in [*self._on_loss, *self._pongs, self._informed]:
            if not waiting.done():
                waiting.set_exception(self.gone)
                waiting.exception()  # Nobody need be there to hear it.

    # From the session.

    async def informed(self) -> None:
        """Until the server has said who it is."""
        await self._informed

    async def ping(self) -> None:
        """Until the server has handled all that was sent before."""
        if self.gone is not None:
            raise self.gone
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self.send(b"PING\r\n")
        await pong

    def send(self, data: bytes) -> None:
        """These bytes, in this order."""
        assert self._transport is not None
        self._transport.write(data)

    def send_all(self, parts: list[bytes]) -> None:
        """The same for many."""
        assert self._transport is not None
        self._transport.writelines(parts)

    def subscribe(self, subject: bytes, receive: Receive) -> bytes:
        """Messages to this subject go there from now on. Returns what `unsubscribe` takes."""
        number = b"%d" % next(self._numbers)
        self._receivers[number] = receive
        self.send(b"SUB %b %b\r\n" % (subject, number))
        return number

    def unsubscribe(self, number: bytes) -> None:
        """They go nowhere."""
        if self._receivers.pop(number, None) is not None and self.gone is None:
            self.send(b"UNSUB %b\r\n" % number)

    def listen(self, inbox: bytes, receive: Receive) -> None:
        """The answer to a request with this inbox goes there."""
        self._receivers[inbox] = receive

    def forget(self, inbox: bytes) -> None:
        """It goes nowhere."""
        self._receivers.pop(inbox, None)

    def expect(self) -> asyncio.Future[Any]:
        """Something to wait for that fails when the connection is lost. `drop` it when it is not needed any more."""
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.gone is not None:
            waiting.set_exception(self.gone)
        else:
            self._on_loss.add(waiting)
        return waiting

    def drop(self, waiting: asyncio.Future[Any]) -> None:
        """Nobody waits for it."""
        self._on_loss.discard(waiting)
        if waiting.done() and not waiting.cancelled():
            waiting.exception()

    def replace_transport(self, transport: asyncio.Transport) -> None:
        """It is encrypted from here on."""
        self._transport = transport

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def abort(self) -> None:
        """End the connection, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()


def _no_more_than(size: int, most: int) -> int:
    if not 0 <= size <= most:
        raise ValueError("this is larger than anything that the protocol has")
    return size


def status_of(headers: bytes) -> tuple[int, str]:
    """From `NATS/1.0 404 No Messages`; 0 if the message is no status."""
    line = headers[: headers.find(b"\r\n")]
    _, _, rest = line.partition(b" ")
    code, _, text = rest.strip().partition(b" ")
    return (int(code), text.decode("utf-8", "replace")) if code.isdigit() else (0, "")


def parsed(headers: bytes) -> dict[str, str]:
    """Names and values. Of a name that occurs twice, the last."""
    found = {}
    for line in headers.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found[name] = value.strip()
    return found
