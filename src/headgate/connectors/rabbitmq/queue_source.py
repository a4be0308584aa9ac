"""Reads a queue. A message is acknowledged when it is durable in the sink, and not before; so it comes at least once.

The position carries nothing that the server needs: it names the session and the last delivery in it, so that `ack`
knows what to acknowledge. A later run begins with what the queue gives it. A session that ends gives back all that it
has not acknowledged, and the server delivers it again, marked as such.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from headgate.connectors.api import Backlog, Batch, Context, Position
from headgate.connectors.payloads import decoded, too_large
from headgate.connectors.rabbitmq.amqp import Amqp, Delivery, connected
from headgate.connectors.rabbitmq.fields import Cursor, properties_of
from headgate.connectors.rabbitmq.options import RabbitmqSourceOptions, queue_address

BATCH_BYTES = 8 * 2**20  # The most in one batch, unless one message is larger.


class QueueSource:
    """Consumes one queue."""

    def __init__(self, options: RabbitmqSourceOptions, context: Context) -> None:
        assert options.queue is not None
        self._options = options
        self._queue = options.queue
        self._guard = context.guard
        self._session = ""
        self._amqp: Amqp | None = None

    async def check(self) -> None:
        """Ask for the queue, and consume nothing."""
        amqp = await self._connect()
        try:
            await amqp.count(self._queue)
        finally:
            await amqp.close()

    async def parts(self) -> Sequence[str]:
        """One."""
        return [""]

    async def open(self, position: Position) -> None:
        """Whatever the position is: the server knows what was acknowledged."""
        self._session = secrets.token_hex(4)
        self._amqp = await self._connect()
        await self._amqp.count(self._queue)
        await self._amqp.consume(self._queue, self._options.prefetch)

    async def read(self) -> Batch:
        """What was delivered. It stays where it is until it is returned, so a read may be cancelled anywhere."""
        amqp, options = self._opened(), self._options
        while not amqp.deliveries:
            await amqp.wait_for_more()
        messages: list[Delivery] = []
        size_bytes = 0
        for message in itertools.islice(amqp.deliveries, options.batch):
            size_bytes += len(message.body)
            if messages and size_bytes > BATCH_BYTES:
                size_bytes -= len(message.body)
                break
            messages.append(message)
        records = await decoded((message.body for message in messages), options.format)
        for index, message in enumerate(messages):
            if message.size_bytes > options.max_message_bytes:
                records[index] = too_large(message.body, message.size_bytes, options.max_message_bytes)
        tags, meta = zip(*map(_told, messages), strict=True)
        amqp.taken(messages)
        times = [one["timestamp"] for one in meta if "timestamp" in one]
        return Batch(
            records,
            position=f"{self._session}:{tags[-1]}",
            size_bytes=size_bytes,
            event_time_s=max(times, default=None),
            meta=list(meta),
            place=lambda index: f"queue {self._queue}, delivery {tags[index]}",
        )

    async def ack(self, position: Position) -> None:
        """This delivery and all before it are done, if they are of this session."""
        session, _, tag = str(position).partition(":")
        if session == self._session and self._amqp is not None:
            self._amqp.ack(int(tag))
            await self._amqp.drain()

    async def backlog(self) -> Backlog | None:
        """What is ready in the queue, and what has been delivered and not read."""
        amqp = self._opened()
        return Backlog(await amqp.count(self._queue) + len(amqp.deliveries))

    async def close(self) -> None:
        """End the session. What was not acknowledged goes back."""
        amqp, self._amqp = self._amqp, None
        if amqp is not None:
            await amqp.close()

    async def _connect(self) -> Amqp:
        return await connected(queue_address(self._options.url), self._guard, self._options.max_message_bytes)

    def _opened(self) -> Amqp:
        assert self._amqp is not None, "the source is open"
        return self._amqp


def _told(message: Delivery) -> tuple[int, dict[str, Any]]:
    """The tag of a delivery, and what the mapping sees of it as `meta`. Quorum queues count deliveries; of others it is
    only known that there was one before."""
    method = message.method
    at = 5 + method[4]
    is_again, said = bool(method[at + 8]), _properties(message.header[12:])
    before = said.get("headers", {}).get("x-delivery-count")
    meta = {
        **_route(method[at + 9 :]),
        "redelivered": is_again,
        "redeliveries": before if isinstance(before, int) else int(is_again),
        **said,
    }
    return int.from_bytes(method[at : at + 8], "big"), meta


@lru_cache(maxsize=4096)
def _route(data: bytes) -> dict[str, str]:
    cursor = Cursor(data)
    return {"exchange": cursor.short(), "routing_key": cursor.short()}


@lru_cache(maxsize=4096)
def _properties(data: bytes) -> dict[str, Any]:
    return properties_of(data)
