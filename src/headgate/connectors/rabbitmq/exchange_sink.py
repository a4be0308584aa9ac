"""Publishes to an exchange or a queue, and waits until the server has confirmed every message. At least once.

Every message is *mandatory*: one that no queue gets comes back. If all messages have the same routing key, the bindings
are wrong, and the stream stops with one line; if the key comes from the record, the record is a dead letter.

If the worker comes back with the rest of a batch, or with all of it after a pause, nothing that was confirmed is
published again (`connectors.confirmed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from headgate.connectors.api import Context, Grant, Outgoing, Progress
from headgate.connectors.confirmed import Confirmed
from headgate.connectors.payloads import encoded
from headgate.connectors.rabbitmq.amqp import Amqp, Delivery, connected
from headgate.connectors.rabbitmq.fields import properties_of, short
from headgate.connectors.rabbitmq.options import RabbitmqSinkOptions, queue_address
from headgate.connectors.templates import Template
from headgate.errors import Bad, BadRecords, Cause, ConnectorError, Fenced, RetryLater

AT_ONCE = 200  # Messages between two looks at what the server says.
REFUSED_S = 1.0  # Until a message that a queue has refused is tried again.
_TYPES = {"json": "application/json", "text": "text/plain", "bytes": "application/octet-stream"}


class ExchangeSink:
    """Publishes one stream."""

    def __init__(self, options: RabbitmqSinkOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._exchange = options.exchange or ""
        self._key = Template(options.routing_key)
        self._amqp: Amqp | None = None
        self._grant: Grant | None = None
        self._sent = 0  # Messages on this connection: the server counts them, too.
        self._waiting: dict[int, Any] = {}  # By their numbers, records that are not confirmed.
        self._back: dict[str, Any] = {}  # By their ids, messages that came back,
        self._refused = 0  # and how many the server did not take.
        self._done = Confirmed()

    async def check(self) -> None:
        """Ask for the exchange or the queue."""
        amqp = await self._connect()
        await amqp.close()

    async def open(self, grant: Grant) -> Progress | None:
        """Connect, and have messages confirmed."""
        self._grant, self._sent = grant, 0
        self._amqp = amqp = await self._connect()
        amqp.confirmed, amqp.returned = self._on_confirmed, self._on_returned
        await amqp.confirm()
        return None

    async def write(self, batch: Outgoing) -> None:
        """Publish, and wait for all confirmations."""
        assert self._grant is not None
        assert self._amqp is not None, "the sink is open"
        if self._grant.trust_left_s() <= 0:
            raise Fenced("the right to publish has ended")
        self._done.begin(batch.progress.commits)
        bodies, keys = encoded(batch.records, self._options.format), self._keys(batch.records)
        self._waiting, self._back, self._refused = {}, {}, 0
        numbers: dict[int, str] = {}
        for record, body, key in zip(batch.records, bodies, keys, strict=True):
            if record in self._done:
                continue
            if self._sent % AT_ONCE == 0:
                await self._until_welcome(self._amqp)
            self._sent += 1
            self._waiting[self._sent] = record
            numbers[id(record)] = name = f"{self._grant.stream.hex}-{self._grant.epoch}-{self._sent}"
            self._amqp.publish(short(self._exchange), key, self._properties(name), body)
        while self._waiting:
            await self._amqp.wait_for_more()
        if self._back:
            self._tell_unroutable(
                [index for index, one in enumerate(batch.records) if numbers.get(id(one)) in self._back]
            )
        if self._refused:
            raise RetryLater("RabbitMQ refuses messages: a queue is full", after_s=REFUSED_S)

    def _properties(self, name: str) -> dict[str, Any]:
        return {
            "content_type": _TYPES[self._options.format],
            "delivery_mode": 2 if self._options.persistent else 1,
            "message_id": name,
        }

    def _keys(self, records: Sequence[dict[str, Any]]) -> list[bytes]:
        """The routing key of each record. `BadRecords` names those that have none."""
        if self._options.queue is not None:
            return [short(self._options.queue)] * len(records)
        keys, bad = [], []
        for index, record in enumerate(records):
            try:
                keys.append(short(self._key.of(record)))
            except UnicodeEncodeError:
                bad.append(Bad(index, "routing_key", "is not valid Unicode"))
            except ValueError as error:
                bad.append(Bad(index, "routing_key", str(error)))
        if bad:
            raise BadRecords(bad)
        return keys

    def _tell_unroutable(self, indexes: list[int]) -> None:
        """Messages came back. The others are confirmed, and not sent again with this batch."""
        if self._options.queue is not None:
            raise ConnectorError(
                f"queue {self._options.queue} is gone", cause=Cause.CONFIG, hint="declare it again, and start"
            )
        if self._key.is_constant:
            raise ConnectorError(
                f"exchange {self._exchange or '(default)'} routes messages with this routing key to no queue",
                cause=Cause.CONFIG,
                hint="bind a queue, or mend routing_key",
            )
        raise BadRecords([Bad(index, "routing_key", "no queue is bound for it") for index in indexes])

    async def _until_welcome(self, amqp: Amqp) -> None:
        """Wait while the server is short of memory or disk, or does not read fast enough."""
        if amqp.blocked is not None:
            self._context.log.warning("RabbitMQ takes no messages now", why=amqp.blocked)
        while amqp.blocked is not None:
            await amqp.wait_for_more()
        await amqp.drain()

    def _on_confirmed(self, number: int, multiple: bool, is_taken: bool) -> None:
        numbers = list(takewhile(lambda one: one <= number, self._waiting)) if multiple else [number]
        for one in numbers:
            record = self._waiting.pop(one, None)
            if record is not None and is_taken:
                self._done.add(record)
            self._refused += not is_taken

    def _on_returned(self, message: Delivery) -> None:
        self._back[properties_of(message.header[12:]).get("message_id", "")] = True

    async def close(self) -> None:
        """End the connection."""
        amqp, self._amqp = self._amqp, None
        if amqp is not None:
            await amqp.close()

    async def _connect(self) -> Amqp:
        amqp = await connected(queue_address(self._options.url), self._context.guard, 0)
        try:
            if self._options.queue is not None:
                await amqp.count(self._options.queue)
            else:
                await amqp.check_exchange(self._exchange)
        except BaseException:
            with suppress(Exception):
                await amqp.close()
            raise
        return amqp
