"""Kafka source: each partition of a topic is a part, read from the offset that its stream's position says.

Partitions are assigned by us, and no broker's group knows of it: the registry says who reads what, and where it stands.
So nothing is committed to Kafka, and `ack` has nothing to do. Only what transactions have committed is read.

The client reads ahead in its own threads, up to a few megabytes (`MOST_AHEAD_KB`), and no further while nobody asks.
Its `consume(n, t)` waits for n messages or the whole time. So a read waits for one message, and takes what else is
there: `poll(t)`, then `consume(n, 0)`, in a thread, into `_taken`. A read that is cancelled leaves them for the next.

A position may have become impossible: its records have expired, the topic was deleted and made again, or its log was
truncated. That is found when a run opens, and while it reads; `missing` says what to do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message, TopicPartition

from headgate.connectors.api import Backlog, Batch, Context, Position
from headgate.connectors.kafka.bodies import Bodies, headers_of
from headgate.connectors.kafka.errors import meaning, steer_worker
from headgate.connectors.kafka.options import KafkaSourceOptions
from headgate.connectors.kafka.places import Place, opened_at
from headgate.connectors.kafka.schemas import Schemas
from headgate.connectors.kafka.session import ASK_S, SLICE_S, Faults, Topic, UsesCluster, Work, patiently, settings
from headgate.errors import Cause, ConnectorError, NotConnected
from headgate.text import counted

AHEAD_KB = 128 * 1024  # Messages that are read ahead, for all partitions of a topic,
MOST_AHEAD_KB, LEAST_AHEAD_KB = 16 * 1024, 1024  # and for one of them.
FETCH_KB = 4 * 1024  # What is asked for at once. A larger message comes all the same, alone.
LOOK_S = 60.0  # Between two looks whether the topic has more partitions.

_LOST = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._LOG_TRUNCATION,
}
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


class KafkaSource(UsesCluster):
    """Reads one partition of a topic; or, without a part, only lists them."""

    def __init__(self, options: KafkaSourceOptions, context: Context) -> None:
        super().__init__(options, context)
        self._options = options
        self._log = context.log
        self._part = context.part
        self._schemas = Schemas(options.schema_registry, context.guard)
        self._bodies = Bodies(options, self._schemas)
        self._faults = Faults()
        self._work: Work | None = None
        self._consumer: Consumer | None = None
        self._topic = Topic(options.topic, 0, None)
        self._taken: list[Message] = []  # Read from the client, and not returned yet.
        self._failure: KafkaError | None = None  # What came after them.
        self._next = 0  # The offset after the last record that was returned,
        self._end = 0  # and the last known end of what can be read.
        self._looked_s = 0.0

    # Before it is opened.

    async def check(self) -> None:
        """See that the topic is there, and the registry of schemas."""
        try:
            await (await self._cluster()).topic(self._options.topic)
            if self._options.needs_registry:
                await self._schemas.check()
        finally:
            await self._leave_cluster()

    async def parts(self) -> Sequence[str]:
        """The partitions by their numbers. More may be added to a topic, and none is ever removed."""
        try:
            topic = await (await self._cluster()).topic(self._options.topic)
            return [str(number) for number in range(topic.partitions)]
        finally:
            if self._work is None:
                await self._leave_cluster()

    async def open(self, position: Position) -> None:
        """Continue after this offset, or as the options say."""
        place = opened_at(position)
        if not self._part.isdecimal():
            raise ConnectorError("a topic is read by partition")
        self._topic = await (await self._cluster()).topic(self._options.topic)
        if int(self._part) >= self._topic.partitions:
            raise self._lost(f"the topic has {counted(self._topic.partitions, 'partition')} only")
        self._work = Work("kafka source")
        ahead_kb = max(LEAST_AHEAD_KB, min(MOST_AHEAD_KB, AHEAD_KB // self._topic.partitions))
        fetch_bytes = min(FETCH_KB, ahead_kb) * 1024
        with steer_worker(self._where):
            self._consumer = Consumer(
                settings(self._options, self._guard)
                | {
                    "error_cb": self._faults,
                    "group.id": "headgate",  # The client wants one. Nothing is committed or joined under it.
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed",
                    "allow.auto.create.topics": False,
                    "queued.max.messages.kbytes": ahead_kb,
                    "max.partition.fetch.bytes": fetch_bytes,
                    "fetch.max.bytes": fetch_bytes,
                    "receive.message.max.bytes": max(100_000_000, self._options.max_message_bytes + fetch_bytes),
                }
            )
            await self._work.do(self._begin, place)
        self._looked_s = time.monotonic()

    def _begin(self, place: Place | None) -> None:
        """Assign the partition, from where the position says."""
        first, end = self._ends()
        self._next = self._beginning(place, first, end)
        epoch = place.leader_epoch if place is not None and self._next == place.offset + 1 else None
        self._end = 0
        self._assign(self._next, epoch)

    def _ends(self) -> tuple[int, int]:
        """The offset of the oldest record, and the end of what is committed."""
        consumer = self._consumer
        assert consumer is not None
        return patiently(lambda: consumer.get_watermark_offsets(self._partition(), timeout=ASK_S, cached=False))

    def _assign(self, offset: int, epoch: int | None = None) -> None:
        if self._consumer is not None:
            self._consumer.assign([self._partition(offset, epoch)])

    def _beginning(self, place: Place | None, first: int, end: int) -> int:
        """The offset to begin with."""
        ends = {"earliest": first, "latest": end}
        if place is None:
            return ends[self._options.start]
        if place.topic_id is not None and self._topic.id is not None and place.topic_id != self._topic.id:
            reason = "the topic was deleted and made again"
        elif place.offset + 1 < first:
            reason = f"the records after offset {place.offset} have expired, the oldest is at {first}"
        elif place.offset + 1 > end:
            reason = f"offset {place.offset} is beyond the end at {end}: the topic was made again, or its log truncated"
        else:
            return place.offset + 1
        return self._skipped(reason, ends)

    def _skipped(self, reason: str, ends: dict[str, int]) -> int:
        if self._options.missing == "fail":
            raise self._lost(reason)
        self._log.warning("kafka_records_missing", reason=reason, continues=self._options.missing, part=self._part)
        return ends[self._options.missing]

    def _lost(self, reason: str) -> ConnectorError:
        return ConnectorError(
            f"Kafka {self._where}: {reason}",
            cause=Cause.CONFIG,
            hint="missing: earliest or latest says where to continue, or headgate streams set-position",
        )

    # Reading.

    async def read(self) -> Batch:
        """Wait for messages, and take what is there."""
        assert self._work is not None
        while True:
            while not self._taken:
                if time.monotonic() > self._looked_s + LOOK_S:
                    await self._look()
                await self._work.do(self._take)
            batch = await self._batch(self._taken)
            self._next = _offset(self._taken[-1]) + 1
            self._taken = []
            if batch is not None:
                return batch

    def _take(self) -> None:
        """Wait a moment for messages. What came before a failure is returned before it."""
        consumer = self._consumer
        if self._taken or consumer is None:
            return
        if self._failure is not None:
            self._fail(self._failure)
        with steer_worker(self._where):
            first = consumer.poll(SLICE_S)
            if first is None:
                self._faults.check(self._where)
                return
            rest = consumer.consume(self._options.batch - 1, 0) if self._options.batch > 1 else ()
        for message in (first, *rest):
            error = message.error()
            if error is None:
                self._taken.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._end = message.offset()
            else:
                self._failure = error
                break

    def _fail(self, error: KafkaError) -> None:
        if error.code() in _LOST:
            self._failure = None
            first, end = self._ends()
            reason = f"offset {self._next} is not there any more, the oldest is {first} and the end {end}"
            self._next = self._skipped(reason, {"earliest": first, "latest": end})
            self._assign(self._next)
        elif error.code() in _GONE:
            raise self._lost("the topic is gone, or has fewer partitions")
        else:
            raise meaning(error, self._where)

    async def _look(self) -> None:
        """See now and then that the topic is still the one that it was.

        One with more partitions is opened again: whose part each is, is decided then.
        """
        assert self._work is not None
        before, self._looked_s = self._topic, time.monotonic()
        self._topic = await (await self._cluster()).topic(self._options.topic)
        if before.id and self._topic.id and before.id != self._topic.id:
            await self._work.do(self._begin, Place(max(0, self._next - 1), None, before.id))
        elif self._topic.partitions > before.partitions:
            raise NotConnected(f"Kafka {self._where}: the topic has more partitions now, and is opened again")

    async def _batch(self, messages: list[Message]) -> Batch | None:
        """What they say. None: there are only tombstones, and these are skipped."""
        last = messages[-1]
        if self._options.tombstones == "skip":
            messages = [one for one in messages if one.value() is not None]
            if not messages:
                return None
        values = [one.value() for one in messages]
        keys = await self._bodies.keys([one.key() for one in messages])
        topic, part = self._options.topic, self._part
        kind, stamp_ms = last.timestamp()
        return Batch(
            records=await self._bodies.records(values, keys),
            position=Place(_offset(last), last.leader_epoch(), self._topic.id).as_position(),
            size_bytes=sum(map(len, filter(None, values))),
            event_time_s=None if kind == TIMESTAMP_NOT_AVAILABLE else stamp_ms / 1000,
            meta=_metas(messages, values, keys, int(part)),
            place=lambda index: f"topic {topic}, partition {part}, offset {messages[index].offset()}",
        )

    async def backlog(self) -> Backlog | None:
        """What is between us and the end. Marks of transactions count until we have come past them."""
        if self._consumer is None:
            return None
        _, end = self._consumer.get_watermark_offsets(self._partition(), cached=True)
        return None if end < 0 else Backlog(max(0, end - max(self._next, self._end)))

    async def ack(self, position: Position) -> None:
        """Nothing is kept for us at the brokers."""

    async def close(self) -> None:
        """End the client, after what it is at."""
        work, consumer = self._work, self._consumer
        self._consumer = None
        if work is not None:
            await work.end(consumer.close if consumer is not None else lambda: None)
        await self._leave_cluster()

    @property
    def _where(self) -> str:
        return f"at {self._options.brokers}, topic {self._options.topic}, partition {self._part or '-'}"

    def _partition(self, offset: int = OFFSET_BEGINNING, epoch: int | None = None) -> TopicPartition:
        if epoch is None:
            return TopicPartition(self._options.topic, int(self._part), offset)
        return TopicPartition(self._options.topic, int(self._part), offset, leader_epoch=epoch)


def _offset(message: Message) -> int:
    found = message.offset()
    assert found is not None, "a message that was read has an offset"
    return found


def _metas(messages: list[Message], values: list[Any], keys: list[Any], partition: int) -> list[Any]:
    """What the mapping sees of messages besides their values."""
    return [
        {
            "key": key,
            "headers": headers_of(message.headers()),
            "timestamp": message.timestamp()[1] / 1000,
            "partition": partition,
            "offset": message.offset(),
            "is_tombstone": value is None,
        }
        for message, value, key in zip(messages, values, keys, strict=True)
    ]
