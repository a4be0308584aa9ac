"""Publishes to a stream, and leaves nothing twice there that it can recognise.

RabbitMQ drops a message whose *publishing id* is not above the last one of its publisher. Ids alone would be dangerous:
after a crash the stream's records are read again, perhaps in other batches, in another order (a queue, several parts)
or mapped in another way, and a new record that got an old id would be lost. So two things are kept apart.

**Publishing ids** make repetition within a run harmless. The publisher is named after the stream and its era; an id is
the epoch's counter (24 bits) and the number of records written (40 bits), and rises with every message. When a
connection breaks in the middle of a batch, it is sent again with the same ids over a new one. And once a newer run has
published, whatever an older one still sends is dropped, because its epoch is lower.

**The message's own id** makes repetition after a crash harmless. It is the stream, the generation and the number of the
record among all that were written. A run that begins asks for the last publishing id. If it says that more was written
than the registry knows, the end of the stream is read back, and a record that is about to be written with the same id
and the same bytes is there already. Each message found stands for one record and no other: those found were written
after the registry's last checkpoint, so their records are read again. A record that comes out differently is written.

So: nothing is lost; nothing is twice if source and mapping give the same records again in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b

from headgate.connectors.api import Context, Grant, Outgoing, Progress
from headgate.connectors.payloads import encoded
from headgate.connectors.rabbitmq.errors import stream_error
from headgate.connectors.rabbitmq.messages import id_of, make
from headgate.connectors.rabbitmq.options import RabbitmqSinkOptions, stream_address
from headgate.connectors.rabbitmq.streams import Packed, Streams, connected
from headgate.errors import Bad, BadRecords, Fenced, NotConnected

NUMBER_BITS = 40  # Of an id: records written. The epoch's counter is above them,
EPOCH_BITS = 24  # and what is left of it, with the era, is in the publisher's name.
RETRY_S = 10.0  # How long a batch is tried over new connections. Then the run ends, and others wait for the server.
PAUSE_S = 0.2
WINDOWS = (1_000, 20_000, 300_000)  # Messages to look back, until one is found that the registry knows.
CREDITS = 10
_OK = 1


class StreamSink:
    """Publishes one stream of records into one stream of RabbitMQ."""

    def __init__(self, options: RabbitmqSinkOptions, context: Context) -> None:
        assert options.stream is not None
        self._options = options
        self._context = context
        self._stream = options.stream
        self._streams: Streams | None = None
        self._grant: Grant | None = None
        self._last = 0  # The last id that was used.
        self._there: set[bytes] = set()  # Digests of messages that are in the stream and not in the registry.
        self._waiting: set[int] = set()  # Ids that are not confirmed.
        self._refused = _OK

    async def check(self) -> None:
        """Ask for the stream."""
        streams = await self._connect()
        try:
            await streams.check_stream(self._stream)
        finally:
            await streams.close()

    async def open(self, grant: Grant) -> Progress | None:
        """Learn what earlier runs have left."""
        self._grant, self._there = grant, set()
        streams = await self._connect()
        try:
            self._last = await self._login(streams, grant)
            number = self._last & (1 << NUMBER_BITS) - 1
            if number > grant.progress.totals.written:
                self._there = await self._read_back(streams, grant)
        except BaseException:
            await streams.close()
            raise
        self._streams = streams
        return None

    async def write(self, batch: Outgoing) -> None:
        """Publish what is not there yet, and wait for all confirmations."""
        grant = self._grant
        assert grant is not None, "the sink is open"
        messages = self._messages(batch, grant)
        if self._there:
            messages = [one for one in messages if not self._is_there(one)]
        first = max(self._last, _base(grant) | max(0, batch.progress.totals.written - len(batch.records))) + 1
        numbered = list(enumerate(messages, first))
        if not numbered:
            return
        self._last = numbered[-1][0]
        end_s = asyncio.get_running_loop().time() + RETRY_S
        while True:
            if grant.trust_left_s() <= 0:
                raise Fenced("the right to publish has ended")
            try:
                await self._publish(grant, numbered)
                return
            except NotConnected:
                await self._disconnect()
                if asyncio.get_running_loop().time() > end_s:
                    raise
                await asyncio.sleep(PAUSE_S)

    async def close(self) -> None:
        """End the connection."""
        await self._disconnect()

    # Messages.

    def _messages(self, batch: Outgoing, grant: Grant) -> list[bytes]:
        """With their ids. `BadRecords` names those that do not fit into a frame."""
        most = self._streams.most_bytes if self._streams is not None else 0
        bodies = encoded(batch.records, self._options.format)
        if batch.replays:
            ids = [b"%s.letter.%s" % (grant.stream.hex.encode(), one.hex.encode()) for one in batch.replays]
        else:
            prefix, before = _prefix(grant, batch.progress.generation), batch.progress.totals.written - len(bodies)
            ids = [b"%s%d" % (prefix, before + index) for index in range(len(bodies))]
        messages = [make(body, id) for body, id in zip(bodies, ids, strict=True)]
        bad = [
            Bad(index, None, f"it has {len(bodies[index]):,} bytes, and the server takes {most:,} in a frame")
            for index, message in enumerate(messages)
            if most and len(message) + 12 > most
        ]
        if bad:
            raise BadRecords(bad)
        return messages

    def _is_there(self, message: bytes) -> bool:
        """Each that was found stands for one record."""
        digest = _digest(message)
        if digest not in self._there:
            return False
        self._there.remove(digest)
        return True

    # Publishing.

    async def _publish(self, grant: Grant, numbered: Sequence[tuple[int, bytes]]) -> None:
        streams = self._streams
        if streams is None:
            streams = await self._connect()
            self._streams = streams
            await self._login(streams, grant)
        self._waiting, self._refused = {id for id, _ in numbered}, _OK
        for frame in streams.frames(numbered):
            streams.publish(frame)
            await streams.drain()
        while self._waiting and self._refused == _OK:
            await streams.wait_for_more()
        if self._refused != _OK:
            raise stream_error(streams.name, f"stream {self._stream}", self._refused)

    def _on_confirmed(self, ids: Sequence[int], code: int) -> None:
        if code == _OK:
            self._waiting.difference_update(ids)
        else:
            self._refused = code

    async def _login(self, streams: Streams, grant: Grant) -> int:
        """Become the publisher of this stream. Returns its last id: one of this epoch, or of one before."""
        name = f"headgate-{grant.stream.hex}-{grant.epoch >> EPOCH_BITS}"
        await streams.check_stream(self._stream)
        last = await streams.sequence(self._stream, name)
        if last >> NUMBER_BITS > _base(grant) >> NUMBER_BITS:
            raise Fenced(f"a newer run has published to stream {self._stream}")
        await streams.declare_publisher(self._stream, name)
        streams.confirmed = self._on_confirmed
        return last

    # Reading back.

    async def _read_back(self, streams: Streams, grant: Grant) -> set[bytes]:
        """The digests of all messages that the registry does not know, as far as one can see."""
        first, last = [await streams.edge(self._stream, is_last=is_last) for is_last in (False, True)]
        found: set[bytes] = set()
        if first is None or last is None:
            return found
        for window in WINDOWS:
            start = max(first.first, last.last + 1 - window)
            found, is_whole = await self._scan(streams, grant, start, last.last)
            if is_whole or start == first.first:
                return found
        self._context.log.warning("the end of the stream is too long to be read back; records may be there twice")
        return found

    async def _scan(self, streams: Streams, grant: Grant, start: int, last: int) -> tuple[set[bytes], bool]:
        """What this stream of ours has left from `start` on, and whether something older is among it."""
        prefix, written = _prefix(grant, grant.progress.generation), grant.progress.totals.written
        found, is_whole, at = set(), False, start
        subscription = await streams.subscribe(self._stream, start, CREDITS)
        while at <= last:
            while not subscription.chunks:
                await streams.wait_for_more()
            chunk = subscription.chunks[0]
            for message in chunk.messages:
                if isinstance(message, Packed) or (id := id_of(message)) is None or not id.startswith(prefix):
                    continue
                if int(id[len(prefix) :]) >= written:
                    found.add(_digest(message))
                else:
                    is_whole = True
            at = chunk.last + 1
            streams.used(subscription)
        await streams.unsubscribe(subscription)
        return found, is_whole

    async def _connect(self) -> Streams:
        return await connected(stream_address(self._options.url), self._context.guard)

    async def _disconnect(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            await streams.close()


def _base(grant: Grant) -> int:
    """Below all ids of this epoch, above those of earlier ones."""
    return (grant.epoch & (1 << EPOCH_BITS) - 1) << NUMBER_BITS


def _prefix(grant: Grant, generation: int) -> bytes:
    """Of the ids of messages."""
    return b"%s.%d." % (grant.stream.hex.encode(), generation)


def _digest(message: bytes) -> bytes:
    return blake2b(message, digest_size=16).digest()
