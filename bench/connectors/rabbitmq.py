"""RabbitMQ stream and queue → mapping of six fields → PostgreSQL, against rstream and pika.

python -m bench connectors.rabbitmq
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pika
import rstream
from pika.adapters.asyncio_connection import AsyncioConnection
from pydantic import SecretStr

from bench.broker import missing
from bench.connectors.bare import RECORDS, bare_rate, bodies, node_rate
from bench.rig import DATABASE_CORE, pin, report, running
from headgate.connectors.guard import OPEN
from headgate.connectors.rabbitmq.messages import make
from headgate.connectors.rabbitmq.options import stream_address
from headgate.connectors.rabbitmq.streams import connected
from headgate.testing.rabbitmq import RabbitMq

BATCH = 5000
PREFETCH = 10_000
QUEUED = RECORDS // 2  # Queues are slower.


def declare(server: RabbitMq, name: str, kind: str) -> None:
    """A queue, or a stream."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url()))
    connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    connection.close()


async def fill_stream(server: RabbitMq, name: str, messages: Sequence[bytes]) -> None:
    """As fast as the server takes them."""
    wire, left = await connected(stream_address(SecretStr(server.stream_url())), OPEN), len(messages)

    def confirmed(ids: Sequence[int], code: int) -> None:
        nonlocal left
        left -= len(ids)

    wire.confirmed = confirmed
    await wire.declare_publisher(name, "")
    for frame in wire.frames(list(enumerate(messages, 1))):
        wire.publish(frame)
        await wire.drain()
    while left:
        await wire.wait_for_more()
    await wire.close()


def fill_queue(server: RabbitMq, name: str) -> None:
    """Without confirmations: the server has them before the connection is closed."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url()))
    channel, properties = connection.channel(), pika.BasicProperties(delivery_mode=2)
    for body in bodies(QUEUED):
        channel.basic_publish("", name, body, properties)
    connection.close()


async def from_stream(
    server: RabbitMq, name: str, decoder: Callable[[bytes], Any] | None
) -> AsyncIterator[list[bytes]]:
    """As rstream reads them."""
    ready: asyncio.Queue[list[bytes]] = asyncio.Queue(maxsize=4)
    batch: list[bytes] = []
    consumer = rstream.Consumer("127.0.0.1", port=server.stream_port, username="guest", password="guest")

    async def on_message(message: Any, context: Any) -> None:
        batch.append(message if decoder is None else bytes(message.body))
        if len(batch) == BATCH:
            await ready.put(batch.copy())
            batch.clear()

    await consumer.start()
    await consumer.subscribe(
        name,
        on_message,
        decoder=decoder,
        offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None),
    )
    for _ in range(RECORDS // BATCH):
        yield await ready.get()
    await consumer.close()


async def from_queue(server: RabbitMq, name: str) -> AsyncIterator[list[bytes]]:
    """As pika reads them. A batch is acknowledged when the next one is asked for."""
    arrived, taken, channels = asyncio.Event(), 0, []
    waiting: list[tuple[int, bytes]] = []

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        waiting.append((method.delivery_tag, body))
        arrived.set()

    def on_channel(channel: Any) -> None:
        channels.append(channel)
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(name, on_message)

    connection = AsyncioConnection(
        pika.URLParameters(server.url()), on_open_callback=lambda made: made.channel(on_open_callback=on_channel)
    )
    while taken < QUEUED:
        while not waiting:
            arrived.clear()
            await arrived.wait()
        batch = waiting[:BATCH]
        del waiting[:BATCH]
        taken += len(batch)
        yield [body for _, body in batch]
        channels[0].basic_ack(batch[-1][0], multiple=True)
    connection.close()


def main() -> dict[str, float]:
    """Run and print."""
    if (why := missing()) is not None:
        print(f"\nRabbitMQ → PostgreSQL: {why}")
        return {}
    figures: dict[str, float] = {}
    with RabbitMq() as server, running(pinned=True) as rig:
        pin(server.pid, DATABASE_CORE)
        rig.node.call("PUT", "/api/secrets/streams", {"value": server.stream_url()})
        rig.node.call("PUT", "/api/secrets/queues", {"value": server.url()})
        for encoding, decoder in (("raw", None), ("amqp", rstream.amqp_decoder)):
            found = bodies()
            messages = found if encoding == "raw" else [make(body, b"%d" % id) for id, body in enumerate(found)]
            declare(server, encoding, "stream")
            asyncio.run(fill_stream(server, encoding, messages))
            source = {"type": "rabbitmq", "url": {"$secret": "streams"}, "stream": encoding, "encoding": encoding}
            ours = node_rate(rig, f"stream-{encoding}", source)
            bare = asyncio.run(bare_rate(rig.sink, from_stream(server, encoding, decoder)))
            figures |= {
                f"stream, {encoding}: records/s": ours,
                f"stream, {encoding}: bare loop of rstream, records/s": bare,
                f"stream, {encoding}: against the bare loop": ours / bare,
            }
        for name in ("ours", "bare"):
            declare(server, name, "classic")
            fill_queue(server, name)
        source = {"type": "rabbitmq", "url": {"$secret": "queues"}, "queue": "ours", "prefetch": PREFETCH}
        ours = node_rate(rig, "queue", source, QUEUED)
        bare = asyncio.run(bare_rate(rig.sink, from_queue(server, "bare")))
        figures |= {
            "queue: records/s": ours,
            "queue: bare loop of pika, records/s": bare,
            "queue: against the bare loop": ours / bare,
        }
    return report("RabbitMQ → mapping of six fields → PostgreSQL (python -m bench connectors.rabbitmq)", figures)


if __name__ == "__main__":
    main()
