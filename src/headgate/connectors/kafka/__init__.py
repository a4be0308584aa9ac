"""Kafka: reads topics by partition, and writes them exactly once."""

from __future__ import annotations

from typing import Any

from headgate.connectors.api import Connector, Context, Sink, SinkKind, Source, SourceKind
from headgate.connectors.kafka.options import KafkaSinkOptions, KafkaSourceOptions, reaches
from headgate.connectors.kafka.places import tell_move

__all__ = ["CONNECTOR", "KafkaSinkOptions", "KafkaSourceOptions"]


def _source(options: Any, context: Context) -> Source:
    from headgate.connectors.kafka.source import KafkaSource

    return KafkaSource(options, context)


def _sink(options: Any, context: Context) -> Sink:
    from headgate.connectors.kafka.sink import KafkaSink, PlainKafkaSink

    return PlainKafkaSink(options, context) if options.is_plain else KafkaSink(options, context)


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
        promise="exactly once into a transactional sink",
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
        promise="exactly once for readers of committed records; delivery: at_least_once: at least once",
    ),
)
