"""Redis: streams by the ids of their entries, lists whose elements stay until they are written, and a sink that writes
each batch with its position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.connectors.api import Connector, SinkKind, SourceKind

if TYPE_CHECKING:
    from headgate.connectors.api import Context, Position, Sink, Source
    from headgate.connectors.guard import Guard
    from headgate.connectors.redis.options import RedisSinkOptions, RedisSourceOptions


def _source_options() -> type[RedisSourceOptions]:
    from headgate.connectors.redis.options import RedisSourceOptions

    return RedisSourceOptions


def _sink_options() -> type[RedisSinkOptions]:
    from headgate.connectors.redis.options import RedisSinkOptions

    return RedisSinkOptions


def _source(options: RedisSourceOptions, context: Context) -> Source:
    from headgate.connectors.redis.list_source import RedisListSource
    from headgate.connectors.redis.stream_source import RedisStreamSource

    return RedisStreamSource(options, context) if options.stream is not None else RedisListSource(options, context)


def _sink(options: RedisSinkOptions, context: Context) -> Sink:
    from headgate.connectors.redis.sink import RedisSink

    return RedisSink(options, context)


async def _probe(options: RedisSourceOptions | RedisSinkOptions, guard: Guard) -> None:
    from headgate.connectors.redis.session import probe

    await probe(options.url.get_secret_value(), guard)


def _tell_move(before: Position, after: Position) -> str:
    from headgate.connectors.redis.ids import tell_move

    return tell_move(before, after)


CONNECTOR = Connector(
    name="redis",
    summary="Read Redis streams and lists, and write to streams, lists and keys, exactly once",
    source=SourceKind(
        _source_options,
        _source,
        knows_backlog=True,
        tell_move=_tell_move,
        probe=_probe,
        promise="streams: exactly once into a transactional sink; lists: at least once",
    ),
    sink=SinkKind(
        _sink_options,
        _sink,
        transactional=True,
        forgets=True,
        needs_key=lambda options: options.keys is not None,
        can_delete=lambda options: options.keys is not None,
        probe=_probe,
        promise="exactly once, as durable as the server's settings make it",
    ),
)
