"""The topic of positions: where each stream stands, next to its data, and whose turn it is to write.

It is compacted and has one message per stream, whose key is installation and stream: epoch, generation, commits,
position and totals. Every write commits it together with its records, in one transaction. A stream's messages are all
in one of `PARTITIONS` partitions. That number is fixed: with another one, positions would be looked for elsewhere.

The fence has two halves. A *transactional id* belongs to a stream: the last producer that calls `init_transactions`
with it has it, and the brokers refuse everything that an earlier producer still sends or commits. But the last caller
may be a stale run that woke late. So the second half is the epoch in this topic. A run that opens

1.  reads its stream's message, and ends if that has its own epoch or a higher one: it disturbs nobody;
2.  takes the transactional id, which also ends whatever transaction was open under it;
3.  reads on to the end of the topic, as it was after that. Nobody can have written since under an older grant, and who
    takes the id later fences this run, so what it has read stays true for as long as it can commit;
4.  ends if there is a higher epoch. The rightful run, from which the id was taken, finds its own epoch here when it
    writes next, and takes the id again (`is_again`);
5.  commits its own epoch, alone, before anything else.

A stream that is forgotten gets a tombstone, under its transactional id. A run that took the id before can commit
nothing more. One that takes it later has no trust left, which it asks for after step 2 and before step 5: between the
two the brokers' fence holds, and before it the node's own clock.

Only what is committed is read. The message of another stream that is in an open transaction, in the same partition,
hides what follows it until that ends: this is why a write sends its position last, just before it commits.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from headgate.connectors.api import Grant, Progress
from headgate.connectors.kafka.errors import meaning, steer_worker
from headgate.connectors.kafka.session import ASK_S, SLICE_S, ClusterSession, Faults, patiently
from headgate.connectors.progress import Values, progress_from, values_of
from headgate.errors import Cause, ConnectorError, Fenced, NotConnected

PARTITIONS = 16
READ_S = 30.0  # For the positions of one partition.
AT_ONCE = 1000
HANGS = "a transaction hides the positions after it, and does not end"

# Little is left to read when a run opens: segments are small, and cleaned when a tenth of them is outdated.
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(3600 * 1000),
}


class _Message(msgspec.Struct):
    """The value of a message."""

    epoch: int
    progress: Values
    write: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the topic has of a stream."""

    epoch: int
    progress: Progress
    write: str = ""  # Which write committed it.

    def encoded(self) -> bytes:
        """The message's value."""
        return msgspec.json.encode(_Message(self.epoch, values_of(self.progress), self.write))


def decoded(value: bytes, where: str) -> Kept:
    """What a message says."""
    try:
        found = msgspec.json.decode(value, type=_Message)
        return Kept(found.epoch, progress_from(found.progress), found.write)
    except (msgspec.MsgspecError, TypeError):
        raise ConnectorError(f"{where}: a message of it is no position", cause=Cause.CONFIG) from None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a stream's position is."""

    topic: str
    key: bytes

    @property
    def partition(self) -> int:
        """Which of the partitions."""
        return int.from_bytes(hashlib.sha256(self.key).digest()[:4]) % PARTITIONS


def address_of(topic: str, installation: UUID, stream: UUID) -> Address:
    """Of this stream of this installation."""
    return Address(topic, f"{installation}/{stream}".encode())


def transactional_id(installation: UUID, stream: UUID) -> str:
    """By which the brokers tell the producers of one stream from all others."""
    return f"headgate-{installation}-{stream}"


async def ensure(cluster: ClusterSession, name: str, *, makes: bool) -> None:
    """Make the topic, or see that it is one that keeps positions. Not there and not made: nothing is wrong."""
    if not await cluster.exists(name):
        if not makes:
            return
        await cluster.make_topic(name, PARTITIONS, CONFIG)
    topic = await cluster.topic(name)
    if topic.partitions != PARTITIONS:
        raise ConnectorError(
            f"Kafka {cluster.where}: topic {name} has {topic.partitions} partitions, and positions need {PARTITIONS}",
            cause=Cause.CONFIG,
            hint="name another topic with positions_topic; Headgate makes it",
        )
    config = await cluster.config_of(name)
    if config is not None and config.get("cleanup.policy") != "compact":
        raise ConnectorError(
            f"Kafka {cluster.where}: topic {name} is not compacted, so positions would be deleted with time",
            cause=Cause.CONFIG,
            hint="set its cleanup.policy to compact",
        )


def judge(kept: Kept | None, grant: Grant, *, is_again: bool) -> None:
    """Raise `Fenced` unless this grant may write. `is_again`: it has written its epoch before."""
    if is_again:
        if kept is None or kept.epoch != grant.epoch:
            raise Fenced(f"epoch {grant.epoch} is fenced: another run has the stream")
    elif kept is not None and kept.epoch >= grant.epoch:
        raise Fenced(f"epoch {grant.epoch} is fenced by epoch {kept.epoch}")


class PositionReader:
    """Reads what is committed of one stream, and reads on. All of it waits: it belongs into a thread."""

    def __init__(self, config: dict[str, Any], address: Address, where: str) -> None:
        self._address = address
        self._where = f"{where}, topic {address.topic}"
        self._faults = Faults()
        self._at = 0  # Everything before this offset was read.
        self.is_unwanted = False  # Set from outside: nobody waits for it any more.
        self.kept: Kept | None = None
        with steer_worker(self._where):
            self._consumer = Consumer(
                config
                | {
                    "error_cb": self._faults,
                    "group.id": "headgate",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed",
                    "allow.auto.create.topics": False,
                    "fetch.wait.max.ms": 20,  # An end is an answer, too.
                }
            )
            self._place = TopicPartition(address.topic, address.partition, OFFSET_BEGINNING)
            self._consumer.assign([self._place])

    def committed_end(self) -> int:
        """The end of what can be read now: before the first open transaction."""
        with steer_worker(self._where):
            return patiently(lambda: self._consumer.get_watermark_offsets(self._place, timeout=ASK_S, cached=False)[1])

    def read_to(self, end: int) -> Kept | None:
        """Read everything before this offset, and wait for it."""
        ends_s = time.monotonic() + READ_S
        with steer_worker(self._where):
            while self._at < end and not self.is_unwanted:
                if time.monotonic() > ends_s:
                    raise NotConnected(f"Kafka {self._where}: {HANGS}", hint="kafka-transactions.sh find-hanging")
                first = self._consumer.poll(SLICE_S)
                if first is None:
                    self._faults.check(self._where)
                    continue
                for message in (first, *self._consumer.consume(AT_ONCE, 0)):
                    self._note(message)
        return self.kept

    def _note(self, message: Any) -> None:
        error = message.error()
        if error is None:
            self._at = message.offset() + 1
            if message.key() == self._address.key:
                value = message.value()
                self.kept = None if value is None else decoded(value, self._where)
        elif error.code() == KafkaError._PARTITION_EOF:
            self._at = max(self._at, message.offset())
        else:
            raise meaning(error, self._where)

    def close(self) -> None:
        """End the client."""
        self._consumer.close()
