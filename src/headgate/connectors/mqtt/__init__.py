"""MQTT: a session that is acknowledged when the sink has what it brought, and topics to publish to. The protocol is
spoken here, without a client library: docs/decisions/0038 says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.connectors.api import Connector, SinkKind, SourceKind

if TYPE_CHECKING:
    from headgate.connectors.api import Context, Position, Sink, Source
    from headgate.connectors.guard import Guard
    from headgate.connectors.mqtt.options import MqttSinkOptions, MqttSourceOptions


def _source_options() -> type[MqttSourceOptions]:
    from headgate.connectors.mqtt.options import MqttSourceOptions

    return MqttSourceOptions


def _sink_options() -> type[MqttSinkOptions]:
    from headgate.connectors.mqtt.options import MqttSinkOptions

    return MqttSinkOptions


def _source(options: MqttSourceOptions, context: Context) -> Source:
    from headgate.connectors.mqtt.source import MqttSource

    return MqttSource(options, context)


def _sink(options: MqttSinkOptions, context: Context) -> Sink:
    from headgate.connectors.mqtt.sink import MqttSink

    return MqttSink(options, context)


async def _probe(options: MqttSourceOptions | MqttSinkOptions, guard: Guard) -> None:
    from headgate.connectors.mqtt.client import Login, connected
    from headgate.connectors.mqtt.options import address_of

    mqtt = await connected(address_of(options.url), guard, Login("", options.version == "5", is_clean=True))
    await mqtt.close()


def _tell_move(before: Position, after: Position) -> str:
    return "nothing changes: the broker gives what was not acknowledged, whatever the position is"


CONNECTOR = Connector(
    name="mqtt",
    summary="Subscribe and publish to topics of an MQTT broker",
    source=SourceKind(_source_options, _source, tell_move=_tell_move, probe=_probe, promise="at least once"),
    sink=SinkKind(_sink_options, _sink, probe=_probe, promise="at least once"),
)
