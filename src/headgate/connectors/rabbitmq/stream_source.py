"""Reads a stream by offset, or a super stream partition by partition. The position is the offset of the last message.

Offsets are ours to keep: nothing is stored at the server, and every run says where it begins. The server removes old
messages by its own rules. If it has removed some that were not read yet, `missing` says what to do; the default is to
fail with one line, because nobody should learn of a gap from the figures.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from headgate.connectors.api import Backlog, Batch, Context, Position, Unreadable
from headgate.connectors.payloads import KEPT_BYTES, decoded, too_large
from headgate.connectors.rabbitmq import messages
from headgate.connectors.rabbitmq.options import RabbitmqSourceOptions, stream_address
from headgate.connectors.rabbitmq.streams import Chunk, Packed, Streams, Subscription, connected
from headgate.errors import Cause, ConnectorError, NotConnected

CREDITS = 10  # Chunks on their way. They are held back by their bytes, too.
BATCH_BYTES = 8 * 2**20


class StreamSource:
    """Reads one stream, or lists the partitions of a super stream."""

    def __init__(self, options: RabbitmqSourceOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._stream = context.part or options.stream or ""
        self._streams: Streams | None = None
        self._subscription = Subscription(0)
        self._next = 0  # The offset that comes next.

    async def check(self) -> None:
        """Ask for the stream, or for the partitions."""
        streams = await self._connect()
        try:
            if self._stream:
                await streams.check_stream(self._stream)
            else:
                await self._partitions(streams)
        finally:
            await streams.close()

    async def parts(self) -> Sequence[str]:
        """The partitions of a super stream, by the names of their streams."""
        if self._options.super_stream is None:
            return [""]
        streams = await self._connect()
        try:
            return await self._partitions(streams)
        finally:
            await streams.close()

    async def _partitions(self, streams: Streams) -> Sequence[str]:
        name = self._options.super_stream
        assert name is not None
        found = await streams.partitions(name)
        if not found:
            raise ConnectorError(f"super stream {name} has no partition", cause=Cause.CONFIG)
        return found

    async def open(self, position: Position) -> None:
        """Begin after this offset."""
        if position is not None and (type(position) is not int or not 0 <= position < 2**63):
            raise ConnectorError(f"position {position!r} is not the offset of a message", cause=Cause.CONFIG)
        assert self._stream, "a super stream is read in parts"
        streams = self._streams = await self._connect()
        await streams.check_stream(self._stream)
        first = await streams.edge(self._stream, is_last=False)
        self._next = (0 if first is None else first.first) if position is None else position + 1
        if position is not None and (first is None or (await self._last(streams)) < position):
            self._missed(f"it ends before offset {position}: it is another one, or has lost its end", first)
        elif position is not None and first is not None and first.first > self._next:
            self._missed(f"what followed offset {position} was removed", first)
        self._subscription = await streams.subscribe(self._stream, self._next, CREDITS)

    async def _last(self, streams: Streams) -> int:
        last = await streams.edge(self._stream, is_last=True)
        return -1 if last is None else last.last

    def _missed(self, what: str, first: Chunk | None) -> None:
        """Messages are gone. Fail, or go on with what is there."""
        begins = "it is empty" if first is None else f"it begins with offset {first.first}"
        if self._options.missing == "fail":
            raise ConnectorError(
                f"stream {self._stream}: {what}; {begins}",
                cause=Cause.CONFIG,
                hint="missing: go_on continues with what is there; or edit the position",
            )
        self._context.log.warning("messages were removed before they were read", stream=self._stream, why=what)
        self._next = 0 if first is None else first.first

    async def read(self) -> Batch:
        """The next messages. Chunks stay where they are until their messages are returned."""
        streams, options = self._opened(), self._options
        while not (found := await self._gathered(streams)):
            await streams.wait_for_more()
        bodies, meta, broken = self._parsed(found)
        records = await decoded(bodies, options.format, options.max_message_bytes)
        for index, reason in broken.items():
            records[index] = Unreadable(bodies[index][:KEPT_BYTES], reason)
        offsets = [offset for offset, _, _ in found]
        self._next = offsets[-1] + 1
        chunks = self._subscription.chunks
        while chunks and chunks[0].last < self._next:
            streams.used(self._subscription)
        return Batch(
            records,
            position=offsets[-1],
            size_bytes=sum(map(len, bodies)),
            event_time_s=found[-1][1],
            meta=meta,
            place=lambda index: f"stream {self._stream}, offset {offsets[index]}",
        )

    async def _gathered(self, streams: Streams) -> list[tuple[int, float, bytes | Packed]]:
        """Messages for a batch, each with its offset and its time."""
        chunks = self._subscription.chunks
        while chunks and chunks[0].last < self._next:  # The server begins with the chunk that an offset is in.
            streams.used(self._subscription)
        if chunks and chunks[0].first > self._next:
            await self._look_at_gap(streams)
        found: list[tuple[int, float, bytes | Packed]] = []
        size_bytes = 0
        for chunk in chunks:
            skipped = max(0, self._next - chunk.first)
            for index, message in enumerate(self._messages(chunk)[skipped:], skipped):
                size_bytes += len(message.data if isinstance(message, Packed) else message)
                if found and (size_bytes > BATCH_BYTES or len(found) == self._options.batch):
                    return found
                found.append((chunk.first + index, chunk.at_s, message))
        return found

    async def _look_at_gap(self, streams: Streams) -> None:
        """Some offsets are the server's own. But if the stream begins later now, messages were removed."""
        first = await streams.edge(self._stream, is_last=False)
        if first is not None and first.first > self._next:
            self._missed(f"what followed offset {self._next - 1} was removed while it was read", first)
        elif self._subscription.chunks:
            self._next = max(self._next, self._subscription.chunks[0].first)

    def _messages(self, chunk: Chunk) -> list[bytes | Packed]:
        try:
            return chunk.messages
        except (ValueError, IndexError, struct.error):
            raise NotConnected(f"stream {self._stream}: the chunk at offset {chunk.first} is damaged") from None

    def _parsed(
        self, found: Sequence[tuple[int, float, bytes | Packed]]
    ) -> tuple[list[bytes], list[Any], dict[int, str]]:
        """Bodies, what the mapping sees as `meta`, and why some cannot be read."""
        bodies: list[bytes] = []
        meta: list[Any] = []
        broken: dict[int, str] = {}
        is_raw, stream, most = self._options.encoding == "raw", self._stream, self._options.max_message_bytes
        for offset, at_s, message in found:
            body, said = b"", None
            if isinstance(message, Packed):
                body = message.data
                broken[len(bodies)] = f"it was compressed with others ({message.codec}), and cannot be unpacked"
            elif is_raw:
                body = message
            else:
                try:
                    body, said = messages.parse(message)
                except messages.NotAmqp:
                    body = message
                    broken[len(bodies)] = "the message is not AMQP 1.0 (encoding: raw takes its bytes as they are)"
            if len(body) > most:
                broken[len(bodies)] = too_large(body, len(body), most).reason
            bodies.append(body)
            meta.append({"stream": stream, "offset": offset, "timestamp": at_s, **(said or {})})
        return bodies, meta, broken

    async def ack(self, position: Position) -> None:
        """The server keeps no offsets for us."""

    async def backlog(self) -> Backlog | None:
        """From the next offset to the end. Those few that are the server's own count too."""
        return Backlog(max(0, await self._last(self._opened()) - self._next + 1))

    async def close(self) -> None:
        """End the connection."""
        streams, self._streams = self._streams, None
        self._subscription = Subscription(0)
        if streams is not None:
            await streams.close()

    async def _connect(self) -> Streams:
        return await connected(stream_address(self._options.url), self._context.guard)

    def _opened(self) -> Streams:
        assert self._streams is not None, "the source is open"
        return self._streams


def tell_offsets(before: Position, after: Position) -> str:
    """What an edit of a position means. Those of queues mean nothing to the server."""
    from headgate.connectors.moves import tell_numbers

    if isinstance(before, str) or isinstance(after, str):
        return "nothing changes: a queue gives what was not acknowledged, whatever the position is"
    return tell_numbers(before, after, "message")
