"""Kafka sink: the records of a batch and the stream's position in one transaction, fenced by the epoch.

The fence and the position are in `positions.py`. A producer belongs to one run. When the brokers say that it was
replaced, or that its transaction took too long, the topic of positions tells whose turn it is: this run's, which then
takes its transactional id again and looks whether its last write was committed; or another's.

`delivery: at_least_once` is a sink without all that: what was written since the last checkpoint is written again after
a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID, uuid4

from headgate.connectors.api import Context, Grant, Outgoing, Progress
from headgate.connectors.kafka import positions
from headgate.connectors.kafka.errors import LostOwnershipError
from headgate.connectors.kafka.options import KafkaSinkOptions
from headgate.connectors.kafka.positions import Address, Kept, PositionReader
from headgate.connectors.kafka.producing import Message, Producing, messages_of
from headgate.connectors.kafka.session import UsesCluster, Work, settings
from headgate.errors import NotConnected

OPEN_S = 20.0
TRIES = 3
FORGETTING = 8  # Streams at a time: each takes a producer and a few round trips.
NOTHING = Progress(generation=-1)  # Lower than that of any registry, which then says where the stream begins.


class _Sink(UsesCluster):
    """What both kinds of delivery have."""

    def __init__(self, options: KafkaSinkOptions, context: Context) -> None:
        super().__init__(options, context)
        self._options = options
        self._where = f"at {options.brokers}, topic {options.topic}"
        self._work = Work("kafka sink")
        self._producing: Producing | None = None
        self._most_bytes = options.max_message_bytes

    async def _look(self) -> None:
        """See that the topic is there, and how large its messages may be: what is refused there is refused whole."""
        cluster = await self._cluster()
        await cluster.topic(self._options.topic)
        config = await cluster.config_of(self._options.topic) or {}
        self._most_bytes = min(self._options.max_message_bytes, int(config.get("max.message.bytes") or 2**31))

    def _messages(self, batch: Outgoing) -> list[Message]:
        return messages_of(batch, self._options, self._most_bytes)

    async def close(self) -> None:
        """End the client, after what it is at."""
        producing, self._producing = self._producing, None
        if producing is not None:
            producing.is_unwanted = True
        await self._work.end(producing.close if producing is not None else lambda: None)
        await self._leave_cluster()


class PlainKafkaSink(_Sink):
    """Writes without transactions."""

    async def check(self) -> None:
        """See that the topic is there."""
        try:
            await self._look()
        finally:
            await self._leave_cluster()

    async def open(self, grant: Grant) -> Progress | None:
        """Get a producer."""
        await self._look()
        config = settings(self._options, self._guard)
        self._producing = await self._work.do(Producing, config, self._options, self._where)
        return None

    async def write(self, batch: Outgoing) -> None:
        """Send the batch, and wait until the brokers have it."""
        assert self._producing is not None, "the sink is open"
        messages = await self._work.do(self._messages, batch)
        await self._work.do(self._producing.send, messages, self._options.transaction_timeout_s)

    async def forget(self, installation: UUID, streams: Sequence[UUID]) -> None:
        """Nothing is kept."""


class KafkaSink(_Sink):
    """Writes one stream, exactly once."""

    def __init__(self, options: KafkaSinkOptions, context: Context) -> None:
        super().__init__(options, context)
        self._grant: Grant | None = None
        self._address = Address(options.positions_topic, b"")

    async def check(self) -> None:
        """See that the topic is there, and that positions can be kept."""
        try:
            await self._look()
            await positions.ensure(await self._cluster(), self._options.positions_topic, makes=False)
        finally:
            await self._leave_cluster()

    async def open(self, grant: Grant) -> Progress | None:
        """Fence every older run; return where the data stand."""
        self._grant = grant
        self._address = positions.address_of(self._options.positions_topic, grant.installation, grant.stream)
        await self._look()
        await positions.ensure(await self._cluster(), self._options.positions_topic, makes=True)
        for _ in range(TRIES):
            _must_trust(grant)  # Without, the owner would be disturbed for nothing.
            with suppress(LostOwnershipError):  # Somebody else opens the stream at this very moment.
                kept = await self._own(grant, is_again=False)
                _must_trust(grant)  # From here on the brokers refuse us if somebody took the stream meanwhile.
                progress = NOTHING if kept is None else kept.progress
                await self._commit([], Kept(grant.epoch, progress))
                return progress
        raise NotConnected(f"Kafka {self._where}: other runs keep taking the stream")

    async def write(self, batch: Outgoing) -> None:
        """Records and position, in one transaction. Cancelled, it commits nothing, or all of it."""
        grant = self._grant
        assert grant is not None, "the sink is open"
        messages = await self._work.do(self._messages, batch)
        mine = Kept(grant.epoch, batch.progress, uuid4().hex)
        for _ in range(TRIES):
            with suppress(LostOwnershipError):
                if self._producing is None:
                    kept = await self._own(grant, is_again=True)
                    if kept is not None and kept.write == mine.write:
                        return  # It was committed before we lost the producer.
                await self._commit(messages, mine)
                return
        raise NotConnected(
            f"Kafka {self._where}: a transaction does not end within {self._options.transaction_timeout_s:g} s"
        )

    async def forget(self, installation: UUID, streams: Sequence[UUID]) -> None:
        """Remove the positions of streams that are gone. It need not be open."""
        try:
            cluster = await self._cluster()
            if await cluster.exists(self._options.positions_topic):
                limit = asyncio.Semaphore(FORGETTING)
                await asyncio.gather(*(self._forget(installation, stream, limit) for stream in streams))
        finally:
            if self._grant is None:
                await self._leave_cluster()

    async def _forget(self, installation: UUID, stream: UUID, limit: asyncio.Semaphore) -> None:
        """Under the stream's transactional id: a run that has it can commit nothing more."""
        address = positions.address_of(self._options.positions_topic, installation, stream)
        config = self._config(installation, stream)

        def forget() -> None:
            producing = Producing(config, self._options, self._where)
            try:
                producing.take(OPEN_S)
                producing.commit([], (address.topic, address.partition, address.key, None), OPEN_S)
            except LostOwnershipError:
                raise NotConnected(f"Kafka {self._where}: a stream to be forgotten is being opened") from None
            finally:
                producing.close()

        async with limit:
            await asyncio.to_thread(forget)

    # Whose turn it is.

    async def _own(self, grant: Grant, *, is_again: bool) -> Kept | None:
        """Take the transactional id, unless another run has the stream; return what is kept of it."""
        cluster = await self._cluster()
        await self._let_go()
        config = settings(self._options, self._guard)
        reader = await self._work.do(PositionReader, config, self._address, self._where)
        try:
            # A stale run that finds out here disturbs nobody.
            await self._work.do(lambda: reader.read_to(reader.committed_end()))
            positions.judge(reader.kept, grant, is_again=is_again)
            await self._work.do(self._take, grant)
            end = await cluster.end_of(self._address.topic, self._address.partition)
            kept = await self._work.do(reader.read_to, end)
            positions.judge(kept, grant, is_again=is_again)
            return kept
        except BaseException:
            reader.is_unwanted = True
            await asyncio.shield(self._let_go())
            raise
        finally:
            await asyncio.shield(self._work.do(reader.close))

    def _take(self, grant: Grant) -> None:
        producing = Producing(self._config(grant.installation, grant.stream), self._options, self._where)
        self._producing = producing
        producing.take(OPEN_S)

    async def _let_go(self) -> None:
        """The producer cannot be used any more."""
        producing, self._producing = self._producing, None
        if producing is not None:
            producing.is_unwanted = True
            await self._work.do(producing.close)

    async def _commit(self, messages: Sequence[Message], kept: Kept) -> None:
        """Commit these with a position. The producer is gone if its right is, or if nobody knows what became of it."""
        producing, at = self._producing, self._address
        assert producing is not None
        last = (at.topic, at.partition, at.key, kept.encoded())
        try:
            await self._work.do(producing.commit, messages, last, self._options.transaction_timeout_s)
        except BaseException as error:
            producing.is_unwanted = True
            if isinstance(error, LostOwnershipError | NotConnected | asyncio.CancelledError):
                await asyncio.shield(self._let_go())
            else:
                producing.is_unwanted = False  # It was aborted, and the next one may begin.
            raise

    def _config(self, installation: UUID, stream: UUID) -> dict[str, object]:
        return settings(self._options, self._guard) | {
            "transactional.id": positions.transactional_id(installation, stream),
            "transaction.timeout.ms": int(self._options.transaction_timeout_s * 1000),
        }


def _must_trust(grant: Grant) -> None:
    if grant.trust_left_s() <= 0:
        raise NotConnected("our trust ended before the sink was open")
