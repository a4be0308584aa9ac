"""Messages out of records, and a producer that sends them, in transactions or without.

All of `Producing` waits and belongs into a thread. It waits in slices, so that it ends soon once nobody needs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer

from headgate.connectors.api import Outgoing
from headgate.connectors.kafka.errors import OF_RECORDS, LostOwnershipError, is_fenced, meaning
from headgate.connectors.kafka.options import KafkaSinkOptions
from headgate.connectors.kafka.session import Faults
from headgate.connectors.payloads import encoded
from headgate.errors import Bad, BadRecords, BatchRefused, NotConnected

T = TypeVar("T")

WAIT_S = 1.0  # A slice.
ABORT_S = 2.0
OVERHEAD_BYTES = 200  # Of a message beyond its key, headers and value, and of the batch that it is in.
QUEUE_KB = 128 * 1024
LINGER_MS = 1000

_encode = msgspec.json.Encoder().encode


class Message(NamedTuple):
    """One to send."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes]] | None


def messages_of(batch: Outgoing, options: KafkaSinkOptions, most_bytes: int) -> list[Message]:
    """A message for each record; deletions become tombstones. `BadRecords` names those that cannot be."""
    values, key_of = _values(batch, options), _key_maker(batch.key, options.key_format)
    found, bad = list[Message](), list[Bad]()
    for index, (record, value) in enumerate(zip(batch.records, values, strict=True)):
        try:
            key = None if key_of is None else key_of(record)
            headers = None if options.headers is None else _headers(record.get(options.headers))
        except UnicodeEncodeError:
            bad.append(Bad(index, batch.key[0], "the key has a text that is not valid Unicode"))
            continue
        except ValueError as error:
            bad.append(Bad(index, options.headers, str(error)))
            continue
        size = OVERHEAD_BYTES + len(value or b"") + len(key or b"")
        size += sum(len(name) + len(text) + 8 for name, text in headers or ())
        if size > most_bytes:
            bad.append(Bad(index, None, f"the message has {size:,} bytes, and at most {most_bytes:,} are taken"))
        found.append(Message(value, key, headers))
    if bad:
        raise BadRecords(bad)
    return found


def _values(batch: Outgoing, options: KafkaSinkOptions) -> list[bytes | None]:
    """The values of all but the deletions, without the headers."""
    gone, left_out = set(batch.deletes), options.headers
    kept = [index for index in range(len(batch.records)) if index not in gone]
    records = [batch.records[index] for index in kept]
    if left_out is not None:
        records = [{name: one[name] for name in one if name != left_out} for one in records]
    try:
        bodies = encoded(records, options.format)
    except BadRecords as error:
        raise BadRecords([Bad(kept[one.index], one.field, one.reason) for one in error.bad]) from None
    values: list[bytes | None] = [None] * len(batch.records)
    for index, body in zip(kept, bodies, strict=True):
        values[index] = body
    return values


def _key_maker(fields: Sequence[str], format: str) -> Callable[[dict[str, Any]], bytes] | None:
    if not fields:
        return None
    if len(fields) > 1 or format == "json":
        return lambda record: _encode({name: record.get(name) for name in fields})
    [field] = fields
    return lambda record: value.encode() if isinstance(value := record.get(field), str) else _encode(value)


def _headers(given: Any) -> list[tuple[str, bytes]] | None:
    if given is None:
        return None
    if not isinstance(given, dict) or not all(isinstance(one, str) for one in (*given, *given.values())):
        raise ValueError("headers are an object of texts")
    return [(_clean(name).decode(), _clean(value)) for name, value in given.items()]


def _clean(text: str) -> bytes:
    return text.encode("utf-8", "replace")


class Producing:
    """A producer. With a transactional id, the last one of its kind."""

    def __init__(self, config: dict[str, Any], options: KafkaSinkOptions, where: str) -> None:
        self._options = options
        self._where = where
        self._faults = Faults()
        self._error: KafkaError | None = None  # Of the first message that was not delivered.
        self.is_unwanted = False  # Set from outside: what is not committed yet shall not be.
        try:
            self._producer: Any = Producer(
                config
                | {
                    "on_delivery": self._delivered,
                    "delivery.report.only.error": True,
                    "enable.idempotence": True,  # Also: all replicas in sync have it, and in order.
                    "compression.type": options.compression,
                    "partitioner": "murmur2_random",  # As Java has it: a key is always in one partition.
                    "message.max.bytes": options.max_message_bytes,
                    "queue.buffering.max.kbytes": QUEUE_KB,
                    "queue.buffering.max.messages": 200_000,
                    # Every write ends with a flush, which does not linger. Until then requests become as large as they
                    # can: a busy machine would send many small ones, and pay for each. In a transaction messages must
                    # not linger for as long as it may take.
                    "linger.ms": min(LINGER_MS, int(options.transaction_timeout_s * 1000) // 2),
                    "error_cb": self._faults,
                }
            )
        except KafkaException as error:
            raise meaning(error.args[0], where) from None

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._error is None:
            self._error = error

    # Transactions.

    def take(self, within_s: float) -> None:
        """Take the transactional id. `LostOwnershipError`: another producer took it at the same time."""
        try:
            self._in_slices(self._producer.init_transactions, within_s)
        except KafkaException as error:
            if is_fenced(error.args[0]):
                raise LostOwnershipError(error.args[0].str()) from None
            raise meaning(error.args[0], self._where) from None

    def commit(self, messages: Sequence[Message], last: tuple[str, int, bytes, bytes | None], within_s: float) -> None:
        """Send all of these to our topic, and then one to another place, in one transaction.

        `LostOwnershipError`: nothing was committed, or nobody knows.
        """
        self._forget_errors()
        try:
            self._producer.begin_transaction()
            self._send(messages, within_s)
            topic, partition, key, value = last
            self._producer.produce(topic, partition=partition, key=key, value=value)
            self._in_slices(self._producer.commit_transaction, within_s)
        except KafkaException as error:
            raise self._aborted(error.args[0]) from None
        except BaseException:
            self._abort()
            raise

    def _aborted(self, error: KafkaError) -> Exception:
        """What the worker is told of a transaction that was not committed."""
        if is_fenced(error) or error.fatal():
            return LostOwnershipError(error.str())
        self._abort()
        return self._meaning(error)

    def _abort(self) -> None:
        """Take everything back. Where that is not possible, who takes the transactional id next does it."""
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.abort_transaction(ABORT_S)

    # Without.

    def send(self, messages: Sequence[Message], within_s: float) -> None:
        """Send all of these, and wait until the brokers have them."""
        self._forget_errors()
        try:
            self._send(messages, within_s)
            ends_s = time.monotonic() + within_s
            while self._producer.flush(WAIT_S):
                self._check(ends_s)
        except KafkaException as error:
            raise self._meaning(error.args[0]) from None
        if self._error is not None:
            raise self._meaning(self._error)

    def close(self) -> None:
        """End the client. What it has not sent is not sent; a transaction that is open ends with the next producer."""
        if self._producer is not None:
            with suppress(KafkaException):
                self._producer.purge()
            self._producer = None  # Its own `close` would wait for what cannot be done any more.

    # Both.

    def _forget_errors(self) -> None:
        """Those of before: a connection that was idle for long may have been closed."""
        self._producer.poll(0)
        self._error = self._faults.worst = None

    def _send(self, messages: Sequence[Message], within_s: float) -> None:
        topic, ends_s = self._options.topic, time.monotonic() + within_s
        produce = self._producer.produce
        for value, key, headers in messages:
            while True:
                try:
                    if headers is None:
                        produce(topic, value, key)
                    else:
                        produce(topic, value, key, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(0.1)
                    self._check(ends_s)

    def _in_slices(self, call: Callable[[float], T], within_s: float) -> T:
        """A call that may be repeated until it has an answer."""
        ends_s = time.monotonic() + within_s
        while True:
            self._check(ends_s)
            try:
                return call(WAIT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                self._producer.poll(0)

    def _check(self, ends_s: float) -> None:
        found = self._error or self._faults.worst
        if found is not None:
            raise KafkaException(found)
        if self.is_unwanted:
            raise NotConnected("the write was cancelled")
        if time.monotonic() > ends_s:
            raise NotConnected(f"Kafka {self._where}: the brokers do not answer in time")

    def _meaning(self, error: KafkaError) -> Exception:
        cause = self._error or error
        if cause.code() in OF_RECORDS:
            return BatchRefused(f"Kafka {self._where}: {cause.str()}")
        return meaning(cause, self._where)
