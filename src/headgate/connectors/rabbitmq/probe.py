"""Whether a RabbitMQ answers: it greets, and lets us in."""

from __future__ import annotations

from headgate.connectors.guard import Guard
from headgate.connectors.rabbitmq import amqp, streams
from headgate.connectors.rabbitmq.options import (
    RabbitmqSinkOptions,
    RabbitmqSourceOptions,
    queue_address,
    stream_address,
)
from headgate.connectors.wire import Wire


async def probe(options: RabbitmqSourceOptions | RabbitmqSinkOptions, guard: Guard) -> None:
    """Log in and out. While it starts it accepts connections and closes them."""
    wire: Wire
    if options.url.get_secret_value().startswith("amqp"):
        wire = await amqp.connected(queue_address(options.url), guard, 0)
    else:
        wire = await streams.connected(stream_address(options.url), guard)
    await wire.close()
