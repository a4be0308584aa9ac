"""RabbitMQ: queues and exchanges by AMQP 0.9.1, streams by their own protocol. Both are spoken here, without a client
library: docs/decisions/0038 says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.connectors.api import Connector, SinkKind, SourceKind

if TYPE_CHECKING:
    from headgate.connectors.api import Context, Position, Sink, Source
    from headgate.connectors.guard import Guard
    from headgate.connectors.rabbitmq.options import RabbitmqSinkOptions, RabbitmqSourceOptions


def _source_options() -> type[RabbitmqSourceOptions]:
    from headgate.connectors.rabbitmq.options import RabbitmqSourceOptions

    return RabbitmqSourceOptions


def _sink_options() -> type[RabbitmqSinkOptions]:
    from headgate.connectors.rabbitmq.options import RabbitmqSinkOptions

    return RabbitmqSinkOptions


def _source(options: RabbitmqSourceOptions, context: Context) -> Source:
    from headgate.connectors.rabbitmq.queue_source import QueueSource
    from headgate.connectors.rabbitmq.stream_source import StreamSource

    return StreamSource(options, context) if options.queue is None else QueueSource(options, context)


def _sink(options: RabbitmqSinkOptions, context: Context) -> Sink:
    from headgate.connectors.rabbitmq.exchange_sink import ExchangeSink
    from headgate.connectors.rabbitmq.stream_sink import StreamSink

    return ExchangeSink(options, context) if options.stream is None else StreamSink(options, context)


async def _probe(options: RabbitmqSourceOptions | RabbitmqSinkOptions, guard: Guard) -> None:
    from headgate.connectors.rabbitmq.probe import probe

    await probe(options, guard)


def _tell_move(before: Position, after: Position) -> str:
    from headgate.connectors.rabbitmq.stream_source import tell_offsets

    return tell_offsets(before, after)


CONNECTOR = Connector(
    name="rabbitmq",
    summary="Read and write queues, exchanges and streams of RabbitMQ",
    source=SourceKind(
        _source_options,
        _source,
        knows_backlog=True,
        in_parts=True,
        tell_move=_tell_move,
        probe=_probe,
        promise="streams: exactly once into a transactional sink; queues: at least once",
    ),
    sink=SinkKind(
        _sink_options,
        _sink,
        probe=_probe,
        promise="streams: deduplicated by publisher and number; exchanges and queues: at least once",
    ),
)
