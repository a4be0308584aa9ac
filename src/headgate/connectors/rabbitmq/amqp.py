"""AMQP 0.9.1, as much of it as queues and exchanges need: one connection with one channel.

Messages of a consumer are kept undecoded (`deliveries`) until somebody takes them. If they are more than
`HELD_BYTES`, the connection is not read until half of them are gone; the prefetch limits their number. Of a message
that is larger than `max_message_bytes` only the beginning is kept, while it comes.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headgate.connectors.guard import Guard
from headgate.connectors.payloads import KEPT_BYTES
from headgate.connectors.rabbitmq.errors import amqp_error
from headgate.connectors.rabbitmq.fields import Cursor, header, long, short, table
from headgate.connectors.wire import Address, Wire, connect
from headgate.errors import Cause, ConnectorError, NotConnected

FRAME_BYTES = 131_072  # The most that we take in one frame; the server may ask for less.
HEARTBEAT_S = 20  # The most. A peer that is cut off is noticed after two of them.
HELD_BYTES = 64 * 2**20

_FRAME = struct.Struct(">BHI")
_METHOD, _HEADER, _BODY, _HEARTBEAT, _END = 1, 2, 3, 8, 0xCE
_CAPABILITIES = ("authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify")

# Class and method, in one number.
_START, _TUNE, _OPEN_OK, _CLOSE, _CLOSE_OK = 10 << 16 | 10, 10 << 16 | 30, 10 << 16 | 41, 10 << 16 | 50, 10 << 16 | 51
_BLOCKED, _UNBLOCKED = 10 << 16 | 60, 10 << 16 | 61
_CHANNEL_CLOSE = 20 << 16 | 40
_CANCEL, _RETURN, _DELIVER, _ACK, _NACK = 60 << 16 | 30, 60 << 16 | 50, 60 << 16 | 60, 60 << 16 | 80, 60 << 16 | 120


class Delivery(NamedTuple):
    """A message, as it came."""

    method: bytes  # The arguments of basic.deliver or basic.return.
    header: bytes
    body: bytes  # Whole, or its beginning if it is too large.
    size_bytes: int


class Amqp(Wire):
    """A connection with one channel."""

    def __init__(self, address: Address, max_message_bytes: int) -> None:
        super().__init__(f"RabbitMQ at {address.name}")
        self._address = address
        self._max_bytes = max_message_bytes
        self._frame_bytes = 4096  # Until it is agreed.
        self.deliveries: deque[Delivery] = deque()
        self.held_bytes = 0
        self.blocked: str | None = None  # Why the server takes no messages now.
        self.confirmed: Callable[[int, bool, bool], None] = lambda tag, multiple, is_taken: None
        self.returned: Callable[[Delivery], None] = lambda message: None
        self._method = b""  # Of the message that is coming,
        self._is_return = False
        self._header = b""
        self._body: list[bytes] = []
        self._size = self._left = self._kept = 0

    # Requests.

    async def greet(self) -> None:
        """Log in and open the channel."""
        self.send(b"AMQP\x00\x00\x09\x01")
        await self.answer(_START)
        user, password = self._address.user or "guest", self._address.password
        login = f"\0{user}\0{'guest' if password is None else password}".encode()
        properties = {"product": "Headgate", "capabilities": dict.fromkeys(_CAPABILITIES, True)}
        self._call(0, 10, 11, table(properties) + short("PLAIN") + long(login) + short("en_US"))
        channels, frame_bytes, heartbeat_s = struct.unpack(">HIH", (await self.answer(_TUNE))[:8])
        self._frame_bytes = min(frame_bytes or FRAME_BYTES, FRAME_BYTES)
        heartbeat_s = min(heartbeat_s or HEARTBEAT_S, HEARTBEAT_S)
        self._call(0, 10, 31, struct.pack(">HIH", channels, self._frame_bytes, heartbeat_s))
        self._call(0, 10, 40, _short_or_refuse(self._address.path or "/", "the virtual host") + b"\0\0")
        await self.answer(_OPEN_OK)
        self.begin_beats(heartbeat_s)
        await self._ask(20, 10, b"\0")
        self.is_ready = True

    async def count(self, queue: str) -> int:
        """How many messages are ready in a queue that must exist."""
        name = _short_or_refuse(queue, "the queue")
        found = Cursor(await self._ask(50, 10, b"\0\0" + name + b"\x01" + table({})))
        found.short()
        return int(found.number(">I"))

    async def check_exchange(self, exchange: str) -> None:
        """Refuse one that does not exist. The default one always does."""
        name = _short_or_refuse(exchange, "the exchange")
        if exchange:
            await self._ask(40, 10, b"\0\0" + name + short("direct") + b"\x01" + table({}))

    async def consume(self, queue: str, prefetch: int) -> None:
        """Have messages delivered, at most `prefetch` of them before they are acknowledged."""
        await self._ask(60, 10, struct.pack(">IHB", 0, prefetch, 0))
        await self._ask(60, 20, b"\0\0" + _short_or_refuse(queue, "the queue") + short("") + b"\0" + table({}))

    async def confirm(self) -> None:
        """Have every message confirmed."""
        await self._ask(85, 10, b"\0")

    def ack(self, tag: int) -> None:
        """This message and all before it are done."""
        self._call(1, 60, 80, struct.pack(">QB", tag, 1))

    def publish(self, exchange: bytes, key: bytes, properties: dict[str, Any], body: bytes) -> None:
        """Send a message, which is returned if no queue gets it. Names are short strings."""
        most = self._frame_bytes - 8
        head = header(len(body), properties)
        frames = [
            _frame(_METHOD, 1, struct.pack(">HHH", 60, 40, 0) + exchange + key + b"\x01"),
            _frame(_HEADER, 1, head),
            *(_frame(_BODY, 1, body[at : at + most]) for at in range(0, len(body), most)),
        ]
        self.send(b"".join(frames))

    async def _ask(self, class_: int, method: int, arguments: bytes) -> bytes:
        """On the channel; the answer's number is one higher."""
        self._call(1, class_, method, arguments)
        found: bytes = await self.answer(class_ << 16 | method + 1)
        return found

    def _call(self, channel: int, class_: int, method: int, arguments: bytes) -> None:
        self.send(_frame(_METHOD, channel, struct.pack(">HH", class_, method) + arguments))

    # Messages.

    def taken(self, messages: Sequence[Delivery]) -> None:
        """These, the first of `deliveries`, are somebody else's now."""
        for message in messages:
            assert self.deliveries.popleft() is message
            self.held_bytes -= len(message.body)
        if self.held_bytes < HELD_BYTES // 2:
            self.hold(False)

    # What comes in.

    def beat(self) -> bytes:
        """A heartbeat."""
        return _frame(_HEARTBEAT, 0, b"")

    def farewell(self) -> bytes:
        """Close the connection. The server then puts back what was not acknowledged, and answers."""
        return _frame(_METHOD, 0, struct.pack(">HHH", 10, 50, 200) + short("done") + b"\0\0\0\0")

    def take(self, data: bytes) -> tuple[int, int]:
        """Frames."""
        at, end, most = 0, len(data), max(self._frame_bytes, 4096)
        if data.startswith(b"AMQP"):
            raise ConnectorError(f"{self.name} speaks another version of AMQP", cause=Cause.CONFIG)
        while end - at >= 8:
            kind, channel, size = _FRAME.unpack_from(data, at)
            if size + 8 > most:
                raise NotConnected(f"{self.name} sent a frame of {size:,} bytes")
            stop = at + 7 + size
            if stop >= end:
                return at, size + 8
            if data[stop] != _END:
                raise NotConnected(f"{self.name} sent a broken frame")
            payload = data[at + 7 : stop]
            at = stop + 1
            if kind == _BODY:
                self._on_body(payload)
            elif kind == _HEADER:
                self._on_header(payload)
            elif kind == _METHOD:
                self._on_method(channel, int.from_bytes(payload[:4], "big"), payload)
        return at, 8

    def _on_header(self, payload: bytes) -> None:
        self._header, self._size = payload, int.from_bytes(payload[4:12], "big")
        self._body, self._left, self._kept = [], self._size, 0
        if not self._left:
            self._on_message()

    def _on_body(self, payload: bytes) -> None:
        self._left -= len(payload)
        if self._size <= self._max_bytes or self._kept < KEPT_BYTES:
            self._body.append(payload)
            self._kept += len(payload)
        if self._left <= 0:
            self._on_message()

    def _on_message(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        message = Delivery(self._method, self._header, body, self._size)
        self._body = []
        if self._is_return:
            self.returned(message)
            return
        self.deliveries.append(message)
        self.held_bytes += len(body)
        if self.held_bytes > HELD_BYTES:
            self.hold(True)
        self.arrive()

    def _on_method(self, channel: int, method: int, payload: bytes) -> None:
        if method in (_DELIVER, _RETURN):
            self._method, self._is_return = payload, method == _RETURN
        elif method in (_ACK, _NACK):
            tag, flags = struct.unpack_from(">QB", payload, 4)
            self.confirmed(tag, bool(flags & 1), method == _ACK)
            self.arrive()
        elif method in (_CLOSE, _CHANNEL_CLOSE):
            cursor = Cursor(payload, 4)
            self.fail(amqp_error(self.name, cursor.number(">H"), cursor.short()))
            self._call(channel, method >> 16, (method & 0xFFFF) + 1, b"")
        elif method == _CANCEL:
            self.fail(NotConnected(f"{self.name} ended the subscription: the queue was deleted, or its node is down"))
        elif method == _BLOCKED:
            self.blocked = Cursor(payload, 4).short() or "an alarm"
            self.arrive()
        elif method == _UNBLOCKED:
            self.blocked = None
            self.arrive()
        elif method == _CLOSE_OK:
            self.cut()
        else:
            self.give(method, payload[4:])


async def connected(address: Address, guard: Guard, max_message_bytes: int) -> Amqp:
    """A connection that is ready."""
    return await connect(address, guard, lambda: Amqp(address, max_message_bytes))


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + b"\xce"


def _short_or_refuse(text: str, what: str) -> bytes:
    try:
        return short(text)
    except (ValueError, UnicodeEncodeError):
        raise ConnectorError(f"the name of {what} is too long, or no text", cause=Cause.CONFIG) from None
