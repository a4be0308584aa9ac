"""NATS JetStream: streams by the sequences of their messages, and a sink that writes each batch with its position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.connectors.api import Connector, SinkKind, SourceKind

if TYPE_CHECKING:
    from headgate.connectors.api import Context, Position, Sink, Source
    from headgate.connectors.guard import Guard
    from headgate.connectors.nats.options import NatsSinkOptions, NatsSourceOptions


def _source_options() -> type[NatsSourceOptions]:
    from headgate.connectors.nats.options import NatsSourceOptions

    return NatsSourceOptions


def _sink_options() -> type[NatsSinkOptions]:
    from headgate.connectors.nats.options import NatsSinkOptions

    return NatsSinkOptions


def _source(options: NatsSourceOptions, context: Context) -> Source:
    from headgate.connectors.nats.source import NatsSource

    return NatsSource(options, context)


def _sink(options: NatsSinkOptions, context: Context) -> Sink:
    from headgate.connectors.nats.sink import NatsSink

    return NatsSink(options, context)


async def _probe(options: NatsSourceOptions | NatsSinkOptions, guard: Guard) -> None:
    from headgate.connectors.nats.session import probe

    await probe(options.url, options.credentials, guard)


def _tell_move(before: Position, after: Position) -> str:
    from headgate.connectors.moves import tell_numbers

    return tell_numbers(before or 0, 0 if after is None else after, "message")


CONNECTOR = Connector(
    name="nats",
    summary="Read JetStream streams, and write to them exactly once",
    source=SourceKind(
        _source_options,
        _source,
        knows_backlog=True,
        tell_move=_tell_move,
        probe=_probe,
        promise="exactly once into a transactional sink",
    ),
    sink=SinkKind(
        _sink_options,
        _sink,
        transactional=True,
        transactional_with=lambda options: options.exactly_once,
        forgets=True,
        probe=_probe,
        promise="exactly once; exactly_once: false: deduplicated within the stream's duplicate window",
    ),
)
