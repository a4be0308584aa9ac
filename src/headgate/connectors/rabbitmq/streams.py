"""RabbitMQ's stream protocol, as much of it as reading and publishing need: one connection.

A stream is a log of *chunks*, each of many messages with successive offsets. Some offsets belong to the server itself,
so there are small gaps between chunks. A subscription gets as many chunks as it has *credits*; a chunk that was used up
gives one back. Chunks wait here as they came (`Subscription.chunks`), and if they are more than `HELD_BYTES`, the
connection is not read until they are fewer.

The server sends what an attached subscription may have before it answers the next request. So a request that follows a
subscription tells whether there is anything at all.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from headgate.connectors.guard import Guard
from headgate.connectors.rabbitmq.errors import stream_error
from headgate.connectors.wire import Address, Wire, connect
from headgate.errors import Cause, ConnectorError, NotConnected

FRAME_BYTES = 1_048_576  # The most that we send in one frame, unless the server asks for less.
CHUNK_BYTES = 256 * 2**20  # The most that we take in one frame. Chunks have a megabyte or so.
HELD_BYTES = 64 * 2**20
HEARTBEAT_S = 20
UNPACKED_BYTES = 64 * 2**20  # Of messages that were compressed together.

_OK = 1
_ANSWER = 0x8000
_DECLARE_PUBLISHER, _PUBLISH, _CONFIRM, _PUBLISH_ERROR, _SEQUENCE = 1, 2, 3, 4, 5
_SUBSCRIBE, _DELIVER, _CREDIT, _UNSUBSCRIBE, _METADATA, _METADATA_UPDATE = 7, 8, 9, 12, 15, 16
_PROPERTIES, _SASL, _LOGIN, _TUNE, _OPEN, _CLOSE, _BEAT, _PARTITIONS = 17, 18, 19, 20, 21, 22, 23, 25
_CHUNK = struct.Struct(">BbHIqQQIIII")  # From its magic byte on.
_CHUNK_AT = 5  # In a frame: after the key, the version and the number of the subscription.
_FIRST, _LAST, _OFFSET = 1, 2, 4
_GZIP = 1
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Packed(NamedTuple):
    """Messages that were compressed in a way that is not read here, or not as they should be."""

    data: bytes
    codec: str


class Chunk:
    """Messages that lie together in a stream."""

    def __init__(self, payload: bytes) -> None:
        found = _CHUNK.unpack_from(payload, _CHUNK_AT)
        magic, self._kind, self._entries, number, at_ms, _, first, self._crc, length, _, _ = found
        self.number, self.first = int(number), int(first)
        start = _CHUNK_AT + _CHUNK.size
        self._data = payload[start : start + length]
        if magic >> 4 != 5 or len(self._data) != length:
            raise ValueError("no chunk")
        self.at_s = at_ms / 1000
        self.size_bytes = length

    @property
    def last(self) -> int:
        """The offset of its last message."""
        return self.first + self.number - 1

    @cached_property
    def messages(self) -> list[bytes | Packed]:
        """All of them. Raises `ValueError` and its like if the chunk is damaged."""
        found = list(self._messages())
        if len(found) != self.number:
            raise ValueError("damaged")
        return found

    def _messages(self) -> Iterator[bytes | Packed]:
        data, at = self._data, 0
        if zlib.crc32(data) != self._crc or self._kind != 0:
            raise ValueError("damaged")
        for _ in range(self._entries):
            if data[at] & 0x80:
                number, unpacked, size = struct.unpack_from(">HII", data, at + 1)
                yield from _unpacked(data[at + 11 : at + 11 + size], data[at] >> 4 & 7, number, unpacked)
                at += 11 + size
            else:
                end = at + 4 + int.from_bytes(data[at : at + 4], "big")
                yield data[at + 4 : end]
                at = end


def _unpacked(data: bytes, codec: int, number: int, size: int) -> Iterator[bytes | Packed]:
    if codec == _GZIP and size <= UNPACKED_BYTES:
        unzip = zlib.decompressobj(wbits=31)
        try:
            data, codec = unzip.decompress(data, size + 1), 0
        except zlib.error:
            codec = _GZIP
    found: list[bytes] = []
    at = 0
    while codec == 0 and len(found) < number and at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            break
        found.append(data[at + 4 : end])
        at = end
    yield from found
    name = _CODECS[codec] if codec < len(_CODECS) else "an unknown codec"
    for missing in range(number - len(found)):  # Each has its offset. What they are is kept once.
        yield Packed(b"" if missing else data, name)


class Subscription:
    """What is delivered of one stream."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.chunks: deque[Chunk] = deque()


class Streams(Wire):
    """A connection."""

    def __init__(self, address: Address) -> None:
        super().__init__(f"RabbitMQ at {address.name}")
        self._address = address
        self._correlation = 0
        self._subscriptions: dict[int, Subscription] = {}
        self.held_bytes = 0
        self.frame_bytes = FRAME_BYTES
        self.confirmed: Callable[[Sequence[int], int], None] = lambda ids, code: None

    # Requests.

    async def greet(self) -> None:
        """Log in and enter the virtual host."""
        await self._ask(_PROPERTIES, struct.pack(">I", 1) + _text("product") + _text("Headgate"), "the greeting")
        await self._ask(_SASL, b"", "the greeting")
        user, password = self._address.user or "guest", self._address.password
        login = f"\0{user}\0{'guest' if password is None else password}".encode()
        await self._ask(_LOGIN, _text("PLAIN") + struct.pack(">I", len(login)) + login, "the login")
        # The server says what it wants to agree on right after its answer, so it may be here already.
        frame_bytes, heartbeat_s = self._tune or await self.answer(_TUNE)
        self.frame_bytes = min(frame_bytes or FRAME_BYTES, FRAME_BYTES)
        heartbeat_s = min(heartbeat_s or HEARTBEAT_S, HEARTBEAT_S)
        self._send(_TUNE, struct.pack(">II", self.frame_bytes, heartbeat_s))
        vhost = self._address.path or "/"
        await self._ask(_OPEN, _text(vhost), f"virtual host {vhost}")
        self.begin_beats(heartbeat_s)
        self.is_ready = True

    _tune: tuple[int, int] | None = None

    async def check_stream(self, stream: str) -> None:
        """Refuse one that does not exist, or that has no leader now."""
        found = await self._ask(_METADATA, struct.pack(">I", 1) + _text(stream), f"stream {stream}", has_code=False)
        (brokers,) = struct.unpack_from(">I", found)
        at = 4
        for _ in range(brokers):
            at += 4 + int.from_bytes(found[at + 2 : at + 4], "big") + 4
        at += 4 + 2 + int.from_bytes(found[at + 4 : at + 6], "big")
        (code,) = struct.unpack_from(">H", found, at)
        if code != _OK:
            raise stream_error(self.name, f"stream {stream}", code)

    async def partitions(self, super_stream: str) -> list[str]:
        """The streams that a super stream consists of, in their order."""
        found = await self._ask(_PARTITIONS, _text(super_stream), f"super stream {super_stream}")
        (number,) = struct.unpack_from(">I", found)
        names, at = [], 4
        for _ in range(number):
            end = at + 2 + int.from_bytes(found[at : at + 2], "big")
            names.append(found[at + 2 : end].decode())
            at = end
        return names

    async def sequence(self, stream: str, publisher: str) -> int:
        """The highest id that was published under this name; 0 if there is none."""
        found = await self._ask(_SEQUENCE, _text(publisher) + _text(stream), f"stream {stream}")
        return int.from_bytes(found[:8], "big")

    async def declare_publisher(self, stream: str, publisher: str) -> None:
        """Publish into this stream from now on."""
        await self._ask(_DECLARE_PUBLISHER, b"\0" + _text(publisher) + _text(stream), f"stream {stream}")

    def publish(self, messages: Sequence[tuple[int, bytes]]) -> None:
        """Send messages with their ids, in one frame; see `fits`."""
        parts = [struct.pack(">BI", 0, len(messages))]
        for id, message in messages:
            parts += (struct.pack(">QI", id, len(message)), message)
        self._send(_PUBLISH, b"".join(parts))

    def frames(self, messages: Sequence[tuple[int, bytes]]) -> Iterator[Sequence[tuple[int, bytes]]]:
        """Cut so that each fits into a frame."""
        start, size = 0, 0
        for index, (_, message) in enumerate(messages):
            if size and size + len(message) + 12 > self.most_bytes:
                yield messages[start:index]
                start, size = index, 0
            size += len(message) + 12
        if start < len(messages):
            yield messages[start:]

    @property
    def most_bytes(self) -> int:
        """Of messages in a frame, with 12 bytes more for each."""
        return self.frame_bytes - 16

    # Subscriptions.

    async def subscribe(self, stream: str, offset: int | None, credits: int, *, is_last: bool = False) -> Subscription:
        """From the chunk with this offset on, or from the first one, or the last."""
        number = next(number for number in range(256) if number not in self._subscriptions)
        subscription = self._subscriptions[number] = Subscription(number)
        if offset is not None:
            where = struct.pack(">HQ", _OFFSET, offset)
        else:
            where = struct.pack(">H", _LAST if is_last else _FIRST)
        request = bytes([number]) + _text(stream) + where + struct.pack(">HI", credits, 0)
        try:
            await self._ask(_SUBSCRIBE, request, f"stream {stream}")
        except BaseException:
            self._subscriptions.pop(number, None)
            raise
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Let go of it, and of what has come for it."""
        while subscription.chunks:
            self.used(subscription, credits=0)
        await self._ask(_UNSUBSCRIBE, bytes([subscription.number]), "a subscription")
        while subscription.chunks:
            self.used(subscription, credits=0)
        self._subscriptions.pop(subscription.number, None)

    def used(self, subscription: Subscription, credits: int = 1) -> None:
        """The first chunk is used up; another may come."""
        self.held_bytes -= subscription.chunks.popleft().size_bytes
        if self.held_bytes < HELD_BYTES // 2:
            self.hold(False)
        if credits:
            self._send(_CREDIT, struct.pack(">BH", subscription.number, credits))

    async def edge(self, stream: str, *, is_last: bool) -> Chunk | None:
        """The first or the last chunk of a stream. None: it is empty."""
        subscription = await self.subscribe(stream, None, 1, is_last=is_last)
        try:
            await self.check_stream(stream)
            return subscription.chunks[0] if subscription.chunks else None
        finally:
            await self.unsubscribe(subscription)

    # What comes in.

    def beat(self) -> bytes:
        """A heartbeat."""
        return _frame(_BEAT, b"")

    def farewell(self) -> bytes:
        """Close the connection."""
        return _frame(_CLOSE, struct.pack(">IH", 0, 1) + _text("done"))

    def take(self, data: bytes) -> tuple[int, int]:
        """Frames."""
        at, end = 0, len(data)
        while end - at >= 8:
            size = int.from_bytes(data[at : at + 4], "big")
            if size > CHUNK_BYTES:
                raise ConnectorError(f"{self.name} sent a chunk of {size:,} bytes", cause=Cause.CONFIG)
            stop = at + 4 + size
            if stop > end:
                return at, size + 4
            self._on_frame(int.from_bytes(data[at + 4 : at + 6], "big"), data[at + 4 : stop])
            at = stop
        return at, 8

    def _on_frame(self, key: int, payload: bytes) -> None:
        if key == _DELIVER:
            subscription = self._subscriptions.get(payload[4])
            if subscription is not None:
                subscription.chunks.append(Chunk(payload))
                self.held_bytes += subscription.chunks[-1].size_bytes
                if self.held_bytes > HELD_BYTES:
                    self.hold(True)
                self.arrive()
        elif key == _CONFIRM:
            (number,) = struct.unpack_from(">I", payload, 5)
            self.confirmed(struct.unpack_from(f">{number}Q", payload, 9), _OK)
            self.arrive()
        elif key == _PUBLISH_ERROR:
            (number,) = struct.unpack_from(">I", payload, 5)
            for index in range(number):
                id, code = struct.unpack_from(">QH", payload, 9 + 10 * index)
                self.confirmed([id], code)
            self.arrive()
        elif key == _TUNE:
            self._tune = struct.unpack_from(">II", payload, 4)
            self.give(_TUNE, self._tune)
        elif key == _METADATA_UPDATE:
            self.fail(NotConnected(f"{self.name}: the stream was deleted, or has another leader"))
        elif key == _CLOSE:
            self.fail(NotConnected(f"{self.name} closed the connection: {_text_at(payload, 10)}"))
        elif key == _ANSWER | _CLOSE:
            self.cut()
        elif key == _PARTITIONS or (key & _ANSWER and key != _ANSWER | _CREDIT):  # 3.10 does not mark the former.
            self.give(int.from_bytes(payload[4:8], "big"), payload[8:])

    async def _ask(self, key: int, request: bytes, what: str, *, has_code: bool = True) -> bytes:
        """The answer without its code, which must be good. `what` is it about?"""
        self._correlation += 1
        self._send(key, struct.pack(">I", self._correlation) + request)
        found: bytes = await self.answer(self._correlation)
        if not has_code:
            return found
        code = int.from_bytes(found[:2], "big")
        if code != _OK:
            raise stream_error(self.name, what, code)
        return found[2:]

    def _send(self, key: int, payload: bytes) -> None:
        self.send(_frame(key, payload))


async def connected(address: Address, guard: Guard) -> Streams:
    """A connection that is ready."""
    return await connect(address, guard, lambda: Streams(address))


def _frame(key: int, payload: bytes) -> bytes:
    return struct.pack(">IHH", len(payload) + 4, key, 1) + payload


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > 32_767:
        raise ConnectorError("a name is too long", cause=Cause.CONFIG)
    return struct.pack(">H", len(data)) + data


def _text_at(payload: bytes, at: int) -> str:
    size = int.from_bytes(payload[at : at + 2], "big")
    return payload[at + 2 : at + 2 + size].decode("utf-8", "replace")
