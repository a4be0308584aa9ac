"""Kafka: reads topics by partition, and writes them exactly once."""

from __future__ import annotations

from typing import Any

from headgate.connectors.api import Connector, Context, Position, Sink, SinkKind, Source, SourceKind
from headgate.connectors.kafka.options import KafkaSinkOptions, KafkaSourceOptions, reaches
from headgate.connectors.kafka.places import tell_move
from headgate.errors import Cause, ConnectorError

__all__ = ["CONNECTOR", "KafkaSinkOptions", "KafkaSourceOptions", "Position"]


def _source(options: Any, context: Context) -> Source:
    try:
        from headgate.connectors.kafka.source import KafkaSource
    except ImportError as error:
        raise _missing(error) from None
    return KafkaSource(options, context)


def _sink(options: Any, context: Context) -> Sink:
    try:
        from headgate.connectors.kafka.sink import KafkaSink, PlainKafkaSink
    except ImportError as error:
        raise _missing(error) from None
    return PlainKafkaSink(options, context) if options.is_plain else KafkaSink(options, context)


def _missing(error: ImportError) -> ConnectorError:
    text = f"connector 'kafka' cannot be loaded: {error}"
    return ConnectorError(text, cause=Cause.CONFIG, hint="pip install 'headgate[kafka]'")


CONNECTOR = Connector(
    name="kafka",
    summary="Read topics by partition, and write them exactly once",
    source=SourceKind(
        KafkaSourceOptions,
        _source,
        knows_backlog=True,
        in_parts=True,
        is_marked=True,
        tell_move=tell_move,
        reaches=reaches,
    ),
    sink=SinkKind(
        KafkaSinkOptions,
        _sink,
        transactional=True,
        transactional_with=lambda options: not options.is_plain,
        forgets=True,
        is_marked=True,
        can_delete=lambda options: True,
        reaches=reaches,
    ),
)
